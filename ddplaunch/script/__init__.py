"""What the training script's source says of itself, by ast; never imports it."""
