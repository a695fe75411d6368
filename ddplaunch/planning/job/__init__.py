"""A launch as a job for a scheduler: a batch script or a Kubernetes manifest."""
