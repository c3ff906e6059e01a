"""toolkit why: explain a hang or a failure, and save a bundle for a bug report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from toolkit.api.job import ClusterJob
from toolkit.cli.chosen_job import Job
from toolkit.cli.common import DEFAULT_HOSTS, HostsFile, Json, Verbose, connection_of, put_json, put_text
from toolkit.cli.failure import error_json
from toolkit.cli.line import CommandLine
from toolkit.core.files import write_bundle
from toolkit.diagnose.show import why_json
from toolkit.diagnose.verdict import FINAL
from toolkit.diagnose.why import bundle_files
from toolkit.errors import ToolkitError
from toolkit.hostsfile.load import is_file, is_folder
from toolkit.jobs.status import JobStatus
from toolkit.protocol.names import job_word
from toolkit.protocol.outcomes import JobState

_END = ".tar.gz"


def why(
    job: Job = "",
    hosts: HostsFile = DEFAULT_HOSTS,
    save: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Write the bundle to FILE "
            f"(default: ./why-JOB{_END}; if the job has ended without success, ./why-JOB-STATE{_END})",
        ),
    ] = "",
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Explain which rank blocks a job, or why the job ended.

    `toolkit why` queries all hosts of the job and changes nothing on the hosts. `toolkit why` writes a bundle
    with stacks and logs for a bug report; if the job succeeded, only with --save.

    Examples:
        toolkit why
        toolkit why a1b2 --save hang.tar.gz
    """
    line = CommandLine()
    if job:
        line.value("JOB", job_word, job)
    if save:
        _read_save(line, save)
    inventory = line.accept(line.hosts(hosts))
    answer = ClusterJob(connection_of(inventory, verbose), job).why()
    text = str(answer)
    result = why_json(answer.job, answer.evidence, answer.verdict, answer.known)
    if not as_json:
        put_text(text)
    if answer.job.state == JobState.SUCCEEDED and not save:
        if as_json:
            put_json(result | {"bundle": None})
        return
    path = Path(save or _default(answer.job))
    try:
        write_bundle(path, bundle_files(answer, text, result), time.time(), replace=not save)
    except ToolkitError as error:
        if not as_json:
            raise
        # The result is useful without the bundle.
        put_json(result | {"bundle": None} | error_json(error))
        raise typer.Exit(error.exit_code) from error
    if as_json:
        put_json(result | {"bundle": str(path)})
    else:
        put_text(f"\nbundle for a bug report: {path}")


def _read_save(line: CommandLine, save: str) -> None:
    if "\0" in save or not save.endswith(_END) or Path(save).name == _END:
        line.refuse("--save", f"should be the name of a file that ends with {_END}, found {save!r}")
    elif is_file(save) or is_folder(save):
        line.refuse("--save", f"{save} exists already; choose another name")


def _default(job: JobStatus) -> str:
    """Return the name of the bundle. The end of a job does not replace the evidence of its hang."""
    state = f"-{job.state}" if job.state in FINAL else ""
    return f"why-{job.id}{state}{_END}"
