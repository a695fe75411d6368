"""Reaching machines: local processes, ssh, Slurm; refuses to judge what they say."""
