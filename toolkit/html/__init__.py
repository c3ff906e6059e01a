"""Pages that need nothing else."""
