"""toolkit init: the first hosts.yaml."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.common import DryRun, Json, put_json, say

if TYPE_CHECKING:
    from toolkit.cli.line import CommandLine
    from toolkit.spec.draft import Draft


def init(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...", help="[NAME=][USER@]ADDRESS[:SLOTS]; two stand-ins if none is named."
        ),
    ] = None,
    from_hostfile: Annotated[
        str, typer.Option(metavar="FILE", help="Take the hosts from an Open MPI hostfile.")
    ] = "",
    cluster: Annotated[str, typer.Option(metavar="NAME", help="The cluster's name.")] = "demo",
    image: Annotated[
        str, typer.Option(metavar="IMAGE", help="What containers are made from.")
    ] = "toolkit:gpu",
    user: Annotated[str, typer.Option(metavar="NAME", help="The ssh user of hosts that name none.")] = "",
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="Write this file; - is standard output.")
    ] = "hosts.yaml",
    force: Annotated[bool, typer.Option("--force", help="Although the file is there already.")] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Write a commented hosts.yaml for these hosts. Contacts none of them."""
    from toolkit.cli.line import CommandLine
    from toolkit.output import write_file
    from toolkit.spec.draft import hosts_file, named

    line = CommandLine()
    draft = line.accept(_draft(line, words or [], from_hostfile, cluster, image, user))
    text = hosts_file(draft)
    if dry_run or output == "-":
        sys.stdout.write(text)
        return
    path = write_file(output, text, replace=force)
    hosts = named(draft.hosts)
    if as_json:
        put_json({"file": str(path), "hosts": [host.name for host in hosts]})
        return
    say(f"wrote {path} with {len(hosts)} hosts" if hosts else f"wrote {path}: put your hosts into it")
    if from_hostfile and (bare := [host.name for host in hosts if host.slots is None]):
        say(f"  {from_hostfile} gives no slots to {', '.join(bare)}: one per GPU is the default here")
    say("  next: toolkit trust, then toolkit up")


def _draft(
    line: CommandLine, words: list[str], hostfile: str, cluster: str, image: str, user: str
) -> Draft | None:
    """What the command line knows of the hosts; any other way to learn of them gives a Draft as well."""
    from dataclasses import replace

    from toolkit.inputs import read_hostfile
    from toolkit.spec import fields
    from toolkit.spec.draft import Draft, DraftHost, faults_between, read_host

    line.value("--cluster", fields.cluster, cluster)
    line.value("--image", fields.image, image)
    if user:
        line.value("--user", fields.user, user)
    if hostfile and words:
        line.refuse("--from-hostfile", f"names the hosts; leave out {' '.join(words)}")
    read = [line.value(word, read_host, word) for word in words]
    known = [(word, host) for word, host in zip(words, read, strict=True) if host]
    for index, message in faults_between([host for _, host in known]):
        line.refuse(known[index][0], message)
    hosts: tuple[DraftHost, ...] = tuple(host for _, host in known)
    if hostfile:
        hosts = line.read(read_hostfile, hostfile) or ()
    return Draft(cluster, image, tuple(replace(host, user=host.user or user) for host in hosts))
