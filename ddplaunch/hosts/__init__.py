"""Reaching machines: ssh sessions, the roll call, Slurm's programs, and runs of this host."""
