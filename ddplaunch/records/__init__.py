"""What runs leave on disk: records, logs, outcomes; and the locks of GPUs. Nothing here stops or slows a training."""
