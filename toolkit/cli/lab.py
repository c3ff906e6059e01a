"""toolkit lab: a practice cluster on one machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DryRun, Json, put_json, put_text, say
from toolkit.cli.line import CommandLine
from toolkit.core.text import counted
from toolkit.errors import NotReady
from toolkit.lab.manage import lab_down, lab_names, lab_up, preview_down, preview_up
from toolkit.lab.spec import ENGINES, SSH_USERS, LabSpec, lab_name
from toolkit.lab.status import lab_status
from toolkit.plan.show import table

Name = Annotated[str, typer.Option(metavar="NAME", help="The lab's name; several may run side by side.")]


def up(
    name: Name = "lab",
    count: Annotated[str, typer.Option(metavar="N", help="How many hosts.")] = "2",
    engine: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="old, new, containerd or podman; a list such as old,new goes round.",
            autocompletion=complete.list_of(*ENGINES),
        ),
    ] = "new",
    rate: Annotated[
        str, typer.Option(metavar="RATE", help="Limit of every host's link, such as 100mbit.")
    ] = "",
    management: Annotated[
        str,
        typer.Option(metavar="RATE", help="A second card for ssh, with this limit, such as 100mbit."),
    ] = "",
    interfaces: Annotated[
        str,
        typer.Option(
            metavar="differ|same",
            help="Whether the hosts' interfaces have one name.",
            autocompletion=complete.one_of("differ", "same"),
        ),
    ] = "differ",
    user: Annotated[
        str,
        typer.Option(
            metavar="trainer|root",
            help="Whom ssh logs in as; trainer is in group docker, and no root.",
            autocompletion=complete.one_of(*SSH_USERS),
        ),
    ] = "trainer",
    slots: Annotated[str, typer.Option(metavar="N", help="Slots per host, written to hosts.yaml.")] = "1",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="The cluster's image, written to hosts.yaml.")
    ] = "toolkit:cpu",
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="For hosts.yaml and keys; .lab/NAME unless given.")
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Make the lab, or start again what has stopped; a second time changes nothing.

    A hosts.yaml that you edited is kept; the new one is then written to hosts.new.yaml beside it.
    """
    line = CommandLine()
    number, per_host = line.whole("--count", count), line.whole("--slots", slots)
    kinds = tuple(part.strip() for part in engine.split(","))
    where = _folder(folder, name)
    made = (name, where, number or 1, kinds, rate, interfaces, user, per_host or 1, image, management)
    spec = line.accept(line.read(LabSpec, *made))
    if dry_run:
        _show(f"lab up {name}", preview_up(spec), as_json)
        return

    report = lab_up(spec, say)
    if as_json:
        put_json(report.as_json() | {"hosts_file": f"{spec.folder}/hosts.yaml"})
        return
    done = "nothing to change" if report.changes == 0 else counted(report.changes, "change")
    say(f"lab {name}: {done} in {report.seconds:.1f} s; use it with")
    put_text(f"export TOOLKIT_HOSTS={spec.folder}/hosts.yaml")


def down(
    name: Annotated[str, typer.Option(metavar="NAME", help="The lab's name.")] = "lab",
    everything: Annotated[
        bool, typer.Option("--all", help="All labs on this machine, whatever their names.")
    ] = False,
    keep_images: Annotated[
        bool, typer.Option("--keep-images", help="Keep the hosts' images for the next lab.")
    ] = False,
    folder: Annotated[
        str,
        typer.Option(metavar="DIR", help="Where its files are, when the lab itself cannot say it any more."),
    ] = "",
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Remove the lab and everything that it made."""
    line = CommandLine()
    line.value("--name", lab_name, name)
    line.end()

    names = lab_names() if everything else (name,)
    if dry_run:
        lines = [line for each in names for line in preview_down(each, keep_images)]
        _show(f"lab down {' '.join(names)}", lines, as_json)
        return
    reports = []
    for each in names:
        report = lab_down(each, keep_images, _folder(folder, each), say)
        reports.append(report.as_json())
        done = "there was nothing" if report.changes == 0 else "nothing is left"
        if keep_images:
            done += " but the volumes with the hosts' images"
        say(f"lab {each}: {done} ({report.seconds:.1f} s)")
    if not names:
        say("there is no lab on this machine")
    if as_json:
        put_json(reports)


def status(
    name: Annotated[str, typer.Option(metavar="NAME", help="The lab's name.")] = "lab", as_json: Json = False
) -> None:
    """Show the lab's hosts: state, engine, image store, and whether ssh lets us in."""
    line = CommandLine()
    line.value("--name", lab_name, name)
    line.end()

    lab = lab_status(name)
    if as_json:
        put_json(lab.as_json())
        return
    if not lab.hosts:
        raise NotReady(f"there is no lab {name}", f"toolkit lab up --name {name}")
    rows = [
        (h.name, h.address, h.interface, h.user, h.state, h.engine, h.store, "ok" if h.ssh else "no")
        for h in lab.hosts
    ]
    header = ("host", "address", "interface", "user", "state", "engine", "store", "ssh")
    put_text(table(header, rows))
    put_text(f"export TOOLKIT_HOSTS={lab.folder}/hosts.yaml")


def _folder(folder: str, name: str) -> str:
    return os.path.realpath(folder or f".lab/{name}")


def _show(title: str, lines: Sequence[str], as_json: bool) -> None:
    if as_json:
        put_json({"title": title, "dry_run": True, "plan": list(lines)})
    else:
        put_text("\n  ".join([title, *(lines or ["nothing to change"])]))
