"""Plans: ordered steps as values that can be printed, compared and run."""
