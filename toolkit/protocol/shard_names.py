"""Names of shards of a data set."""

from __future__ import annotations

import hashlib


def shard_name(entries: bytes) -> str:
    """Return the name of a shard, by its entries as they are sent."""
    return hashlib.sha256(entries).hexdigest()[:32]
