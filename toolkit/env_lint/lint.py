"""Environment lint: variables of communication libraries that do not have their intended effect.

Only names with a prefix that belongs to one of these libraries are checked.
To keep secrets out of findings, a value is shown only if a table defines its format or it is a known word.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from toolkit.core.finding import Finding, Verdict
from toolkit.env_lint.rules import find_conflicts, find_costs
from toolkit.env_lint.values import judge_value
from toolkit.env_lint.variables import Complaint, Setting, Table, Variable, nearest, table_of
from toolkit.hostsfile.inventory import Inventory
from toolkit.network.settings import usual_variables

CHECK = "environment"

# Variables that toolkit sets on each host, with a description of the value.
_PER_HOST = usual_variables()

Pairs = Sequence[tuple[str, str]]


def lint_environment(env: Pairs, where: str, host: str = "") -> tuple[Finding, ...]:
    """Return findings about variables from one place.

    Args:
        where: the prefix of a variable's name there: ``env/``, ``hosts/gpu1/env/``, ``--env ``.
        host: the only host that receives them; empty for all hosts.
    """
    return _lint({name: Setting(name, value, where, host) for name, value in env})


def lint_inventory(
    inventory: Inventory, override: Pairs = (), hosts: Sequence[str] | None = None
) -> tuple[Finding, ...]:
    """Return findings about the variables as ranks receive them, for every version of the libraries.

    Variables of a host override variables of the file, and the command line overrides both. An overridden
    variable is not checked. A finding for all hosts is reported once, without a host.

    Args:
        override: variables of the command line.
        hosts: the hosts that take part; all hosts if None.
    """
    found: dict[Finding, None] = {}
    for settings in _received(inventory, override, hosts):
        found |= dict.fromkeys(_lint(settings))
    return tuple(found)


def lint_nccl(
    inventory: Inventory, nccl: str, override: Pairs = (), hosts: Sequence[str] | None = None
) -> tuple[Finding, ...]:
    """Return findings about variables that only a newer NCCL reads than that of the image.

    Args:
        nccl: version of the image's NCCL as stated by the image, such as 2.29.7; other text is ignored.
        override, hosts: see ``lint_inventory``.
    """
    found: dict[Finding, None] = {}
    has = _number(nccl)
    for settings in _received(inventory, override, hosts) if has else ():
        for setting in settings.values():
            table = table_of(setting.name)
            variable = table.variables.get(setting.name) if table else None
            if variable and variable.kind == _LATER and has < _number(variable.words[0]):
                what = (
                    f"only {variable.library} {variable.words[0]} or newer reads {variable.name}, "
                    f"but the image has {variable.library} {'.'.join(map(str, has))}"
                )
                fix = f"remove {variable.name}, or run: toolkit image build --nccl VERSION"
                found[_finding(setting, Complaint("warning", what, fix))] = None
    return tuple(found)


def _received(
    inventory: Inventory, override: Pairs, hosts: Sequence[str] | None
) -> Iterator[Mapping[str, Setting]]:
    """Yield the variables that the ranks of each host receive."""
    shared = {name: Setting(name, value, "env/") for name, value in inventory.env}
    last = {name: Setting(name, value, "--env ") for name, value in override}
    for host in inventory.hosts:
        if hosts is None or host.name in hosts:
            where = f"hosts/{host.name}/env/"
            own = {name: Setting(name, value, where, host.name) for name, value in host.env}
            yield {**shared, **own, **last}


def _number(version: str) -> tuple[int, ...]:
    """Return the numbers of a version such as 2.29.7 or 2.18.3-1; empty for other text."""
    found = re.match(r"([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?(?![0-9])", version)
    return tuple(int(part) for part in found.groups() if part) if found else ()


def _lint(settings: Mapping[str, Setting]) -> tuple[Finding, ...]:
    ours = {name: setting for name, setting in settings.items() if table_of(name)}
    found = [_finding(s, complaint) for s in ours.values() for complaint in _of_one(s)]
    found += [_finding(c.settings[0], c.complaint, c.host) for c in find_conflicts(ours)]
    found += [_finding(*cost) for cost in find_costs(ours)]
    return tuple(found)


def _finding(setting: Setting, complaint: Complaint, host: str = "") -> Finding:
    verdict, what, fix = complaint
    return Finding(CHECK, verdict, what, fix, setting.host or host, f"{setting.where}{setting.name}")


def _of_one(setting: Setting) -> Iterator[Complaint]:
    table = table_of(setting.name)
    if table is None:
        return
    variable = table.variables.get(setting.name)
    if variable is None:
        if table.claims(setting.name):
            yield _unknown(setting.name, table)
        return
    if variable.kind == _LATER:
        pass  # it depends on the version, see ``lint_nccl``
    elif note := _NOTES.get(variable.kind):
        yield _note(variable, *note)
    elif complaint := judge_value(variable, setting.value):
        yield complaint
    if setting.name in _PER_HOST and not setting.host:
        own = _PER_HOST[setting.name]
        what = f"on all hosts, {setting.name} replaces the value {own} that toolkit sets for each host"
        yield Complaint("warning", what, f"remove {setting.name}, or set the variable in hosts/NAME/env")


def _unknown(name: str, table: Table) -> Complaint:
    near = nearest(name, table)
    fix = f"rename the variable to {near}, or remove the variable" if near else f"remove {name}"
    return Complaint("warning", f"{table.library} reads no variable {name}", fix)


def _note(variable: Variable, verdict: Verdict, what: str, fix: str) -> Complaint:
    text = " ".join(variable.words)
    first, _, rest = text.partition(" ")
    library = variable.library
    values = {"name": variable.name, "library": library, "text": text, "first": first, "rest": rest}
    return Complaint(verdict, what.format_map(values), fix.format_map(values))


# Kind of the variables that only newer versions of a library read.
_LATER = "later"
# Kinds of the tables that concern the name, not the value: severity, what, fix.
_NOTES: dict[str, tuple[Verdict, str, str]] = {
    "unread": ("warning", "no library in toolkit's images reads the variable {name}", "{text}"),
    "renamed": ("warning", "{name} is the old name of {text}", "rename the variable to {text}"),
    "gone": ("warning", "{library} has ignored {name} since version {first}", "{rest}"),
    "build": ("warning", "{name} has an effect only when {library} is built", "{text}"),
    "launcher": (
        "warning",
        "only the launcher {text} reads {name}, but toolkit passes the variable only to ranks",
        "remove {name}",
    ),
    "fatal": (
        "error",
        "the EFA provider of {library} {first} or newer stops each process that has the variable {name}",
        "{rest}",
    ),
}
