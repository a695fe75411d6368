"""What runs leave on disk (records, logs, outcomes), and GPU locks. Nothing here stops or slows a training."""
