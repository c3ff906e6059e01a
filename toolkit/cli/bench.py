"""toolkit bench network: measure the network between the containers, in the image of the cluster."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from toolkit.bench.network import NetworkBench, bench_plan, check_bench, run_bench
from toolkit.bench.network_html import network_html
from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    Verbose,
    connect,
)
from toolkit.cli.failure import put_result_and_page
from toolkit.cli.line import CommandLine, listed
from toolkit.cli.plans import show_plans
from toolkit.cli.progress import Progress
from toolkit.core.files import refuse_file, write_file
from toolkit.core.printable import table
from toolkit.jobs.request import Request, check_request
from toolkit.network.measured import Measured, shown_bytes, shown_rate, shown_share, shown_time


def network(
    hosts: HostsFile = DEFAULT_HOSTS,
    seconds: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Measure each pair of hosts for SECONDS (0.05 to 60) in each direction; 0 skips this "
            "measurement",
        ),
    ] = 0.5,
    streams: Annotated[
        int, typer.Option(metavar="N", help="Number of parallel TCP connections per pair of hosts")
    ] = 4,
    engine: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="auto|mpi|gloo|nccl",
            help="Library of the all-reduce. `auto` selects nccl if every rank has a GPU, otherwise mpi",
            autocompletion=complete.one_of("auto", "mpi", "gloo", "nccl"),
        ),
    ] = "auto",
    most: Annotated[
        int,
        typer.Option(
            metavar="MIB", help="Maximum size of an all-reduce in MiB, up to 4096; 0 skips the all-reduces"
        ),
    ] = 256,
    budget: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Time limit of the all-reduce measurement; toolkit skips each size whose measurement would "
            "exceed the limit",
        ),
    ] = 30.0,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]",
            help="Use only the listed hosts (default: all hosts except spare hosts)",
            autocompletion=complete.host_list,
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Write an HTML report to FILE")] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Measure bandwidth, latency and all-reduce time.

    By default, toolkit measures each pair of hosts in both directions, and then measures all-reduces
    over all slots of the hosts. The sizes of the all-reduces are 1 KiB, 4 KiB, 16 KiB and so on, up to
    --most.

    Examples:
        toolkit bench network
        toolkit bench network --backend mpi --report network.html
        toolkit bench network --only gpu1,gpu2 --json
    """
    line = CommandLine()
    bench = NetworkBench(seconds, streams, engine, most * 1024**2, budget)
    line.read(check_bench, bench)
    inventory = line.hosts(hosts)
    chosen = listed(only)
    request = Request(words=("python3",), launcher="mpirun", only=chosen, secrets=False)
    line.read(check_request, inventory, request)
    if report is not None:
        line.read(refuse_file, report, True)
    inventory = line.accept(inventory)
    with connect(inventory, verbose) as session:
        session.require_some()
        if dry_run:
            show_plans(session, (bench_plan(session, bench, chosen),), as_json)
            return
        with Progress(verbose, brief=True) as listener:
            measured = run_bench(session, bench, listener, chosen)

    def write() -> Path | None:
        when = datetime.now().strftime("%Y-%m-%d %H:%M")
        return write_file(report, network_html(measured, inventory.cluster, when)) if report else None

    put_result_and_page(measured.as_json(), _text(measured), as_json, write)
    if measured.faults:
        raise typer.Exit(1)


def _text(measured: Measured) -> str:
    links = {(k.source, k.target): k for k in measured.pairs}

    def cell(a: str, b: str) -> str:
        link = links.get((a, b))
        return f"{shown_rate(link.rate)} {shown_time(link.latency)}" if link else "-" if a == b else "?"

    text = ""
    if measured.pairs:
        rows = [(a, *(cell(a, b) for b in measured.hosts)) for a in measured.hosts]
        text += table(("from \\ to", *measured.hosts), rows) + "\n"
    if measured.allreduce:
        rows = [
            (
                shown_bytes(p.size),
                shown_time(p.seconds),
                f"{p.algbw / 1e9:.3g}",
                f"{p.busbw / 1e9:.3g}",
                shown_share(measured.wire_share(p)),
            )
            for p in measured.allreduce
        ]
        head = ("size", f"all-reduce ({measured.engine})", "algbw GB/s", "busbw GB/s", "of slowest link")
        text += table(head, rows) + "\n"
    faults = "".join(f"not measured: {fault}\n" for fault in measured.faults)
    # A result with all-reduces only needs no sentence about links.
    verdict = measured.verdict() + "\n" if measured.pairs or not measured.allreduce else ""
    return text + faults + verdict
