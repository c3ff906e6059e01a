"""A host's ssh key: the one that it shows, and the one in known_hosts."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import paramiko

from toolkit.effects.known_hosts import add_known_hosts, is_about
from toolkit.effects.ssh_config import Target
from toolkit.effects.ssh_connect import gateway_socket
from toolkit.errors import Unreachable

_SECONDS = 10.0


def shown_key(target: Target) -> Any:
    """Return the key that the host shows; nobody logs in.

    Raises:
        Unreachable: it does not answer, or speaks something else.
    """
    try:
        sock: Any = gateway_socket(target) or socket.create_connection((target.host, target.port), _SECONDS)
        transport = paramiko.Transport(sock)
        try:
            security = transport.get_security_options()
            # The kind that is on record if there is one, else ed25519: the key that everybody has today.
            kinds = security.key_types
            first = [k for k in kinds if recorded_key(target, k)] or ["ssh-ed25519"]
            security.key_types = (*first, *(k for k in kinds if k not in first))
            transport.start_client(timeout=_SECONDS)
            return transport.get_remote_server_key()
        finally:
            transport.close()
    except (OSError, paramiko.SSHException) as error:
        what = f"no ssh answers at {target.host} port {target.port}: {error}"
        raise Unreachable(what, f"ssh -p {target.port} {target.host}", target.name) from error


def recorded_key(target: Target, kind: str) -> Any:
    """Return the recorded key of this kind, None when no known_hosts file has one."""
    known = add_known_hosts(paramiko.HostKeys(), target.known_hosts).lookup(target.known_as)
    return known[kind] if known and kind in known else None


def save_key(target: Target, key: Any) -> Path:
    """Record the key in the first known_hosts file, in place of another of its kind; return the file."""
    shown = Path(target.known_hosts[0])
    path = shown.resolve()  # a link to somebody's dotfiles stays one
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = path.read_text().splitlines() if path.is_file() else []
    kept = [line for line in lines if not is_about(line, target.known_as, key.get_name())]
    entry = f"{target.known_as} {key.get_name()} {key.get_base64()}"
    new = path.with_name(f"{path.name}.toolkit-new")
    new.write_text("\n".join([*kept, entry]) + "\n")
    new.chmod(path.stat().st_mode & 0o777 if path.is_file() else 0o600)
    new.replace(path)
    return shown
