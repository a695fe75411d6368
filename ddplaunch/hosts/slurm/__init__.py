"""Slurm's programs, and following and ending its jobs."""
