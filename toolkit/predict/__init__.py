"""Prediction of a job's step time on other networks and more hosts."""
