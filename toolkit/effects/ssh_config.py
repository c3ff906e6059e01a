"""Where and as whom to connect: ``ssh -G`` resolves aliases, Include and ProxyJump as ssh would."""

from __future__ import annotations

import getpass
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.errors import Unreachable


@dataclass(frozen=True)
class Target:
    """One place to connect to; ``jump`` is the chain of hosts on the way, nearest to us first."""

    name: str
    host: str
    user: str = ""
    port: int = 22
    identity_files: tuple[str, ...] = ()
    identities_only: bool = False
    known_hosts: tuple[str, ...] = ()
    jump: tuple[Target, ...] = ()

    @property
    def known_as(self) -> str:
        """The name under which known_hosts lists the host."""
        return self.host if self.port == 22 else f"[{self.host}]:{self.port}"


def resolve_target(
    name: str,
    address: str,
    user: str = "",
    port: int = 0,
    identity_file: str = "",
    jump: str = "",
    known_hosts: str = "",
) -> Target:
    """Return where to connect to; what is given here wins over ``~/.ssh/config``.

    Without an ssh program on this machine the values given here stand alone.

    Raises:
        Unreachable: the way there is a ProxyCommand.
    """
    options = _ssh_g(address)
    files = options.get("identityfile", [])
    expanded = tuple(str(Path(f).expanduser()) for f in ([identity_file] if identity_file else files))
    configured = options.get("userknownhostsfile", ["~/.ssh/known_hosts"])[0].split()
    trusted = [known_hosts] if known_hosts else configured
    if not jump and options.get("proxycommand", ["none"]) != ["none"]:
        what = f"ssh reaches {address} by a ProxyCommand, which is not supported here"
        raise Unreachable(what, "name the host in between: jump: in the hosts file, or ProxyJump", name)
    via = jump or next(iter(options.get("proxyjump", [])), "none")
    return Target(
        name=name,
        host=next(iter(options.get("hostname", [])), address),
        user=user or next(iter(options.get("user", [])), "") or getpass.getuser(),
        port=port or int(next(iter(options.get("port", [])), "22")),
        identity_files=expanded,
        identities_only=bool(identity_file) or options.get("identitiesonly") == ["yes"],
        known_hosts=tuple(str(Path(f).expanduser()) for f in trusted),
        jump=() if via == "none" else _hops(name, via, known_hosts, identity_file),
    )


def _hops(name: str, via: str, known_hosts: str, identity_file: str) -> tuple[Target, ...]:
    hops: tuple[Target, ...] = ()
    for text in via.split(","):
        user, _, place = text.removeprefix("ssh://").rpartition("@")
        host, _, port = place.partition(":")
        # Its own ProxyJump counts only where it is the first, as with ssh's -J.
        hop = resolve_target(name, host, user, int(port or 0), identity_file, "none", known_hosts)
        hops += (replace(hop, name=f"{name} (jump host {host})", jump=hops),)
    return hops


def _ssh_g(address: str) -> dict[str, list[str]]:
    try:
        done = subprocess.run(
            ["ssh", "-G", "--", address], capture_output=True, text=True, timeout=10, check=False
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    options: dict[str, list[str]] = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else ():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(value)
    return options
