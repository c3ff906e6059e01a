"""toolkit init: write the first hosts.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.cli.asking import Person, on_terminal, undone_if_interrupted
from toolkit.cli.common import COMMON, Json, put_json, put_text, say
from toolkit.cli.failure import error_json
from toolkit.cli.init_questions import pick_cluster, pick_hosts, pick_mounts, survey_and_ask
from toolkit.cli.line import CommandLine
from toolkit.core.command import quoted
from toolkit.core.files import refuse_file, write_file
from toolkit.core.printable import counted
from toolkit.errors import ToolkitError
from toolkit.hostsfile import fields
from toolkit.init.answers import cluster_name, read_choice
from toolkit.init.draft import Draft, DraftHost, faults_between, hosts_file, named, read_host
from toolkit.init.filling import build_of
from toolkit.init.probe_hosts import Survey, fill, read_hostfile
from toolkit.init.show import essence
from toolkit.init.ssh_aliases import find_aliases

_NOTHING = "toolkit wrote no hosts.yaml"


def init(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[HOST]...",
            help="Host, as [NAME=][USER@]ADDRESS[:SLOTS]",
        ),
    ] = None,
    find: Annotated[
        bool,
        typer.Option(
            "--find",
            help="Use all aliases in ~/.ssh/config as hosts, except patterns, duplicates, invalid aliases, "
            "and aliases with the user git",
        ),
    ] = False,
    try_hosts: Annotated[
        bool,
        typer.Option(
            "--try", help="Connect to the hosts to detect settings, and ask only about unknown SSH host keys"
        ),
    ] = False,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes",
            "-y",
            help="Connect to the hosts as with --try, but without prompts; omit hosts with an unknown SSH "
            "host key",
        ),
    ] = False,
    from_hostfile: Annotated[
        str, typer.Option(metavar="FILE", help="Read the hosts from an Open MPI hostfile")
    ] = "",
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Name of the cluster (default: demo). If toolkit connects to the hosts, the default is the "
            "name of the output file, or the name of its folder if the file is hosts.yaml",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE",
            help="Image of the containers (default: toolkit:gpu; if toolkit connects to the hosts, "
            "toolkit:cpu, toolkit:gpu or toolkit:gpu-cuda12, depending on the hosts' GPUs and drivers)",
        ),
    ] = None,
    user: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="SSH user of each HOST without USER@, and of each host without a user in the hostfile "
            "(default: the user that ssh uses)",
        ),
    ] = "",
    output: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE", help="File to write; `-` means standard output"),
    ] = "hosts.yaml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file")] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print hosts.yaml and change nothing", rich_help_panel=COMMON),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a commented hosts.yaml.

    Without HOST and without --from-hostfile, toolkit chooses the hosts as follows:

    - With --find, --try or --yes, toolkit uses the aliases in ~/.ssh/config (see --find).
    - On a terminal, toolkit asks for the hosts, unless you use --find, --try, --yes or --json.
    - With --json or without a terminal, and with none of --find, --try and --yes, toolkit writes two
      placeholder hosts, which you must replace.

    Examples:
        toolkit init
        toolkit init gpu1 gpu2=alice@10.0.0.2:8
        toolkit init --find --try
    """
    line = CommandLine()
    named_here = bool(words or from_hostfile)
    if find and named_here:
        line.refuse("--find", "cannot be combined with HOST or --from-hostfile")
    draft = line.accept(_draft(line, words or [], from_hostfile, cluster, image, user))
    talk = not (named_here or find or try_hosts or yes or as_json) and on_terminal()
    to_file = not dry_run and output != "-"
    if to_file and (talk or try_hosts or yes):
        refuse_file(output, force)  # before the questions, so that no answer is lost
    result: dict[str, Any] = {}
    with undone_if_interrupted(_NOTHING):
        person = Person(talk)
        if talk or find or (not named_here and (try_hosts or yes)):
            draft = replace(draft, hosts=_found(person, user))
        if (talk or try_hosts or yes) and draft.hosts:
            draft, survey = survey_and_ask(person, draft, yes, dry_run)
            _require_some(survey, as_json)
            draft, result = _filled(person, draft, survey, cluster, image, output)
        if talk:
            _show(person, draft, output if to_file else "")
    _write(draft, result, from_hostfile, output if to_file else "", force, as_json)
    if named_here and draft.left_out:
        raise typer.Exit(1)


