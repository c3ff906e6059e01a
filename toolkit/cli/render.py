"""toolkit render: print the cluster or a job for other tools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, put_file, put_json, say
from toolkit.cli.failure import error_json
from toolkit.cli.line import CommandLine
from toolkit.cluster.session import observe_layout
from toolkit.core.files import make_folder, write_file
from toolkit.hostsfile.load import is_folder
from toolkit.lifecycle.renderings import TARGETS

Output = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        metavar="DIR",
        help="Write the files to the folder DIR (default: print the files to standard output)",
    ),
]


def compose(
    hosts: HostsFile = DEFAULT_HOSTS, output: Output = "", as_json: Json = False, verbose: Verbose = False
) -> None:
    """Print a Compose file for each host.

    To start the same containers as `toolkit up`, run `toolkit up --prepare`, and then `docker compose up` on
    each host with the Compose file for the host. `toolkit render compose` queries the hosts, but changes
    nothing on the hosts and writes no private key.

    Examples:
        toolkit render compose --output compose
    """
    _cluster("compose", hosts, output, as_json, verbose)


def docker(
    hosts: HostsFile = DEFAULT_HOSTS, output: Output = "", as_json: Json = False, verbose: Verbose = False
) -> None:
    """Print a `docker run` script for each container.

    After `toolkit up --prepare`, the scripts start the same containers as `toolkit up`.
    `toolkit render docker` queries the hosts, but changes nothing on the hosts and writes no private key.

    Examples:
        toolkit render docker
        toolkit render docker --output scripts
    """
    _cluster("docker", hosts, output, as_json, verbose)


def ssh(
    hosts: HostsFile = DEFAULT_HOSTS, output: Output = "", as_json: Json = False, verbose: Verbose = False
) -> None:
    """Print the ssh and sshd configuration of the cluster.

    If the transport is exec, `toolkit render ssh` fails, because the containers have no SSH configuration.
    `toolkit render ssh` queries the hosts, but changes nothing on the hosts and writes no private key.

    Examples:
        toolkit render ssh --output ssh
    """
    _cluster("ssh", hosts, output, as_json, verbose)


def _cluster(target: str, hosts: str, output: str, as_json: bool, verbose: bool) -> None:
    line = CommandLine()
    check_folder(line, output)
    inventory = line.accept(line.hosts(hosts))
    with connect(inventory, verbose) as session:
        files = TARGETS[target](observe_layout(session))
        errors = list(session.errors.values())
    put_files(files, output, as_json, error_json(errors[0]) if errors else None)
    for error in errors:
        say(str(error))
    if errors:
        raise typer.Exit(errors[0].exit_code)


def check_folder(line: CommandLine, output: str) -> None:
    """Refuse an output path that is not a folder."""
    if output and os.path.lexists(output) and not is_folder(output):
        line.refuse("--output", f"should be a folder, found {output}")


def put_files(
    files: Mapping[str, str], output: str, as_json: bool, error: Mapping[str, object] | None = None
) -> None:
    """Write files to a folder, or print them; a single file is printed unchanged.

    Args:
        error: keys of the JSON if files of hosts are missing.
    """
    if output:
        for name, text in files.items():
            make_folder(Path(output, name).parent)
            say(f"wrote {write_file(Path(output, name), text, program=name.endswith('.sh'))}")
    elif not as_json and len(files) == 1:
        put_file("".join(files.values()))
    elif not as_json:
        put_file("".join(f"# --- {name}\n{text}\n" for name, text in files.items()))
    if as_json:
        put_json({**files, **(error or {})})
