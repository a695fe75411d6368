"""Runs Slurm's programs, follows its jobs and ends them."""
