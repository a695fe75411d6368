"""A real Slurm for tests."""
