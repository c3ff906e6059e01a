"""Environment lint: variables of communication libraries that do not do what they are set for.

Only names with a prefix that belongs to one of these libraries are checked.
A value is shown only if the tables define how it is read, so that no finding contains a secret.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from toolkit.core.finding import Finding, Verdict
from toolkit.env_lint.complaint import Complaint, Setting
from toolkit.env_lint.rules import find_conflicts, find_costs
from toolkit.env_lint.values import judge_value
from toolkit.env_lint.variables import Table, Variable, nearest, table_of
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
    """Return findings about the variables as ranks receive them.

    The variables of a host win over those of the file, and the command line wins over both; a variable that
    loses is not checked. A finding for all hosts is reported once, without a host.

    Args:
        override: variables of the command line.
        hosts: the hosts that take part; all of them when None.
    """
    shared = {name: Setting(name, value, "env/") for name, value in inventory.env}
    last = {name: Setting(name, value, "--env ") for name, value in override}
    found: dict[Finding, None] = {}
    for host in inventory.hosts:
        if hosts is None or host.name in hosts:
            where = f"hosts/{host.name}/env/"
            own = {name: Setting(name, value, where, host.name) for name, value in host.env}
            found |= dict.fromkeys(_lint({**shared, **own, **last}))
    return tuple(found)


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
    if note := _NOTES.get(variable.kind):
        yield _note(variable, *note)
    elif complaint := judge_value(variable, setting.value):
        yield complaint
    if setting.name in _PER_HOST and not setting.host:
        what = f"on all hosts it replaces the {_PER_HOST[setting.name]} that the toolkit sets for each host"
        yield Complaint("warning", what, "remove it, or set it in hosts/NAME/env")


def _unknown(name: str, table: Table) -> Complaint:
    near = nearest(name, table)
    fix = f"write {near} if you mean that, or remove it" if near else "remove it"
    return Complaint("warning", f"{table.library} reads no variable of this name", fix)


def _note(variable: Variable, verdict: Verdict, what: str, fix: str) -> Complaint:
    text = " ".join(variable.words)
    first, _, rest = text.partition(" ")
    library = variable.library
    said = {"library": library, "product": library.rpartition(" ")[0] or library}
    said |= {"text": text, "first": first, "rest": rest}
    return Complaint(verdict, what.format_map(said), fix.format_map(said))


# Kinds of the tables that concern the name, not the value: severity, what, fix.
_NOTES: dict[str, tuple[Verdict, str, str]] = {
    "unread": ("warning", "no library of the image reads a variable of this name", "{text}"),
    "renamed": ("warning", "this is the old name of {text}", "write {text}"),
    "gone": ("warning", "{product} has not read it since {first}", "{rest}"),
    "later": ("warning", "{product} reads it from {first} on, and the image has {library}", "remove it"),
    "build": ("warning", "{library} reads it while it is built, not when it runs", "{text}"),
    "launcher": ("warning", "{text} reads it, the launcher, which gets none of these variables", "remove it"),
    "fatal": ("error", "{library} ends the process when it is set", "{text}"),
}
