"""Reaches machines: ssh sessions, the roll call, Slurm's programs, and runs on this host."""
