"""States in which a job ends."""

from __future__ import annotations

FINAL_STATES = ("succeeded", "failed", "stopped", "timeout")
