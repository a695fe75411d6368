"""What runs inside torchrun and beside it while ranks train: the plug-in, the guard, the end of a run, warm starts."""
