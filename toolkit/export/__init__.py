"""A job for other systems: Slurm, Kubernetes."""
