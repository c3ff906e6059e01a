"""The practice cluster: containers on one machine that behave as hosts."""
