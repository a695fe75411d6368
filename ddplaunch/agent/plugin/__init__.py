"""The parts of the plug-in, all in torchrun's process."""
