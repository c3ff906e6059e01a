"""The choice of data address and interface on each host, and settings of communication libraries."""
