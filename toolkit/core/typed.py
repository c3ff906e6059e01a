"""Types of the values that one host sends and toolkit passes on to other hosts.

Output of a host is untrusted. A value with a second line would become another host's line in a file that
lists all hosts.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from enum import Enum

# The SSH wire format (RFC 8709, section 4): the length and name of the key type, then the length of the key.
_ED25519 = "ssh-ed25519"
_HEAD = b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00\x20"
_KEY_BYTES = len(_HEAD) + 32
_SHOWN = 60


class Kind(Enum):
    """Type of a value; the text is the name of the type in errors."""

    PUBLIC_KEY = "a public key: one line ssh-ed25519 BASE64"
    CONTAINER_ID = "a container ID: 64 hexadecimal digits"
    ADDRESS = "an IPv4 or IPv6 address"
    ENDED_JOBS = "one line over: /JOB//JOB/"
    # For the report of the same plan alone, so any text will do. Later steps cannot name it.
    REPORT = "text"

    def parse(self, text: str) -> str:
        """Return the value without the whitespace around it.

        Raises:
            ValueError: the text is not exactly one value of this type; the message quotes the text.
        """
        value = text.strip()
        try:
            if _matches(self, value):
                return value
        except ValueError:
            pass
        # The quotation is escaped, because it can contain control characters.
        found = repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}…"
        raise ValueError(f"expected {self.value}, found {found}")

    def accepts(self, text: str) -> bool:
        """Return whether the text is one value of this type, without whitespace around it."""
        try:
            return _matches(self, text)
        except ValueError:
            return False


def _matches(kind: Kind, value: str) -> bool:
    if kind is Kind.PUBLIC_KEY:
        name, _, data = value.partition(" ")
        raw = base64.b64decode(data, validate=True)
        # Encoded again, because several texts decode to the same bytes.
        same = base64.b64encode(raw).decode() == data
        return name == _ED25519 and raw.startswith(_HEAD) and len(raw) == _KEY_BYTES and same
    if kind is Kind.CONTAINER_ID:
        return re.fullmatch(r"[0-9a-f]{64}", value) is not None
    if kind is Kind.ADDRESS:
        # A zone, as in fe80::1%eth0, is free text.
        return "%" not in value and bool(ipaddress.ip_address(value))
    if kind is Kind.ENDED_JOBS:
        return re.fullmatch(r"over:( (/[^/\x00-\x1f\x7f]+/)+)?", value) is not None
    return True
