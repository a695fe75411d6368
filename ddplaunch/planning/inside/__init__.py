"""Launches inside of a job that somebody else started: Slurm or Kubeflow."""
