"""The run directory and the GPU lock; never stops or slows a training."""
