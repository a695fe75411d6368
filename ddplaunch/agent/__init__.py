"""Code that runs in and beside torchrun while ranks train: the plug-in, the guard, the end of a run, warm starts."""
