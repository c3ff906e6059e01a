"""Start and removal of a cluster."""
