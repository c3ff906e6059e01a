"""toolkit render: the cluster as text for other programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, put_json, say


def render(
    target: Annotated[
        str,
        typer.Argument(
            metavar="compose|docker|ssh", help="What to print it for.", autocompletion=complete.targets
        ),
    ],
    hosts: HostsFile = DEFAULT_HOSTS,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="DIR", help="Folder; else standard output.")
    ] = "",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print the compose files, `docker run` scripts or ssh configurations that `up` works with.

    Looks at the hosts (addresses, users, GPUs), changes nothing, and never writes a private key.
    """
    from toolkit.cli.line import CommandLine
    from toolkit.inputs import is_folder, write_file
    from toolkit.plan.renderings import TARGETS

    line = CommandLine()
    line.one_of("target", target, TARGETS)
    if output and os.path.lexists(output) and not is_folder(output):
        line.refuse("--output", f"{output} is not a folder")
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose) as session:
        files = TARGETS[target](session.layout())
        missing = dict(session.errors)
    if output:
        for name, text in files.items():
            Path(output, name).parent.mkdir(parents=True, exist_ok=True)
            say(f"wrote {write_file(Path(output, name), text, program=name.endswith('.sh'))}")
    elif not as_json:
        sys.stdout.writelines(f"# --- {name}\n{text}\n" for name, text in files.items())
    if as_json:
        put_json(files)
    for error in missing.values():
        say(str(error))
    if missing:
        raise typer.Exit(1)
