"""Batch, learning rate and warmup as pure arithmetic; refuses to read anything."""