def _draft(
    line: CommandLine, words: list[str], hostfile: str, cluster: str | None, image: str | None, user: str
) -> Draft | None:
    """Return the hosts that the command line names, as a draft of hosts.yaml."""
    if cluster is not None:
        line.value("--cluster", fields.cluster, cluster)
    if image is not None:
        line.value("--image", fields.image, image)
    if user:
        line.value("--user", fields.user, user)
    if hostfile and words:
        line.refuse("--from-hostfile", f"cannot be combined with {' '.join(words)}")
    read = [line.value(word, read_host, word) for word in words]
    known = [(word, host) for word, host in zip(words, read, strict=True) if host]
    for index, message in faults_between([host for _, host in known]):
        line.refuse(known[index][0], message)
    hosts: tuple[DraftHost, ...] = tuple(host for _, host in known)
    if hostfile:
        hosts = line.read(read_hostfile, hostfile) or ()
    hosts = tuple(replace(host, user=host.user or user) for host in hosts)
    return Draft(cluster or "demo", image or "toolkit:gpu", hosts)


def _found(person: Person, user: str) -> tuple[DraftHost, ...]:
    return pick_hosts(person, find_aliases(), user)


def _require_some(survey: Survey, as_json: bool) -> None:
    """Exit if none of the hosts can be used.

    Raises:
        ToolkitError: no host can be used; with ``--json``, the state of every host is printed instead.
    """
    if any(surveyed.usable for surveyed in survey.hosts.values()):
        return
    error = ToolkitError(f"no host is usable, so {_NOTHING}", next(iter(survey.hosts.values())).fix)
    if as_json:
        put_json({**error_json(error), "found": [surveyed.as_json() for surveyed in survey.hosts.values()]})
        raise typer.Exit(error.exit_code)
    raise error


def _filled(
    person: Person, draft: Draft, survey: Survey, cluster: str | None, image: str | None, output: str
) -> tuple[Draft, dict[str, Any]]:
    """Return the draft with the reports of its hosts, and the same as JSON; the command line has priority."""
    surveyed = survey.hosts
    usable = [host.name for host in named(draft.hosts) if surveyed[host.name].usable]
    mounts = pick_mounts(person, survey, usable)
    if cluster is None:
        place = Path(output).absolute()
        cluster = pick_cluster(person, survey, cluster_name(Path(output).stem, place.parent.name))
    draft, choice = fill(draft, survey, cluster, image or "", mounts)
    found = [
        one.as_json()
        | ({"data_address": path.address, "interface": path.interface, "why": path.reason} if path else {})
        for one in surveyed.values()
        for path in [choice.paths.get(one.host)]
    ]
    return draft, {
        "cluster": draft.cluster,
        "image": draft.image,
        "engine": draft.engine,
        "mounts": [mount.source for mount in mounts],
        "left_out": [{"host": host, "what": what} for host, what in draft.left_out],
        "found": found,
    }


def _show(person: Person, draft: Draft, file: str) -> None:
    """Show the text of the file, and ask whether to write it."""
    say(essence(hosts_file(draft)))
    if file and person.ask(f"write {file}?", "yes", lambda text: read_choice(text, ("yes", "no"))) == "no":
        say(_NOTHING)
        raise typer.Exit(1)


def _write(draft: Draft, found: dict[str, Any], hostfile: str, file: str, force: bool, as_json: bool) -> None:
    """Write the file, or print it if ``file`` is empty, and print the next commands."""
    text, hosts = hosts_file(draft), named(draft.hosts)
    result = {"file": file, "hosts": [host.name for host in hosts], **found}
    if not file:
        put_json({**result, "text": text}) if as_json else put_text(text)
        return
    path = write_file(file, text, replace=force)
    if as_json:
        put_json(result | {"file": str(path)})
        return
    many = (
        f" with {counted(len(hosts), 'host')}, image {draft.image}"
        if hosts
        else "; add your hosts to the file"
    )
    say(f"wrote {path}{many}")
    if hostfile and (bare := [host.name for host in hosts if host.slots is None]):
        default = "the default is one slot per GPU, or 1 without GPUs"
        say(f"  {hostfile} sets no slots for {', '.join(bare)}; {default}")
    say(f"  next: {_next(draft, file, bool(found))}")


def _next(draft: Draft, file: str, probed: bool) -> str:
    where = "" if file == "hosts.yaml" else f" --hosts {quoted(file)}"
    if not probed:
        return f"toolkit trust{where}, then toolkit up{where}"
    from toolkit.remote.engine import Engine

    engine = Engine.find()
    there = engine is not None and engine.image(draft.image) is not None
    command = "" if there else build_of(draft.image)
    build = f"{command}, then " if command else ""
    return f"{build}toolkit check{where}, then toolkit up{where}"
