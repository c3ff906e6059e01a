"""Multi-node training on plain GPU boxes: SSH and Docker, nothing else."""

__version__ = "0.1.0"
