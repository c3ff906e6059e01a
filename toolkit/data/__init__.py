"""Data sets: what a host has, and how the rest gets there."""
