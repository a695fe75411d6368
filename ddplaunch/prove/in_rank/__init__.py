"""Runs inside the ranks of a proof: records what they train on, or gives one process the samples of all ranks."""
