"""Checks: what would stop a job, told before it does. One file per family, one registry."""
