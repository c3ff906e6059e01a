"""A cluster's up and down."""
