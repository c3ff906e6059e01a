"""Jobs: request, launcher, start, logs, records, files."""
