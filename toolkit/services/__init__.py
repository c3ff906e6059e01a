"""Containers that run in addition to training."""
