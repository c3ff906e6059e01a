"""Tests on the practice cluster: real engines, real ssh, real jobs."""
