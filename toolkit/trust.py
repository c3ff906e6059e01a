"""Hosts' ssh keys: what each host shows, what is on record, and recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.effects.fanout import fan_out
from toolkit.effects.host_keys import recorded_key, save_key, shown_key
from toolkit.effects.ssh_config import Target
from toolkit.inputs import target_of
from toolkit.spec.inventory import Inventory


@dataclass(frozen=True)
class Finding:
    """One host's key.

    Args:
        fingerprint: SHA256 of the key that the host shows, as ``ssh-keygen -l`` prints it.
        recorded: fingerprint of the key on record, empty when there is none.
        error: why the host showed no key, empty when it did.
    """

    host: str
    target: Target | None
    kind: str = ""
    fingerprint: str = ""
    recorded: str = ""
    error: str = ""
    key: Any = field(default=None, repr=False, compare=False)

    @property
    def known(self) -> bool:
        return bool(self.fingerprint) and self.fingerprint == self.recorded

    @property
    def file(self) -> str:
        """The known_hosts file that a new key goes to."""
        return self.target.known_hosts[0] if self.target else ""

    def place(self) -> str:
        """Return where the host was looked for, and which files say what its key should be."""
        if self.target is None:
            return "the way to it could not be told"
        files = ", ".join(self.target.known_hosts)
        return f"asked {self.target.host} port {self.target.port}; keys on record are in {files}"

    def line(self) -> str:
        """Return one line for people."""
        if self.error:
            return f"{self.host}: {self.error}"
        state = "already trusted" if self.known else "new"
        if self.recorded and not self.known:
            state = f"CHANGED, on record is {self.recorded}"
        return f"{self.host}: {self.kind} {self.fingerprint} ({state})"

    def as_json(self) -> dict[str, str]:
        return {
            "host": self.host,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "recorded": self.recorded,
            "error": self.error,
        }


def look(inventory: Inventory, names: tuple[str, ...]) -> list[Finding]:
    """Return each host's finding, jump hosts on the way first; one connection each, without logging in.

    A host behind a jump host that is not trusted yet cannot be looked at: its finding is an error.
    """

    def targets(name: str) -> tuple[Target, ...]:
        target = target_of(inventory, name)
        return (*target.jump, target)

    resolved, _ = fan_out(names, targets)
    distinct = {t.known_as: t for chain in resolved.values() for t in chain}
    findings, errors = fan_out(distinct, lambda known_as: _look_at(distinct[known_as]))
    return [
        findings[key] if key in findings else Finding(target.name, target, error=errors[key].what)
        for key, target in distinct.items()
    ]


def _look_at(target: Target) -> Finding:
    key = shown_key(target)
    known = recorded_key(target, key.get_name())
    recorded = known.fingerprint if known else ""
    return Finding(target.name, target, key.get_name(), key.fingerprint, recorded, key=key)


def record(found: Finding) -> Path:
    """Write the key to the known_hosts file that connections read; return that file."""
    assert found.target is not None
    return save_key(found.target, found.key)
