"""A host's ssh key: the one that it shows, what is on record about it, and how one is recorded."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import paramiko

from toolkit.core.files import locked, write_whole
from toolkit.errors import ToolkitError, Unreachable
from toolkit.protocol.frames import lines_of
from toolkit.remote.known_hosts import (
    Entry,
    Record,
    Verdict,
    names_of,
    parse_known_hosts,
    parse_line,
    parse_revoked_keys,
    record_of,
)
from toolkit.remote.local_image import default_cache
from toolkit.remote.ssh_config import Target

# The kinds of key behind the algorithms by which a host can prove that it has one (RFC 8332 for RSA).
_KIND_OF = {"rsa-sha2-512": "ssh-rsa", "rsa-sha2-256": "ssh-rsa"}


def record(target: Target) -> Record:
    """Return the host's entries in the known_hosts files that apply to it."""
    entries: list[Entry] = []
    for name in (*target.known_hosts, *target.global_known_hosts):
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # ssh also skips files that are missing or unreadable
        entries += parse_known_hosts(text, name)
    return record_of(entries, names_of(target.host, target.port, target.alias))


def judge(target: Target, known: Record, key: Any) -> Verdict:
    """Return what to make of a key that the host shows, RevokedHostKeys included.

    Raises:
        Unreachable: the list of revoked keys cannot be read; as with ssh, no key is good then.
    """
    verdict = known.judge(key.get_base64())
    if target.revoked_keys and key.get_base64() in _revoked(target):
        return "revoked"
    return verdict


def _revoked(target: Target) -> frozenset[str]:
    path = Path(target.revoked_keys).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"RevokedHostKeys {path} cannot be read: {error.strerror}"
        fix = "in the SSH configuration: set RevokedHostKeys to a file that you can read"
        raise Unreachable(what, fix, target.name) from error
    if data.startswith(b"SSHKRL\n\0"):
        what = f"RevokedHostKeys {path} is a key revocation list, which toolkit does not support"
        raise Unreachable(what, "replace the file with a list of public keys, one on each line", target.name)
    return parse_revoked_keys(data.decode(errors="replace"))


def prefer_recorded(transport: paramiko.Transport, known: Record) -> None:
    """Request first the recorded kinds of key, otherwise ed25519, which every current sshd has."""
    security = transport.get_security_options()
    wanted = known.kinds() or ("ssh-ed25519",)
    first = [k for kind in wanted for k in security.key_types if _KIND_OF.get(k, k) == kind]
    security.key_types = (*first, *(k for k in security.key_types if k not in first))


def file_for_keys(target: Target) -> Path:
    """Return the known_hosts file for a new key of the host.

    Raises:
        Unreachable: ssh's configuration names no file to record keys in, or one that is not a regular file.
    """
    fix = "in hosts.yaml: set known_hosts: FILE"
    if not target.known_hosts:
        what = "the SSH configuration sets UserKnownHostsFile none, so toolkit has no file for the host key"
        raise Unreachable(what, fix, target.name)
    path = Path(target.known_hosts[0])
    with contextlib.suppress(OSError):  # ``save_key`` reports it
        # Some configurations name /dev/null. Writing would replace the device with a file.
        if path.exists() and not path.is_file():
            what = f"{path} is the file for SSH host keys, but not a regular file"
            raise Unreachable(what, fix, target.name)
    return path


def save_key(target: Target, key: Any) -> Path:
    """Record the key in the user's first known_hosts file, and return this file.

    Other keys of the host are removed from all known_hosts files that the user can write. Lines with patterns
    stay: they are about other hosts too. A line that also names other hosts stays for these.

    Raises:
        Unreachable: see ``file_for_keys``.
        ToolkitError: the file cannot be read, or a file cannot be written.
    """
    shown = file_for_keys(target)
    # Another command of this user, for another cluster, can record keys in the same file at this moment.
    with locked(Path(default_cache(os.environ)) / "known_hosts.lock", lambda: None):
        # The other files are first, so that an error means that the key is not recorded.
        for name in target.known_hosts[1:]:
            with contextlib.suppress(OSError):  # ssh also skips files that are missing or unreadable
                path = Path(os.path.realpath(name))  # before Python 3.13, resolve() refuses a loop of links
                lines, mode = _read(path)
                # A file of the administrator stays, as the global files do.
                if (kept := _without_host(lines, target.known_as)) != lines and os.access(path, os.W_OK):
                    _write(path, kept, mode)
        try:
            path = shown.resolve()  # a link, for example to dotfiles, stays a link
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lines, mode = _read(path)
        except OSError as error:
            what = f"cannot use {shown} as the file for SSH host keys: {error.strerror}"
            raise ToolkitError(what, "in hosts.yaml: set known_hosts: FILE", target.name) from error
        entry = f"{target.known_as} {key.get_name()} {key.get_base64()}"
        _write(path, [*_without_host(lines, target.known_as), entry], mode)
    return shown


def _read(path: Path) -> tuple[list[str], int]:
    """Return the lines and the mode of a known_hosts file; those of a new file if it is no regular file."""
    if not path.is_file():
        return [], 0o600
    # surrogateescape: comments in another encoding are preserved.
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    return list(lines_of(text)), path.stat().st_mode & 0o777


def _write(path: Path, lines: list[str], mode: int) -> None:
    write_whole(path, "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape"), mode)


def _without_host(lines: list[str], name: str) -> list[str]:
    rest = (_without(line, name) for line in lines)
    return [line for line in rest if line is not None]


def _without(line: str, name: str) -> str | None:
    """Return the line without a key of the host, None if the line names no other host."""
    entry = parse_line(line)
    if entry is None or entry.marker or set(entry.names) & set("*?!") or not entry.is_about(name):
        return line
    if entry.names.startswith("|"):  # one hashed name
        return None
    others = ",".join(n for n in entry.names.split(",") if n.lower() != name.lower())
    return line.replace(entry.names, others, 1) if others else None


def plain_socket(target: Target, seconds: float) -> socket.socket:
    """Return a TCP connection to the target."""
    return socket.create_connection((target.host, target.port), seconds)
