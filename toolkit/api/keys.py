"""The SSH host keys of the hosts."""

from __future__ import annotations

from pathlib import Path

from toolkit.api.connection import Part
from toolkit.hostsfile.load import choose_hosts
from toolkit.init.trust import ShownKey, record, shown_keys


class KeysPart(Part):
    """The SSH host keys, and their records on your machine."""

    def shown(self, *hosts: str) -> list[ShownKey]:
        """Return the current keys of hosts (all by default) and of their jump hosts."""
        return shown_keys(self._cluster.inventory, choose_hosts(self._cluster.inventory, hosts, ()))

    def record(self, key: ShownKey) -> Path:
        """Record a key as trusted and return the known_hosts file.

        First compare the fingerprint with a fingerprint from another source, because an attacker could answer
        instead of the host.
        """
        return record(key)
