"""toolkit render: the cluster as text for other programs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, load, put_json, say


def render(
    target: Annotated[str, typer.Argument(help="compose, docker or ssh.")],
    hosts: HostsFile = DEFAULT_HOSTS,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder; else standard output.")
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print the compose files, `docker run` scripts or ssh configurations that `up` works with.

    Looks at the hosts (addresses, users, GPUs), changes nothing, and never writes a private key.
    """
    from toolkit.errors import BadInput, Problem
    from toolkit.plan.renderings import TARGETS

    if target not in TARGETS:
        problem = Problem("target", f"is one of {', '.join(TARGETS)}, found {target}")
        raise BadInput("command line", (problem,))
    with connect(load(hosts), verbose) as session:
        files = TARGETS[target](session.layout())
        missing = dict(session.errors)
    if as_json and output is None:
        put_json(files)
        files = {}
    for name, text in files.items():
        if output is None:
            sys.stdout.write(f"# --- {name}\n{text}\n")
        else:
            path = output / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            if name.endswith(".sh"):
                path.chmod(0o755)
            say(f"wrote {path}")
    for error in missing.values():
        say(str(error))
    if missing:
        raise typer.Exit(1)
