"""Batch, learning rate and warmup of a launch, as pure arithmetic."""
