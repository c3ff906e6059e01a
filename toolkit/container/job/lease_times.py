"""Intervals and limits of leases, in seconds."""

from __future__ import annotations

BEAT_S = 0.5  # how often main says that it is there
LOST_S = 4.0  # a host that has not answered for so long is lost
LEASE_S = 10.0  # a host that has not heard from main for so long ends its ranks
