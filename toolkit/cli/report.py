"""toolkit report: write an HTML page about a job."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from toolkit.api.job import ClusterJob
from toolkit.bench.scaling_report import parse_scaling
from toolkit.cli import complete
from toolkit.cli.chosen_job import Job, read_job
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connection_of, put_json, put_text, say
from toolkit.cli.failure import error_json
from toolkit.cli.line import CommandLine
from toolkit.core.files import write_file, write_page
from toolkit.errors import BadInput, ToolkitError
from toolkit.monitor.job_report import JobReport
from toolkit.monitor.report_html import compare_html, comparison, report_html, verdict
from toolkit.network.measured import Measured, parse_measured


def report(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    output: Annotated[
        str,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the page to FILE (default: ./report-JOB.html; with --compare OTHER, "
            "./report-JOB-OTHER.html; with --json, no file)",
        ),
    ] = "",
    compare: Annotated[
        str,
        typer.Option(metavar="JOB", help="Compare the job with another job", autocompletion=complete.jobs),
    ] = "",
    scaling: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Include FILE, the output of `toolkit bench scaling --json`"),
    ] = None,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Write an HTML page about a job.

    The HTML page shows hosts, ranks, the duration of each phase, throughput, load, restarts and versions. The
    HTML page is a single file without external resources.

    Examples:
        toolkit report
        toolkit report a1b2 --output run.html
        toolkit report a1b2 --compare c3d4
    """
    line = CommandLine()
    read_job(line, job)
    read_job(line, compare)
    if compare and scaling:
        line.refuse("--scaling", "cannot be combined with --compare")
    grown = line.read(parse_scaling, _json_of(line, scaling), str(scaling)) if scaling else None
    inventory = line.accept(line.hosts(hosts))
    cluster = connection_of(inventory, verbose)
    one = ClusterJob(cluster, job).report()
    other = ClusterJob(cluster, compare).report() if compare else None
    when = datetime.now().strftime("%Y-%m-%d %H:%M")
    if other is not None:
        text, page = comparison(one, other), compare_html(one, other, when)
        name = f"report-{one.status.id}-{other.status.id}.html"
    else:
        text, page = verdict(one), report_html(one, when, _measured(one), grown)
        name = f"report-{one.status.id}.html"
    path = write_file(output, page) if output else None if as_json else write_page(name, page)
    for host, why in one.silent:
        say(f"warning: the report does not include {host}: {why}")
    no_host = one.silent and not one.hosts
    error = ToolkitError("no host of the job answered", "toolkit status") if no_host else None
    if as_json:
        result: dict[str, Any] = one.as_json() | {"page": str(path) if path else None, "verdict": text}
        put_json(
            result | ({"compared": other.as_json()} if other else {}) | (error_json(error) if error else {})
        )
        if error:
            raise typer.Exit(error.exit_code)
    else:
        put_text(text)
        say(f"wrote {path}")
        if error:
            raise error


def _measured(report: JobReport) -> Measured | None:
    """Return the measured network; None without a measurement that this version can read."""
    job, text = report.network
    try:
        return parse_measured(text, job) if text else None
    except BadInput:
        return None


def _json_of(line: CommandLine, path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        line.refuse("--scaling", f"{path}: {getattr(error, 'strerror', None) or 'is not JSON'}")
        return {"rows": [], "batch": "rank", "faults": []}
