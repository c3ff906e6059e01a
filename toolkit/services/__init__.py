"""Containers beside training."""
