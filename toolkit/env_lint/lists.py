"""Checks of values that are lists of interfaces, networks, components or algorithms."""

from __future__ import annotations

import ipaddress
import re

from toolkit.env_lint.variables import Complaint, Variable, listed
from toolkit.hostsfile.errors import shown

_INTERFACE = re.compile(r"[^\s/^=*?\[\],]{1,15}")  # Linux allows at most 15 bytes, without spaces and /
_FUNCTIONS = ("AllReduce", "AllGather", "ReduceScatter", "Broadcast", "Reduce")


def judge_tokens(variable: Variable, value: str) -> Complaint | None:
    """Check ``INIT,NET`` or ``^COLL``; the library ignores unknown words without a message."""
    known = {word.lower() for word in variable.words}
    wrong = [t for t in value.removeprefix("^").split(",") if t and t.lower() not in known]
    if not wrong:
        return None
    what = f"{variable.library} ignores {listed(map(shown, wrong))} in {variable.name}"
    return Complaint(
        "warning", what, f"set {variable.name} to a list that contains only {listed(variable.words)}"
    )


def judge_per_function(variable: Variable, value: str) -> Complaint | None:
    """Check ``Ring,Tree`` or ``^Tree``, and ``;AllReduce:Ring`` after it for single functions."""
    library, known = variable.library, {word.lower() for word in variable.words}
    parts = [part for part in value.split(";") if part]
    if not all(":" in part for part in parts[1:]):
        what = f"{library} fails because {variable.name} contains a list without a function after a semicolon"
        return Complaint("error", what, "write FUNCTION:LIST after each semicolon")
    for part in parts:
        function, _, names = part.rpartition(":")
        if function and function.lower() not in map(str.lower, _FUNCTIONS):
            what = f"{library} fails because {variable.name} contains an unknown function"
            return Complaint("error", what, f"use only the functions {listed(_FUNCTIONS)}")
        wrong = [n for n in names.removeprefix("^").split(",") if n and n.lower() not in known]
        if wrong:
            unknown = f"the unknown {'value' if len(wrong) == 1 else 'values'} {listed(map(shown, wrong))}"
            what = f"{library} fails because {variable.name} contains {unknown}"
            return Complaint("error", what, f"use only {listed(variable.words)}, or remove {variable.name}")
    return None


def judge_prefixes(variable: Variable, value: str) -> Complaint | None:
    """Check NCCL's ``eth,en``, ``=eth0,eth1``, ``^docker,lo``, ``^=docker0``."""
    fix = f"set {variable.name} to prefixes (eth,en), exact names (=eth0) or excluded prefixes (^docker,lo)"
    names = value.removeprefix("^").removeprefix("=").split(",")
    wrong = [n for n in names if n and (re.search(r"[*?\[\]^=\s/]", n) or _is_address(n))]
    if wrong:
        none = len(wrong) == len(names) and not value.startswith("^")
        how = f"{variable.name} is a list of interface names or prefixes, after an optional ^, = or ^="
        match = "matches" if len(wrong) == 1 else "match"
        what = f"{listed(map(shown, wrong))} {match} no interface{', so NCCL fails' if none else ''}: {how}"
        return Complaint("error" if none else "warning", what, fix)
    return _loopback(variable, value.removeprefix("="))


def judge_interfaces(variable: Variable, value: str) -> Complaint | None:
    """Check complete interface names for Gloo, which raises an error for every other word."""
    if all(_is_interface(name) for name in value.split(",")):
        return _loopback(variable, value)
    what = f"{variable.library} fails because {variable.name} contains a word that is not an interface name"
    fix = (
        f"set {variable.name} to an exact interface name, in hosts/NAME/env if the names differ between hosts"
    )
    return Complaint("error", what, fix)


def judge_interfaces_or_networks(variable: Variable, value: str) -> Complaint | None:
    """Check Open MPI's ``eth0,192.0.2.0/24``; Open MPI prints a warning for other words and ignores them."""
    if all(_is_network(name) or _is_interface(name) for name in value.split(",") if name):
        return None
    what = (
        f"{variable.library} ignores each word of {variable.name} that is not an interface name or a network"
    )
    return Complaint(
        "warning", what, f"set {variable.name} to interface names or networks, as in eth0,192.0.2.0/24"
    )


def judge_components(variable: Variable, value: str) -> Complaint | None:
    """Check Open MPI's ``self,tcp`` or ``^openib``."""
    library, names = variable.library, value.removeprefix("^").split(",")
    if any("^" in name for name in names):
        what = f"{library} fails because {variable.name} contains a ^ that is not the first character"
        fix = f"set {variable.name} to the components to use, or to ^ and the components to exclude"
        return Complaint("error", what, fix)
    if value.startswith("^"):
        return None
    wrong = [name for name in names if name and name not in variable.words]
    if wrong:
        better = " (vader replaced sm)" if wrong == ["sm"] and "vader" in variable.words else ""
        missing = " or ".join(map(shown, wrong))
        what = f"{library} in toolkit's images fails, because this build has no component {missing}"
        return Complaint("error", what, f"use only the components {listed(variable.words)}{better}")
    if "vader" in variable.words and "self" not in names:
        what = f"{library} fails because no rank can send to itself without the component self"
        return Complaint("error", what, f"set {variable.name}=self,{value}")
    return None


def _loopback(variable: Variable, value: str) -> Complaint | None:
    if value != "lo":
        return None
    what = f"{variable.name} selects the loopback interface, which cannot connect to other hosts"
    return Complaint("warning", what, f"remove {variable.name}")


def _is_interface(text: str) -> bool:
    return bool(_INTERFACE.fullmatch(text)) and not _is_address(text)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text
