"""Which address and interface ranks use on each host, and what to tell the communication libraries."""
