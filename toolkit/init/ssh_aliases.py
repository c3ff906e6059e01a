"""Aliases in ``~/.ssh/config``, and the address to which ssh connects for each; see ssh_config(5)."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from toolkit.hostsfile import fields
from toolkit.remote.fanout import fan_out
from toolkit.remote.ssh_config import Target, resolve_target

# As ssh: files that include files that include files end somewhere.
_DEEPEST = 16
_LARGEST = 1 << 20
# A keyword, and its arguments behind blanks or one '='.
_LINE = re.compile(r"\s*([A-Za-z]+)(?:\s*=\s*|\s+)(.*)")
_WORD = re.compile(r'"([^"]*)"|(\S+)')


@dataclass(frozen=True)
class Alias:
    """One name of ``~/.ssh/config``.

    Args:
        place: its user, host and port; empty if ssh cannot resolve it.
        bar: the reason why it cannot be a host of a cluster; empty if it can.
    """

    name: str
    place: str = ""
    bar: str = ""


def find_aliases(path: Path | None = None) -> tuple[Alias, ...]:
    """Return the aliases of an SSH configuration, ``~/.ssh/config`` by default, without contacting a host.

    They come in its order, and ``Include`` is followed.
    Of several names for the same place, only the first can be a host.
    """
    names = tuple(dict.fromkeys(_names(path or Path("~/.ssh/config").expanduser())))
    strange = {name: bar for name in names if (bar := _no_address(name))}
    spelled = {name.lower(): name for name in reversed(names)}
    strange |= {
        n: f"differs from {spelled[n.lower()]} only in case" for n in names if spelled[n.lower()] != n
    }
    targets, errors = fan_out([n for n in names if n not in strange], lambda name: resolve_target(name, name))
    strange |= {name: error.what for name, error in errors.items()}
    found: list[Alias] = []
    first: dict[tuple[str, str, int, tuple[Target, ...]], str] = {}
    for name in names:
        if name in strange:
            found.append(Alias(name, bar=strange[name]))
            continue
        target = targets[name]
        bar = "the alias logs in as user git" if target.user == "git" else ""
        if not bar:
            # Behind different jump hosts one private address is different machines.
            other = first.setdefault((target.user, target.host, target.port, target.jump), name)
            bar = f"same host as {other}" if other != name else ""
        found.append(Alias(name, target.login, bar))
    return tuple(found)


def _no_address(name: str) -> str:
    """Return the reason why the name is not allowed as an address in a hosts file; empty if it is."""
    try:
        fields.address(name)
    except ValueError as error:
        return str(error)
    return ""


def _names(path: Path, above: tuple[Path, ...] = ()) -> Iterator[str]:
    if path in above:
        return  # a file that includes itself twice would be read again and again
    try:
        if not path.is_file():
            return  # ssh also skips missing files, and a pipe can block for ever
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_LARGEST)
    except (OSError, ValueError):
        return
    for kind, word in parse_aliases(text):
        if kind == "host":
            yield word
        elif len(above) < _DEEPEST:
            # Relative to ~/.ssh, even if the file that includes it is in another folder.
            pattern = Path("~/.ssh").expanduser() / Path(word).expanduser()
            for each in sorted(glob.glob(str(pattern))):  # noqa: PTH207  (patterns here may be absolute)
                yield from _names(Path(each), (*above, path))


def parse_aliases(text: str) -> Iterator[tuple[Literal["host", "include"], str]]:
    """Yield each name of a ``Host`` line without wildcards, and each pattern of an ``Include``, in order.

    Patterns (``*``, ``?``, ``!``), which match other names, are skipped.
    """
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None or line.lstrip().startswith("#"):
            continue
        words = [quoted or bare for quoted, bare in _WORD.findall(match[2])]
        for index, word in enumerate(words):
            if word.startswith("#"):
                words = words[:index]
                break
        if match[1].lower() == "host":
            yield from (("host", word) for word in words if word and not set(word) & set("*?!"))
        elif match[1].lower() == "include":
            yield from (("include", word) for word in words if word)
