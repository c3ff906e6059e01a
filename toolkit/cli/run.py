"""toolkit run: start a job on the hosts and follow it to its end."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from toolkit.api.run import prepare_run
from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    LineCollapser,
    OnInterrupt,
    Raw,
    Verbose,
    as_warnings,
    connection_of,
    put_json,
    rank_output,
    say,
    say_job_commands,
    show_notice,
)
from toolkit.cli.line import CommandLine, listed, variable
from toolkit.cli.plans import show_plans
from toolkit.cli.progress import Progress
from toolkit.cli.signals import Signals
from toolkit.cli.watch import ON_INTERRUPT, watch
from toolkit.core.finding import Notice, Topic, alarms_text, warnings_text
from toolkit.core.printable import counted
from toolkit.hostsfile.fields import LAUNCHER_NAMES
from toolkit.jobs.logs import Excerpt
from toolkit.jobs.request import Request, check_request
from toolkit.protocol.host_list import host_list, slots_list


def run(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")],
    hosts: HostsFile = DEFAULT_HOSTS,
    ranks: Annotated[
        str | None, typer.Option("--np", metavar="N", help="Start N ranks (default: one per slot)")
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Launcher for the ranks: {', '.join(LAUNCHER_NAMES)} (default: the launcher in hosts.yaml)",
            autocompletion=complete.launchers,
        ),
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Set an environment variable for all ranks. Without VALUE, use the value in your "
            "environment",
        ),
    ] = None,
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
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]", help="Do not use the listed hosts", autocompletion=complete.host_list
        ),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Stop the job after SECONDS (default: no time limit)"),
    ] = None,
    max_restarts: Annotated[
        str, typer.Option(metavar="N", help="Restart the job automatically after a failure, at most N times")
    ] = "0",
    min_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="N",
            help="With --max-restarts, allow a restart on fewer hosts, at least N (default: the number of "
            "hosts at the start)",
        ),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic",
            help="With --max-restarts, let torchrun or horovodrun restart ranks. SCRIPT must support "
            "restarts",
        ),
    ] = False,
    stall_after: Annotated[
        str | None,
        typer.Option(
            metavar="SECONDS",
            help="If no rank prints for SECONDS, save the stack of every rank for `toolkit why` (default: "
            "never)",
        ),
    ] = None,
    on_interrupt: OnInterrupt = "ask",
    detach: Annotated[
        bool, typer.Option("--detach", "-d", help="Start the job and exit without following its output")
    ] = False,
    share: Annotated[
        bool,
        typer.Option(
            "--share", help="Oversubscribe: use slots and GPUs even if other jobs or programs use them"
        ),
    ] = False,
    fold: LineCollapser = True,
    raw: Raw = False,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Skip the host and data set checks (see `toolkit check`)"),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run a script or a command on the slots of the cluster.

    By default, toolkit sends the working directory to the hosts, starts one rank per slot, and prints the
    output of all ranks. After the end of the job, `toolkit run` exits with the exit code of the job. A
    started job continues on the hosts if `toolkit run` is killed, the terminal closes or the connection
    fails. Put options of `toolkit run` before SCRIPT, because toolkit passes all arguments after SCRIPT to
    SCRIPT.

    Examples:
        toolkit run train.py --epochs 10
        toolkit run --launcher torchrun --only gpu1,gpu2 train.py
        toolkit run --np 4 --env WANDB_API_KEY -- python3 -m my.module
        toolkit run --detach --max-restarts 3 train.py
    """
    line = CommandLine()
    line.one_of("--on-interrupt", on_interrupt, ON_INTERRUPT)
    request = Request(
        words=tuple(words),
        workdir=line.folder("--workdir", workdir),
        ranks=line.whole("--np", ranks),
        launcher=launcher,
        env=_variables(line, env or []),
        only=listed(only),
        exclude=listed(exclude),
        timeout=line.seconds("--timeout", timeout),
        max_restarts=line.whole("--max-restarts", max_restarts, least=0) or 0,
        min_hosts=line.whole("--min-hosts", min_hosts) or 0,
        stall_after=line.seconds("--stall-after", stall_after),
        elastic=elastic,
        share=share,
    )
    inventory = line.hosts(hosts)
    checked = line.read(check_request, inventory, request)
    cluster = connection_of(line.accept(inventory), verbose, _show)
    checked = line.accept(checked)
    with Signals() as signals, prepare_run(cluster, checked, str, not no_check) as prepared:
        session, job = prepared.session, prepared.job
        if dry_run:
            show_plans(session, prepared.plans, as_json, as_warnings(prepared.findings))
            return
        pressed = False
        with Progress(verbose, brief=True) as listener:
            try:
                prepared.execute(listener)
            except KeyboardInterrupt:
                if not prepared.begun:
                    raise
                pressed = True  # the job runs already and is stopped like any other job
        ranks, places = counted(job.world_size, "rank"), slots_list((h.name, h.slots) for h in job.hosts)
        say(f"job {job.id}: {ranks} ({places}), {job.launcher}")
        if detach and not pressed:
            say_job_commands(job.id)
            if as_json:
                put_json({"job": job.id, "state": "starting", **as_warnings(prepared.findings)})
            return
        sink = None if as_json else rank_output(raw)
        first = f"ranks are starting on {host_list(h.name for h in job.hosts)}"
        excerpt = Excerpt(fold=fold)
        status = watch(session, job.id, signals, excerpt, on_interrupt, sink, pressed, first)
    if as_json:
        result = {"job": job.id, "state": status.state, "exit_code": status.exit_code, "from": "job"}
        put_json(result | as_warnings(prepared.findings))
    raise typer.Exit(status.exit_code if status.exit_code is not None else 1)


def _show(notice: Notice) -> None:
    """Print a notice. Of problems of hosts, print the errors; without errors, the first warnings."""
    show_notice(notice)
    if notice.topic is Topic.HOSTS:
        errors = [finding for finding in notice.findings if finding.verdict == "error"]
        say(alarms_text(errors) if errors else warnings_text(notice.findings, "toolkit check"))


def _variables(line: CommandLine, words: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in words:
        name, value = variable(line, word)
        if not name:
            continue
        if value is None and name not in os.environ:
            line.refuse(f"--env {name}", "is not set in your environment; write NAME=VALUE")
        pairs.append((name, os.environ.get(name, "") if value is None else value))
    return tuple(pairs)
