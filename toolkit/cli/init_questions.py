"""The part of `toolkit init` that finds and probes hosts, and asks the user how to use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from toolkit.cli.asking import Person, on_terminal
from toolkit.cli.common import say
from toolkit.cli.trust import settle
from toolkit.core.container import Mount
from toolkit.errors import BadInput, Problem, ToolkitError, Unreachable, UnreachableCause
from toolkit.hostsfile import fields
from toolkit.hostsfile.inventory import Inventory
from toolkit.init.answers import ALL, NONE, free_name, read_choice, read_hosts, read_some
from toolkit.init.draft import Draft, DraftHost, named
from toolkit.init.probe_hosts import Survey, inventory_of, leave_out, survey_hosts
from toolkit.init.show import aliases_text, mixed_text, shares_text, survey_text, variant_text
from toolkit.init.ssh_aliases import Alias
from toolkit.init.trust import shown_keys
from toolkit.protocol.host_list import host_list

LEAVE, AGAIN, KEEP = "leave", "try", "keep"


def pick_hosts(person: Person, aliases: Sequence[Alias], user: str) -> tuple[DraftHost, ...]:
    """Print the hosts of ~/.ssh/config and return those that the user picks; without a terminal, all of them.

    If the file names no host, the user can enter addresses, or continue without hosts.

    Raises:
        BadInput: the file names no host, and there is no terminal.
    """
    listed = [alias for alias in aliases if not alias.bar]
    names = [alias.name for alias in listed]
    if listed:
        say("hosts of ~/.ssh/config:")
        barred = [(alias.name, alias.bar) for alias in aliases if alias.bar]
        say(aliases_text([(alias.name, alias.place) for alias in listed], barred))
        question = "hosts of the cluster (all, numbers, names, or ADDRESS or USER@ADDRESS of other hosts)?"
        hosts = person.ask(question, ALL, lambda text: read_hosts(text, names))
    elif person.there:
        say(
            "~/.ssh/config contains no usable host; if you enter no host, toolkit writes two placeholder "
            "hosts, which you must replace"
        )
        question = "hosts of the cluster (ADDRESS or USER@ADDRESS)?"
        hosts = person.ask(question, NONE, lambda text: () if text == NONE else read_hosts(text, ()))
    else:
        problem = Problem("", "contains no host that can be part of a cluster")
        raise BadInput(
            "~/.ssh/config",
            (problem,),
            "toolkit init gpu1=ADDRESS gpu2=ADDRESS  # with the addresses of your hosts",
        )
    known = set(names)
    return tuple(h if h.address in known else replace(h, user=h.user or user) for h in hosts)


def survey_and_ask(person: Person, draft: Draft, yes: bool, dry_run: bool) -> tuple[Draft, Survey]:
    """Probe the draft's hosts, print the result of each, and return the draft without the hosts left out.

    Args:
        yes: do not ask about host keys; a key that is not recorded stays unknown.
    """
    while True:
        hosts = named(draft.hosts)
        say(f"connecting to {len(hosts)} hosts …" if len(hosts) > 1 else f"connecting to {hosts[0].name} …")
        away = _settle_keys(inventory_of(draft), [host.name for host in hosts], yes, dry_run)
        survey = survey_hosts(draft, away)
        say(survey_text(survey.hosts))
        lost = [name for name, surveyed in survey.hosts.items() if not surveyed.usable]
        if not lost:
            break
        question = f"toolkit cannot use {host_list(lost)} (leave out, try all again, keep anyway)?"
        answer = person.ask(question, LEAVE, lambda text: read_choice(text, (LEAVE, AGAIN, KEEP)))
        if answer == LEAVE:
            draft = leave_out(draft, survey, lost)
        if answer != AGAIN:
            break
    kept = [surveyed for name, surveyed in survey.hosts.items() if surveyed.usable]
    if mixed := mixed_text(kept):
        say(mixed)
    if variant := variant_text(kept, survey.cuda_variant([surveyed.host for surveyed in kept])):
        say(variant)
    return draft, survey


def _settle_keys(
    inventory: Inventory, names: Sequence[str], yes: bool, dry_run: bool
) -> dict[str, ToolkitError]:
    """Ask about every SSH key that is not recorded; return the error of each host that showed no key."""
    shown = shown_keys(inventory, tuple(names))
    if not yes and on_terminal():
        queried: set[str] = set()
        while new := [f for f in shown if f.verdict == "unknown" and not f.error and f.host not in queried]:
            queried |= {found.host for found in new}
            settled = [settle(found, dry_run=dry_run) for found in new]
            # Some hosts are reached through a jump host whose key was only just recorded. `shown` can also
            # contain jump hosts, which are queried again together with their host.
            behind = [f.host for f in shown if f.host in names and f.error and f.target and f.target.jump]
            if not behind or dry_run or not any(found.trusted for found in settled):
                break
            shown = [
                *(found for found in shown if found.error and found.host not in behind),
                *shown_keys(inventory, tuple(behind)),
            ]
    lost = {found.host: found.failure for found in shown if found.host in names}
    return {
        host: Unreachable(
            failure.what,
            failure.fix,
            host,
            failure.cause if isinstance(failure, Unreachable) else UnreachableCause.OTHER,
        )
        for host, failure in lost.items()
        if failure is not None
    }


def pick_mounts(person: Person, survey: Survey, hosts: Sequence[str]) -> tuple[Mount, ...]:
    """Return mounts for the file systems that all hosts share and that the user picks (default: all)."""
    shares = survey.shares(hosts)
    if not shares:
        return ()
    say("file systems that all hosts share:")
    say(shares_text(shares))
    folders = [share.mount.source for share in shares]
    question = "file systems to mount for ranks, at the same path (all, none, numbers, paths)?"
    picked = person.ask(question, ALL, lambda text: read_some(text, folders))
    return tuple(share.mount for share in shares if share.mount.source in picked)


def pick_cluster(person: Person, survey: Survey, default: str) -> str:
    """Return a name for the cluster that no other user of these hosts has taken."""

    def read(text: str) -> str:
        name = fields.cluster(text)
        for host, user in survey.other_owners(name).items():
            raise ValueError(f"user {user} has a cluster with this name on {host}; choose another name")
        return name

    name = person.ask("name of the cluster?", free_name(default, survey.foreign_names()), read)
    if own := survey.owners(name):
        say(f"  you have a cluster {name} on {host_list(own)}: this hosts.yaml will control that cluster")
    return name
