"""Activity of hosts and ranks: top, report, metrics."""
