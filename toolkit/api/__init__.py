"""Cluster and Job: the one way by which the command line, scripts and notebooks act."""
