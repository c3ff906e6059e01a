"""Records about one host in known_hosts files: text in, verdict out; sshd(8) defines the format."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from toolkit.protocol.frames import lines_of

REVOKED, AUTHORITY = "@revoked", "@cert-authority"

Verdict = Literal["good", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Entry:
    """One key of a known_hosts file.

    Args:
        names: the first field, unchanged: comma-separated patterns, or one hashed name.
        key: the public key in base64.
        where: file and line, for messages.
        marker: REVOKED, AUTHORITY or empty.
    """

    names: str
    kind: str
    key: str
    where: str = ""
    marker: str = ""

    def is_about(self, name: str) -> bool:
        """Return whether the entry is about the host; patterns and hashed names as in ssh."""
        if self.names.startswith("|"):
            return _is_hash_of(self.names, name.lower())
        matched = False
        for pattern in self.names.lower().split(","):
            if _matches(pattern.removeprefix("!"), name.lower()):
                if pattern.startswith("!"):
                    return False
                matched = True
        return matched

    @property
    def fingerprint(self) -> str:
        return fingerprint(base64.b64decode(self.key))


@dataclass(frozen=True)
class Record:
    """The known_hosts entries of one host.

    Args:
        keys: keys that the host can present.
        elsewhere: keys recorded for its name without the port. One of them is accepted. Any other key is
            unknown, not changed, because these keys can belong to an sshd on the default port.
        revoked: keys that the host must not present, independent of other entries.
        authorities: certificate authorities for the host; toolkit does not read certificates.
    """

    keys: tuple[Entry, ...] = ()
    elsewhere: tuple[Entry, ...] = ()
    revoked: tuple[Entry, ...] = ()
    authorities: tuple[Entry, ...] = ()

    def judge(self, key: str) -> Verdict:
        """Return what to make of a key, in base64, that the host shows."""
        if any(e.key == key for e in self.revoked):
            return "revoked"
        if any(e.key == key for e in (*self.keys, *self.elsewhere)):
            return "good"
        # As with ssh, also if only keys of other kinds are recorded: the host is requested to present one of
        # these first, and an attacker could present another kind to be taken for a new host.
        return "changed" if self.keys else "unknown"

    def compared(self, kind: str) -> tuple[Entry, ...]:
        """Return the keys to compare with a key of the host: those of its kind, without one all."""
        return tuple(e for e in self.keys if e.kind == kind) or self.keys

    def kinds(self) -> tuple[str, ...]:
        """Return the kinds of the keys on record, those of the host's own port first."""
        return tuple(dict.fromkeys(e.kind for e in (*self.keys, *self.elsewhere)))


def names_of(host: str, port: int, alias: str = "") -> tuple[str, ...]:
    """Return the names under which a host can be listed, the preferred name first."""
    if alias:
        return (alias,)
    return (host,) if port == 22 else (f"[{host}]:{port}", host)


def record_of(entries: Iterable[Entry], names: tuple[str, ...]) -> Record:
    """Return the recorded keys of the host with these names (see ``names_of``)."""
    entries = list(entries)

    def about(marker: str, among: tuple[str, ...]) -> tuple[Entry, ...]:
        return tuple(e for e in entries if e.marker == marker and any(e.is_about(n) for n in among))

    return Record(about("", names[:1]), about("", names[1:]), about(REVOKED, names), about(AUTHORITY, names))


def parse_known_hosts(text: str, file: str = "") -> tuple[Entry, ...]:
    """Return the entries of a file; comments and lines without a key are skipped."""
    lines = enumerate(lines_of(text), 1)
    parsed = (parse_line(line, f"{file} line {number}") for number, line in lines)
    return tuple(entry for entry in parsed if entry is not None)


def parse_line(line: str, where: str = "") -> Entry | None:
    """Return the entry of one line, None when it holds none."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#") or marker not in ("", REVOKED, AUTHORITY):
        return None
    names, kind, key = words[:3]
    if not _is_key_of(kind, key):
        return None
    return Entry(names, kind, key, where, marker)


def parse_revoked_keys(text: str) -> frozenset[str]:
    """Return the keys, in base64, of a RevokedHostKeys file that is a list of public keys."""
    words = (line.split() for line in text.splitlines() if not line.lstrip().startswith("#"))
    return frozenset(row[1] for row in words if len(row) > 1 and _is_key_of(row[0], row[1]))


def fingerprint(key: bytes) -> str:
    """Return a public key's fingerprint as ``ssh-keygen -l`` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(key).digest()).decode().rstrip("=")


def _is_key_of(kind: str, key: str) -> bool:
    try:
        data = base64.b64decode(key, validate=True)
    except (binascii.Error, ValueError):
        return False
    # RFC 4253, section 6.6: the blob begins with the length and the text of its kind.
    return data[4 : 4 + int.from_bytes(data[:4], "big")] == kind.encode()


def _matches(pattern: str, name: str) -> bool:
    # Not fnmatch: ssh treats brackets as letters, and puts them around every host with a port.
    parts = ({"*": ".*", "?": "."}.get(letter) or re.escape(letter) for letter in pattern)
    return re.fullmatch("".join(parts), name) is not None


def _is_hash_of(text: str, name: str) -> bool:
    """``|1|SALT|HASH``: HMAC-SHA1 of the name under the salt, both in base64."""
    parts = text.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, wanted = (base64.b64decode(part, validate=True) for part in parts[2:])
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), wanted)
