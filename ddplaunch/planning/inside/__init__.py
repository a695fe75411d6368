"""Launches inside of a job that Slurm or Kubeflow started."""
