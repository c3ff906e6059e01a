"""Options, job and output that `render slurm` and `render kubernetes` share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from toolkit.cli import complete
from toolkit.cli.common import connect, put_json, say
from toolkit.cli.line import CommandLine, listed, variable
from toolkit.cli.render import check_folder, put_files
from toolkit.core.facts import Facts
from toolkit.errors import BadInput, Problem
from toolkit.export.job import BatchJob
from toolkit.export.prepare import BatchRequest, check_batch, prepare_batch_job
from toolkit.hostsfile.fields import image
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import read_yaml
from toolkit.jobs.request import Request
from toolkit.protocol.host_list import host_list

Words = Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")]
Launcher = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Launcher for the ranks (default: the launcher in hosts.yaml)",
        autocompletion=complete.launchers,
    ),
]
Workdir = Annotated[str, typer.Option(metavar="DIR", help="Folder that contains SCRIPT and its modules")]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST[,HOST]",
        help="Use only the listed hosts (default: all hosts except spare hosts)",
        autocompletion=complete.host_list,
    ),
]
Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="HOST[,HOST]", help="Do not use the listed hosts", autocompletion=complete.host_list
    ),
]
Timeout = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="Stop the job after SECONDS (default: no time limit)")
]
Grace = Annotated[str, typer.Option(metavar="SECONDS", help="Time between SIGTERM and SIGKILL")]
Image = Annotated[
    str,
    typer.Option(metavar="NAME", help="Name of the image on the nodes (default: the image in hosts.yaml)"),
]
Slots = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="Ranks per node (default: the slots in hosts.yaml, otherwise one per GPU, or 1 without GPUs)",
    ),
]
Gpus = Annotated[
    str | None,
    typer.Option(
        metavar="N",
        help="GPUs per node (default: the number in hosts.yaml, otherwise the number that hosts report)",
    ),
]
LeaveOut = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATH",
        help="Ignore a key in hosts.yaml that toolkit cannot export, such as services/tensorboard",
    ),
]


def request_of(
    line: CommandLine,
    words: list[str],
    launcher: str,
    env: list[str] | None,
    workdir: str,
    only: list[str] | None,
    exclude: list[str] | None,
    timeout: str | None,
    grace: str,
) -> tuple[Any, tuple[str, ...]]:
    """Return the request and the names of variables without a value; problems go to ``line``."""
    pairs = dict(variable(line, word) for word in env or ()).items()  # the last option of a name has priority
    request = Request(
        words=tuple(words),
        workdir=line.folder("--workdir", workdir),
        launcher=launcher,
        env=tuple((name, value) for name, value in pairs if name and value is not None),
        only=listed(only),
        exclude=listed(exclude),
        timeout=line.seconds("--timeout", timeout),
        grace=line.seconds("--grace", grace) or 0.0,
        secrets=False,
    )
    return request, tuple(name for name, value in pairs if name and value is None)


def image_of(line: CommandLine, name: str) -> str:
    """Return the name of an image; empty for the image in hosts.yaml."""
    return line.value("--image", image, name) or "" if name else ""


def pairs_of(line: CommandLine, option: str, words: list[str] | None) -> tuple[tuple[str, str], ...]:
    """Return the names and values of an option NAME=VALUE."""
    pairs = []
    for word in words or ():
        name, equals, value = word.partition("=")
        if not name or not equals or not word.isprintable():
            line.refuse(f"{option} {word}", "should be NAME=VALUE")
        pairs.append((name, value))
    return tuple(pairs)


def job_of(
    line: CommandLine, hosts: str, batch: BatchRequest, target: str, output: str, verbose: bool
) -> BatchJob:
    """Return the job to render; query the hosts only if no option gives their number of GPUs."""
    check_folder(line, output)
    inventory: Inventory | None = line.hosts(hosts)
    if inventory is not None:
        line.read(check_batch, inventory, batch, target)
    inventory = line.accept(inventory)

    def ask(hosts: tuple[str, ...]) -> Mapping[str, Facts]:
        say(f"querying the number of GPUs of {host_list(hosts)}; to skip this query, use --gpus N")
        with connect(inventory, verbose, hosts) as session:
            return session.all_facts()

    return prepare_batch_job(inventory, batch, target, ask)


def definition_of(path: str) -> dict[str, Any]:
    """Return the definition in a YAML or JSON file.

    Raises:
        BadInput: the file cannot be read, or contains no definition.
    """
    found = read_yaml(path)
    if not isinstance(found, dict):
        what = "contains no CustomResourceDefinition (the output of `kubectl get crd NAME -o yaml`)"
        raise BadInput(path, (Problem("", what),))
    return found


def checked(steps: Any) -> dict[str, Any]:
    """Print each part of a check; return all parts for JSON."""
    found = []
    for step in steps:
        say(f"{step.verdict}: {step.what}" + (f"\n  {step.detail}" if step.detail else ""))
        found.append({"verdict": step.verdict, "what": step.what, "detail": step.detail})
    return {"check": found, "ok": all(step["verdict"] != "error" for step in found)}


def put(name: str, text: str, result: dict[str, Any], output: str, as_json: bool) -> None:
    """Print or write the rendered file; exit with 1 if a check failed."""
    if as_json:
        put_files({name: text}, output, False) if output else None
        put_json({"files": {name: text}, **result})
    elif output or not result:
        put_files({name: text}, output, False)
    if not result.get("ok", True):
        raise typer.Exit(1)
