"""What to do, in which order: plans are values that can be printed, compared and run."""
