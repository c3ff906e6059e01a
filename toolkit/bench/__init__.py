"""Measurements on the cluster: network, scaling, tuning, step time, and the smoke test."""
