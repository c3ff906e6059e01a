"""toolkit lab: run a practice cluster on one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DryRun, Json, put_json, put_text, say
from toolkit.cli.line import CommandLine
from toolkit.core.command import quoted
from toolkit.core.printable import counted, table
from toolkit.errors import NotReady
from toolkit.lab.lifecycle import lab_down, lab_names, lab_owner, lab_up, preview_down, preview_up
from toolkit.lab.spec import ENGINES, SSH_USERS, LabSpec, lab_name
from toolkit.lab.status import lab_status

Name = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Name of the practice cluster; several practice clusters can run at once"
    ),
]


def up(
    name: Name = "lab",
    count: Annotated[str, typer.Option(metavar="N", help="Number of hosts, 1 to 200")] = "2",
    engine: Annotated[
        str,
        typer.Option(
            metavar="KIND[,KIND]",
            help="Container engine of the hosts: old (Docker 20.10), new (Docker 26.1), containerd (Docker "
            "26.1 with the containerd image store) or podman. If you list several engines, "
            "toolkit assigns them to the hosts in turn. Podman cannot be combined with Docker",
            autocompletion=complete.list_of(*ENGINES),
        ),
    ] = "new",
    rate: Annotated[
        str,
        typer.Option(
            metavar="RATE", help="Rate limit for every host's link, such as 100mbit (default: no limit)"
        ),
    ] = "",
    management: Annotated[
        str,
        typer.Option(
            metavar="RATE",
            help="Give each host a second network interface for SSH, with a rate limit such as 100mbit",
        ),
    ] = "",
    interfaces: Annotated[
        str,
        typer.Option(
            metavar="differ|same",
            help="Give the network interfaces of the hosts different names (`differ`) or the same name "
            "(`same`)",
            autocompletion=complete.one_of("differ", "same"),
        ),
    ] = "differ",
    cables: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Connect two hosts by N direct links (0 to 4), each a /30 network with MTU 9000; N above 0 "
            "requires --count 2",
        ),
    ] = "0",
    user: Annotated[
        str,
        typer.Option(
            metavar="trainer|root",
            help="SSH user of the hosts. `trainer` is not root and, on hosts with Docker, is in the group "
            "docker. Podman requires `trainer`",
            autocompletion=complete.one_of(*SSH_USERS),
        ),
    ] = "trainer",
    slots: Annotated[
        str, typer.Option(metavar="N", help="Slots per host (1 to 64), written to hosts.yaml")
    ] = "1",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="Image of the cluster, written to hosts.yaml")
    ] = "toolkit:cpu",
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="Folder for hosts.yaml and SSH keys (default: .lab/NAME)")
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Start or repair the practice cluster.

    The hosts of a practice cluster are containers that behave like machines: each host has its own SSH
    server, container engine and network link. With the same options, a second `toolkit lab up` creates
    missing hosts and files, and restarts hosts that stopped or whose container engine stopped. If a network
    of the practice cluster was removed, toolkit recreates all hosts and keeps only the files in their
    volumes. If you edited hosts.yaml, `toolkit lab up` keeps your file. If you edited hosts.yaml and the
    settings of the practice cluster changed, toolkit writes hosts.new.yaml, a complete file with the new
    settings.

    Examples:
        toolkit lab up
        toolkit lab up --count 4 --slots 2
        toolkit lab up --name slow --rate 100mbit --engine old,new
    """
    line = CommandLine()
    number, per_host = line.whole("--count", count), line.whole("--slots", slots)
    links = line.whole("--cables", cables, least=0)
    kinds = tuple(part.strip() for part in engine.split(","))
    where = _folder(folder, name)
    made = (
        name,
        where,
        number or 1,
        kinds,
        rate,
        interfaces,
        user,
        per_host or 1,
        image,
        management,
        links or 0,
    )
    spec = line.accept(line.read(LabSpec, *made))
    if dry_run:
        _show(f"lab up {name}", preview_up(spec), as_json)
        return

    report = lab_up(spec, say)
    if as_json:
        put_json(report.as_json() | {"hosts_file": f"{spec.folder}/hosts.yaml"})
        return
    done = "nothing to change" if report.changes == 0 else counted(report.changes, "change")
    say(f"lab {name}: {done} in {report.seconds:.1f} s; to use this practice cluster:")
    put_text(f"export TOOLKIT_HOSTS={quoted(f'{spec.folder}/hosts.yaml')}")


def down(
    name: Name = "lab",
    everything: Annotated[
        bool,
        typer.Option(
            "--all",
            help="Remove all your practice clusters; if you are root, also the practice clusters of other "
            "users",
        ),
    ] = False,
    keep_images: Annotated[
        bool,
        typer.Option(
            "--keep-images",
            help="Keep the volumes with the hosts' images for the next practice cluster with the same name",
        ),
    ] = False,
    folder: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Folder with hosts.yaml and SSH keys, needed only if the containers no longer exist "
            "(default: .lab/NAME)",
        ),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the practice cluster with its hosts and files.

    Examples:
        toolkit lab down
        toolkit lab down --all
    """
    line = CommandLine()
    line.value("--name", lab_name, name)
    line.end()

    found = lab_names() if everything else (name,)
    owners = {each: lab_owner(each) for each in found} if everything else {}
    for each, owner in owners.items():
        if owner:
            say(f"lab {each}: not removed, because it belongs to user {owner}")
    names = tuple(each for each in found if not owners.get(each))
    if dry_run:
        lines = [line for each in names for line in preview_down(each, keep_images)]
        _show(f"lab down {' '.join(names)}", lines, as_json)
        return
    named = Path(os.environ.get("TOOLKIT_HOSTS", ""))
    was_there = named.exists()
    reports = []
    for each in names:
        report = lab_down(each, keep_images, _folder(folder, each), say)
        reports.append(report.as_json())
        done = "nothing to remove" if report.changes == 0 else "removed the hosts and files"
        if keep_images and report.changes:
            done += " except the volumes with the hosts' images"
        say(f"lab {each}: {done} ({report.seconds:.1f} s)")
    if not found:
        say("your machine has no practice cluster")
    if was_there and not named.exists():
        say("unset TOOLKIT_HOSTS  # the hosts.yaml that this variable names was removed")
    if as_json:
        put_json(reports)


def status(name: Name = "lab", as_json: Json = False) -> None:
    """Show the hosts of the practice cluster.

    toolkit prints the state, container engine and image store of each host, and tests the SSH login.

    Examples:
        toolkit lab status
        toolkit lab status --name slow --json
    """
    line = CommandLine()
    line.value("--name", lab_name, name)
    line.end()

    lab = lab_status(name)
    if not lab.hosts:
        raise NotReady(f"your machine has no practice cluster {name}", f"toolkit lab up --name {name}")
    if as_json:
        put_json(lab.as_json())
        return
    rows = [
        (h.name, h.address, h.interface, h.user, h.state, h.engine, h.store, "ok" if h.ssh else "no")
        for h in lab.hosts
    ]
    header = ("host", "address", "interface", "user", "state", "engine", "store", "ssh")
    put_text(table(header, rows))
    put_text(f"export TOOLKIT_HOSTS={quoted(f'{lab.folder}/hosts.yaml')}")


def _folder(folder: str, name: str) -> str:
    return os.path.realpath(folder or f".lab/{name}")


def _show(title: str, lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        put_json({"title": title, "dry_run": True, "plan": list(lines)})
    else:
        put_text("\n  ".join([title, *(lines or ["nothing to change"])]))
