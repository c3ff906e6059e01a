"""Checks for problems that would break, corrupt or slow a job. One file per family, one registry."""
