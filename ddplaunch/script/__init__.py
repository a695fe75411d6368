"""What a training script's source says about the script, read with ast and without importing it."""
