"""known_hosts files as paramiko can use them: lines that it cannot read are passed over, not fatal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import paramiko


def add_known_hosts(known: paramiko.HostKeys, paths: tuple[str, ...]) -> paramiko.HostKeys:
    """Add the keys of these files; the first of its kind counts for a name. Returns ``known``.

    Certificate authorities are not supported by paramiko, and such lines are passed over. A key that
    is marked as revoked is left out under every name.
    """
    lines = [line for path in paths if Path(path).is_file() for line in _lines(Path(path))]
    revoked = {line.split()[3] for line in lines if line.startswith("@revoked") and len(line.split()) > 3}
    for line in lines:
        entry = parse_line(line)
        if entry is None or entry.key.get_base64() in revoked:
            continue
        for name in entry.hostnames:
            if entry.key.get_name() not in (known.lookup(name) or {}):
                known.add(name, entry.key.get_name(), entry.key)
    return known


def parse_line(line: str) -> Any:
    """Return the entry of one line, None when it holds none or one that paramiko cannot read."""
    if not line.strip() or line.lstrip().startswith(("#", "@")):
        return None
    try:
        return paramiko.hostkeys.HostKeyEntry.from_line(line)
    except Exception:  # paramiko raises what its decoders raise
        return None


def is_about(line: str, name: str, kind: str) -> bool:
    """Tell whether a line holds a key of this kind under this name, hashed or not."""
    entry = parse_line(line)
    if entry is None or entry.key.get_name() != kind:
        return False
    known = paramiko.HostKeys()
    for written in entry.hostnames:
        known.add(written, kind, entry.key)
    return known.lookup(name) is not None


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()
