"""The plug-in's parts inside of torchrun's process."""
