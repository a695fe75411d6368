"""Launches inside of a job that somebody else started: Slurm, Kubeflow, Open MPI and others."""
