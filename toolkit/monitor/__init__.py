"""What hosts and ranks do: top, report, metrics."""
