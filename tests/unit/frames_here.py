"""Framed answers as a host's shell prints them."""

from __future__ import annotations

NONCE = "0123456789abcdef"


def framed(nonce: str, **sections: str) -> bytes:
    """Return an answer of these sections; an underscore in a name stands for a dash."""
    found = b""
    for name, content in {**sections, "end": ""}.items():
        data = content.encode(errors="surrogateescape")
        found += b"\n%s %s %d\n%s" % (nonce.encode(), name.replace("_", "-").encode(), len(data), data)
    return found
