"""The SSH keys that hosts show."""

from __future__ import annotations

from pathlib import Path

from toolkit.api.part import Part
from toolkit.cluster.trust import ShownKey, look, record
from toolkit.hostsfile.load import choose_hosts


class KeysPart(Part):
    """The ssh keys that hosts show, and what is on record of them here."""

    def shown(self, *hosts: str) -> list[ShownKey]:
        """Return the keys that hosts show now, all of them by default; those of jump hosts as well."""
        return look(self._cluster.inventory, choose_hosts(self._cluster.inventory, hosts, ()))

    def record(self, key: ShownKey) -> Path:
        """Trust a key from now on; return the file that it was written to.

        Compare its fingerprint with one that came another way first: whoever answers here may be anybody.
        """
        return record(key)
