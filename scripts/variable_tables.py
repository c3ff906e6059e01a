"""Writes the tables of variables that an image's own programs can list, from what they print.

    docker run --rm toolkit:cpu ompi_info --all --parsable | python3 scripts/variable_tables.py openmpi
    ucx_info -cfa | python3 scripts/variable_tables.py ucx

ucx_info is in Debian's ucx-utils, of the version of the image's libucx0. Only the lines of variables are
printed; the head of each file, with its source, stays as it is.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator

# Frameworks that only mpirun and its daemons open: a rank never reads their parameters.
_LAUNCHER = {"filem", "grpcomm", "iof", "oob", "odls", "plm", "ras", "regx", "rmaps", "rml", "routed", "rtc"}
_LAUNCHER |= {"snapc", "sstore"}
_LAUNCHER_NAMES = {"hwloc_base_binding_policy", "hwloc_base_cpu_list", "hwloc_base_report_bindings"}
# What ranks choose by name among components: the choice is checked.
_CHOICES = ("bml", "btl", "coll", "io", "mtl", "osc", "pml")
_FLAGS = re.compile(r"_flags$|^op_avx_")  # combinations of words, or their sum


def openmpi(lines: Iterable[str]) -> Iterator[str]:
    """Return a line for each MCA parameter that ``ompi_info --all --parsable`` lists."""
    params: dict[str, dict[str, str]] = {}
    enums: dict[str, list[str]] = {}
    components: dict[str, set[str]] = {}
    for line in lines:
        if match := re.match(r"mca:(\w+):(\w+):version:", line):
            components.setdefault(match[1], set()).add(match[2])
        match = re.match(r"mca:([^:]+):[^:]+:param:([^:]+):(\w+):(.*)", line)
        if match and match[3] == "enumerator":
            enums.setdefault(match[2], []).append(match[4].removeprefix("value:"))
        elif match:
            params.setdefault(match[2], {"framework": match[1]})[match[3]] = match[4].strip()
    for name, param in sorted(params.items()):
        if param.get("synonym_of", "").removeprefix("name:") not in params:
            param.pop("synonym_of", None)  # the new name is not this build's
        kind = _mca_kind(name, param, enums.get(name, []), components)
        yield f"OMPI_MCA_{name} {kind}"


def _mca_kind(name: str, param: dict[str, str], enum: list[str], components: dict[str, set[str]]) -> str:
    now = param.get("synonym_of", "").removeprefix("name:")
    if {param["framework"], now.partition("_")[0]} & _LAUNCHER or {name, now} & _LAUNCHER_NAMES:
        return "launcher mpirun"
    if param.get("deprecated") == "yes" and now:
        return f"renamed OMPI_MCA_{now}"
    if name in _CHOICES:
        return f"components {' '.join(sorted(components[name]))}"
    if re.search(r"_tcp_if_(in|ex)clude$", name):
        return "interfaces-or-networks"
    if param["type"] == "bool":
        return "mca-flag"
    if enum and name.endswith("_base_verbose"):
        return " ".join(("mca-level", *(pair.partition(":")[2] for pair in enum)))
    if enum and not _FLAGS.search(name):
        pairs = [pair.partition(":") for pair in enum]
        return " ".join(("knows", *(p[2] for p in pairs), *(p[0] for p in pairs)))
    if param["type"] == "string" or enum:
        return "text"
    return "mca-number"


def ucx(lines: Iterable[str]) -> Iterator[str]:
    """Return a line for each variable that ``ucx_info -cfa`` lists."""
    kinds: dict[str, str] = {}
    syntax = ""
    for line in lines:
        if match := re.match(r"# syntax:\s+(.+?)\s*$", line):
            syntax = match[1]
        elif match := re.match(r"(UCX_\w+)=", line):
            kinds[match[1]] = _ucx_kind(syntax)
    yield from (f"{name} {kind}" for name, kind in sorted(kinds.items()))


def _ucx_kind(syntax: str) -> str:
    flag = ("y", "n", "yes", "no", "1", "0")
    extra = {
        "<y|n>": (),
        "<yes|no|try>": ("try", "maybe"),
        "<yes|no|try|auto>": ("try", "maybe", "auto"),
        "<on|off|auto>": ("on", "off", "auto", "try", "maybe"),
    }
    if syntax in extra:
        return " ".join(("knows", *flag, *extra[syntax]))
    if match := re.fullmatch(r"\[([A-Za-z0-9_|]+)\]", syntax):
        return " ".join(("knows", *match[1].split("|")))
    return "text"


if __name__ == "__main__":
    make = {"openmpi": openmpi, "ucx": ucx}[sys.argv[1]]
    print("\n".join(make(sys.stdin)))
