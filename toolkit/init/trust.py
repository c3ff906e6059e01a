"""SSH keys of hosts: the key that each host presents, the recorded key, and recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import target_of
from toolkit.remote.connect import Gateways, Link
from toolkit.remote.fanout import fan_out
from toolkit.remote.host_keys import file_for_keys, judge, save_key
from toolkit.remote.host_keys import record as known_record
from toolkit.remote.known_hosts import Verdict
from toolkit.remote.ssh_config import Target


@dataclass(frozen=True)
class ShownKey:
    """The SSH key that one host presents, compared with the recorded key.

    Args:
        fingerprint: SHA256 of the key that the host presents, as ``ssh-keygen -l`` prints it.
        recorded: fingerprint of the recorded key of that kind; without one, kind and fingerprint of each key
            that is recorded for the host.
        verdict: the result of a connection with this key.
        failure: the reason for a missing key, or for a key that must not be recorded; None for neither.
    """

    host: str
    target: Target | None
    kind: str = ""
    fingerprint: str = ""
    recorded: str = ""
    verdict: Verdict = "unknown"
    failure: ToolkitError | None = None
    key: Any = field(default=None, repr=False, compare=False)

    @property
    def error(self) -> str:
        """The failure as one line; empty without a failure."""
        return self.failure.what if self.failure else ""

    @property
    def fix(self) -> str:
        """The fix of the failure; empty if there is none."""
        return self.failure.fix if self.failure else ""

    @property
    def known(self) -> bool:
        return self.verdict == "good"

    @property
    def trusted(self) -> bool:
        """True if connections accept the key."""
        return self.known and self.failure is None

    @property
    def changed(self) -> bool:
        return self.verdict == "changed"

    @property
    def file(self) -> str:
        """The known_hosts file for a new key.

        Raises:
            Unreachable: the SSH configuration names no file for SSH host keys.
        """
        return str(file_for_keys(self.target)) if self.target else ""

    def place(self) -> str:
        """Return the address that was queried, and the files with recorded keys."""
        if self.target is None:
            return "cannot resolve the SSH address of the host"
        files = ", ".join(self.target.known_hosts) or "no file"
        return f"queried {self.target.host} port {self.target.port}; recorded keys are in {files}"

    def line(self) -> str:
        """Return one line of text, and a failure's fix below it."""
        if self.error:
            return f"{self.host}: {self.error}" + (f"\n    fix: {self.fix}" if self.fix else "")
        state = {"good": "already trusted", "changed": f"CHANGED, the recorded key is {self.recorded}"}
        return f"{self.host}: {self.kind} {self.fingerprint} ({state.get(self.verdict, 'new')})"

    def as_json(self) -> dict[str, str]:
        return {
            "host": self.host,
            "kind": self.kind,
            "fingerprint": self.fingerprint,
            "recorded": self.recorded,
            "error": self.error,
            "fix": self.fix,
        }


# Addresses from your machine to a host; the same private address can belong to two hosts.
_Route = tuple[tuple[str, str, int, str], ...]


def shown_keys(inventory: Inventory, names: tuple[str, ...]) -> list[ShownKey]:
    """Return the key that each host presents, jump hosts first; one connection each, without a login.

    A host behind a jump host that is not trusted yet cannot be queried: it has an error. Keys of different
    hosts that known_hosts cannot distinguish have an error, unless they are recorded.
    """

    def targets(name: str) -> tuple[Target, ...]:
        target = target_of(inventory, name)
        return (*target.jump, target)

    resolved, lost = fan_out(dict.fromkeys((*names, *inventory.names)), targets)
    distinct = {_route(t): t for name in names for t in resolved.get(name, ())}
    known_as = {t.known_as for t in distinct.values()}
    others = {_route(t): t for chain in resolved.values() for t in chain if t.known_as in known_as}
    queried = {**others, **distinct}
    gateways: Gateways = {}
    shown, errors = fan_out(queried, lambda route: _look_at(queried[route], gateways))
    shown |= {route: ShownKey(queried[route].name, queried[route], failure=e) for route, e in errors.items()}
    return [
        *(_distinguished(route, shown) for route in distinct),
        *(ShownKey(name, None, failure=error) for name, error in lost.items() if name in names),
    ]


def _route(target: Target) -> _Route:
    return tuple((each.known_as, each.host, each.port, each.proxy) for each in (*target.jump, target))


def _distinguished(route: _Route, shown: Mapping[_Route, ShownKey]) -> ShownKey:
    """Return the key of a route, with a failure if another host has the same name in known_hosts."""
    found = shown[route]
    target = found.target
    if target is None or found.failure or found.known:
        return found
    for place, other in shown.items():
        # Without a key of the other host, the recorded key that differs can be its key.
        unequal = other.fingerprint != found.fingerprint if other.fingerprint else found.changed
        if place != route and place[-1][0] == target.known_as and unequal:
            what = (
                f"known_hosts cannot distinguish the SSH host keys of {found.host} and {other.host}, because "
                f"both hosts have the name {target.known_as}"
            )
            name = found.host
            alias = f"add Host {name} with HostName {target.host} and HostKeyAlias {name}"
            alias += f"; in hosts.yaml: set hosts/{name}/address to {name}"
            if target.is_jump:
                alias = "set a different HostKeyAlias for each of these jump hosts"
            return replace(found, failure=ToolkitError(what, f"in ~/.ssh/config: {alias}", name))
    return found


def _look_at(target: Target, gateways: Gateways) -> ShownKey:
    link = Link(target, gateways=gateways)
    try:
        key = link.shown_key()
    finally:
        link.close()
    known = known_record(target)
    verdict = judge(target, known, key)
    kind = key.get_name()
    recorded = ", ".join(
        e.fingerprint if e.kind == kind else f"{e.kind} {e.fingerprint}" for e in known.compared(kind)
    )
    failure = None
    if verdict == "revoked":
        what = f"the SSH host key {key.fingerprint} is REVOKED, so toolkit does not record the key"
        failure = ToolkitError(what, "ask the administrator of the host for a new SSH host key", target.name)
    return ShownKey(target.name, target, kind, key.fingerprint, recorded, verdict, failure, key=key)


def record(found: ShownKey) -> Path:
    """Write the key to the known_hosts file that connections read; return that file."""
    assert found.target is not None
    return save_key(found.target, found.key)
