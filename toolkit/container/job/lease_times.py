"""Intervals and limits of leases, in seconds."""

from __future__ import annotations

HEARTBEAT_S = 0.5  # interval of main's heartbeats
LOST_S = 4.0  # a host that has not answered for this time is lost
LEASE_S = 10.0  # a host that has not received a heartbeat for this time ends its ranks
