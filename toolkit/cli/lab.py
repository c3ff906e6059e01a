"""toolkit lab: a practice cluster on one machine."""

from __future__ import annotations

import typer

app = typer.Typer(
    no_args_is_help=True, help="A practice cluster on one machine: containers that behave as hosts."
)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _folder(folder: str, name: str) -> str:
    from pathlib import Path

    return str((Path(folder) if folder else Path(".lab") / name).resolve())


@app.command("up")
def up(
    name: str = typer.Option("lab", help="The lab's name; several may run side by side."),
    hosts: int = typer.Option(2, help="How many hosts."),
    engine: str = typer.Option("new", help="old, new or containerd; a list such as old,new goes round."),
    rate: str = typer.Option("", help="Limit of every host's link, such as 100mbit."),
    management: str = typer.Option("", help="A second card for ssh, with this limit, such as 100mbit."),
    interfaces: str = typer.Option("differ", help="differ or same: the names of the hosts' interfaces."),
    user: str = typer.Option("trainer", help="trainer (no root, in group docker) or root."),
    slots: int = typer.Option(1, help="Slots per host, written to hosts.yaml."),
    image: str = typer.Option("toolkit:cpu", help="The cluster's image, written to hosts.yaml."),
    folder: str = typer.Option("", help="For hosts.yaml and keys; .lab/NAME unless given."),
) -> None:
    """Make the lab, or start again what has stopped; a second time changes nothing."""
    from toolkit.lab.manage import lab_up
    from toolkit.lab.topology import LabSpec

    kinds = tuple(part.strip() for part in engine.split(","))
    place = _folder(folder, name)
    spec = LabSpec(name, place, hosts, kinds, rate, interfaces, user, slots, image, management)
    report = lab_up(spec, _say)
    done = "nothing to change" if report.changes == 0 else f"{report.changes} changes"
    _say(f"lab {name}: {done} in {report.seconds:.1f} s; use it with")
    typer.echo(f"export TOOLKIT_HOSTS={spec.folder}/hosts.yaml")


@app.command("down")
def down(
    name: str = typer.Option("lab", help="The lab's name."),
    everything: bool = typer.Option(False, "--all", help="All labs on this machine, whatever their names."),
    keep_images: bool = typer.Option(False, "--keep-images", help="Keep the hosts' images for the next lab."),
    folder: str = typer.Option("", help="Where its files are, when the lab itself cannot say it any more."),
) -> None:
    """Remove the lab and everything that it made."""
    from toolkit.lab.manage import lab_down, lab_names

    names = lab_names() if everything else (name,)
    for each in names:
        report = lab_down(each, keep_images, _folder(folder, each), _say)
        done = "there was nothing" if report.changes == 0 else "nothing is left"
        if keep_images:
            done += " but the volumes with the hosts' images"
        _say(f"lab {each}: {done} ({report.seconds:.1f} s)")
    if not names:
        _say("there is no lab on this machine")


@app.command("status")
def status(
    name: str = typer.Option("lab", help="The lab's name."),
    as_json: bool = typer.Option(False, "--json", help="Print JSON."),
) -> None:
    """Show the lab's hosts: state, engine, image store, and whether ssh lets us in."""
    import json

    from toolkit.errors import NotReady
    from toolkit.lab.status import lab_status

    lab = lab_status(name)
    if as_json:
        typer.echo(json.dumps(lab.as_json(), indent=2))
        return
    if not lab.hosts:
        raise NotReady(f"there is no lab {name}", f"toolkit lab up --name {name}")
    rows = [("host", "address", "interface", "user", "state", "engine", "store", "ssh")]
    for host in lab.hosts:
        ssh = "ok" if host.ssh else "no"
        rows.append(
            (host.name, host.address, host.interface, host.user, host.state, host.engine, host.store, ssh)
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        typer.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    typer.echo(f"export TOOLKIT_HOSTS={lab.folder}/hosts.yaml")
