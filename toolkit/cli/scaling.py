"""toolkit bench scaling: measure how the throughput of a script grows with the number of hosts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from toolkit.bench.scaling import measure_all
from toolkit.bench.scaling_report import BATCHES, Scaling, parse_prediction, scaling_html
from toolkit.cli import complete
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connect, say
from toolkit.cli.failure import put_result_and_page
from toolkit.cli.line import CommandLine, listed
from toolkit.cli.progress import Progress
from toolkit.cluster.session import Session
from toolkit.core.files import refuse_file, write_file
from toolkit.core.printable import table
from toolkit.jobs.request import Request, check_request


def scaling(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")],
    hosts: HostsFile = DEFAULT_HOSTS,
    on: Annotated[
        str,
        typer.Option(
            metavar="N[,N]",
            help="Numbers of hosts to measure (default: from 1 to all hosts; with more than 16 hosts, 1 to "
            "8, powers of two, and all hosts)",
        ),
    ] = "",
    seconds: Annotated[
        str,
        typer.Option(metavar="SECONDS", help="Target duration of the measurement for each number of hosts"),
    ] = "20",
    warm_up: Annotated[
        str, typer.Option(metavar="SECONDS", help="Warm-up time between the first step and the measurement")
    ] = "5",
    patience: Annotated[
        str,
        typer.Option(
            metavar="SECONDS",
            help="Maximum time until a rank prints its first step number, and then between two step numbers "
            "of this rank",
        ),
    ] = "300",
    batch: Annotated[
        str,
        typer.Option(
            metavar="rank|all",
            help="Meaning of the script's batch size: samples per rank (`rank`), or "
            "samples of all ranks (`all`)",
            autocompletion=complete.one_of("rank", "all"),
        ),
    ] = "rank",
    predicted: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare the measurement with FILE, the output of `toolkit predict --json`"
        ),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Launcher for the ranks (default: the launcher in hosts.yaml)",
            autocompletion=complete.launchers,
        ),
    ] = "",
    workdir: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Folder with the code; toolkit copies the folder to the hosts and starts ranks in the copy",
        ),
    ] = ".",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]",
            help="Use only the listed hosts (default: all hosts except spare hosts)",
            autocompletion=complete.host_list,
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report to FILE")] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure how throughput grows with the number of hosts.

    toolkit runs the script on different numbers of hosts (see --on), measures the steps per second of each
    run, and prints speedup and efficiency. toolkit stops each run after the measurement. At least one rank
    must print step numbers in a format that `toolkit top` reads, for example `step 120`.

    Examples:
        toolkit bench scaling train.py
        toolkit bench scaling --on 1,2,4 --seconds 30 --report scaling.html train.py --batch 64
    """
    line = CommandLine()
    line.one_of("--batch", batch, BATCHES)
    times = tuple(
        line.seconds(name, text, least=0 if name == "--warm-up" else 1)
        for name, text in (("--warm-up", warm_up), ("--seconds", seconds), ("--patience", patience))
    )
    hoped = line.read(parse_prediction, _json_of(line, predicted), str(predicted)) if predicted else ()
    request = Request(
        words=tuple(words),
        workdir=line.folder("--workdir", workdir),
        launcher=launcher,
        only=listed(only),
    )
    inventory = line.hosts(hosts)
    line.read(check_request, inventory, request)
    numbers = _numbers(line, on)
    if report is not None:
        line.read(refuse_file, report, True)
    inventory = line.accept(inventory)
    with connect(inventory, verbose, None, container_sessions=True) as session:
        session.require_some()
        found = _measure(session, request, numbers, times, verbose)
    found = replace(found, batch=batch, predicted=hoped or ())

    def write() -> Path | None:
        when = datetime.now().strftime("%Y-%m-%d %H:%M")
        title = f"Scaling of {' '.join(words)} on {inventory.cluster}"
        return write_file(report, scaling_html(found, title, when)) if report else None

    put_result_and_page(found.as_json(), _text(found), as_json, write)
    if found.faults:
        raise typer.Exit(1)


def _numbers(line: CommandLine, text: str) -> tuple[int, ...]:
    """Return the requested numbers of hosts; empty for all."""
    words = [word.strip() for word in text.split(",")] if text else []
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        line.refuse("--on", f"should be numbers of hosts such as 1,2,4, found {text!r}")
        return ()
    return tuple(sorted({int(word) for word in words}))


def _json_of(line: CommandLine, path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        line.refuse("--predicted", f"{path}: {getattr(error, 'strerror', None) or 'is not JSON'}")
        return {"rows": [{"hosts": 1, "efficiency": 1.0}]}


def _measure(
    session: Session,
    request: Request,
    numbers: tuple[int, ...],
    times: tuple[float | None, ...],
    verbose: bool,
) -> Scaling:
    warm_up, seconds, patience = (time or 0.0 for time in times)
    with Progress(verbose, brief=True) as listener:
        return measure_all(session, request, numbers, (warm_up, seconds, patience), listener, say)


def _text(found: Scaling) -> str:
    head, rows = found.rows()
    # `measure_all` has printed the complete errors.
    faults = "".join(f"not measured: {fault.splitlines()[0]}\n" for fault in found.faults)
    return (table(head, rows) + "\n" if rows else "") + faults + f"{found.verdict}\n"
