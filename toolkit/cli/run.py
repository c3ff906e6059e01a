"""toolkit run: a training run across the hosts, followed to its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli import complete
from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    Fold,
    HostsFile,
    Json,
    NoCheck,
    OnInterrupt,
    Raw,
    Verbose,
    as_warnings,
    connect,
    put_json,
    rank_output,
    say,
    say_changes,
    warn,
)
from toolkit.cli.line import variable
from toolkit.cli.plans import show_plans
from toolkit.cli.progress import Progress
from toolkit.cli.signals import Signals
from toolkit.cli.watch import ON_INTERRUPT
from toolkit.core.text import counted

if TYPE_CHECKING:
    from toolkit.cli.line import CommandLine
    from toolkit.cluster.session import Session
    from toolkit.core.finding import Finding


def run(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")],
    hosts: HostsFile = DEFAULT_HOSTS,
    ranks: Annotated[
        str | None, typer.Option("--np", metavar="N", help="Ranks; one per slot by default.")
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What starts the ranks: auto, horovodrun, torchrun …; else the file's.",
            autocompletion=complete.launchers,
        ),
    ] = "",
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]", help="A variable; without a value yours is passed on; repeatable."
        ),
    ] = None,
    workdir: Annotated[
        str, typer.Option(metavar="DIR", help="Folder that is sent, and that ranks run in.")
    ] = ".",
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]", help="On these hosts only; repeatable.", autocompletion=complete.host_list
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST[,HOST]", help="Not on these hosts; repeatable.", autocompletion=complete.host_list
        ),
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(metavar="SECONDS", help="Seconds until the job is ended.")
    ] = None,
    max_restarts: Annotated[
        str, typer.Option(metavar="N", help="Start it again by itself after a failure, so often at most.")
    ] = "0",
    min_hosts: Annotated[
        str | None,
        typer.Option(
            metavar="N", help="Restart on fewer hosts, at least so many; else on as many as before."
        ),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic", help="Let torchrun or horovodrun start ranks again by itself, where SCRIPT can."
        ),
    ] = False,
    stall_after: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Keep what ranks do when none has printed for so long."),
    ] = None,
    on_interrupt: OnInterrupt = "ask",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and come back at once.")] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Also on slots and GPUs that somebody else has.")
    ] = False,
    fold: Fold = True,
    raw: Raw = False,
    no_check: NoCheck = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run SCRIPT of the working directory, or a COMMAND, on all slots; ends with the job's exit code.

    The job belongs to the cluster: it goes on when this command, the terminal or the connection dies.
    """
    from toolkit.api.meanwhile import BeforeRun, fault_questions
    from toolkit.cli.line import CommandLine, listed
    from toolkit.jobs.launcher import launcher_findings
    from toolkit.jobs.request import Request, check_request, environment_findings, start_of

    line = CommandLine()
    line.one_of("--on-interrupt", on_interrupt, ON_INTERRUPT)
    request = Request(
        words=tuple(words),
        workdir=Path(os.path.realpath(workdir)),
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
    line.read(check_request, inventory, request)
    inventory = line.accept(inventory)
    findings = environment_findings(inventory, request)
    warn(findings)
    asked, ahead = () if no_check else fault_questions, BeforeRun(request.workdir, not no_check)
    with (
        Signals() as signals,
        connect(inventory, verbose, None, asked, desks=True, meanwhile=ahead) as session,
    ):
        from toolkit.checks.preflight import restart_warnings
        from toolkit.cli.watch import watch
        from toolkit.data.manage import refuse_lacking
        from toolkit.jobs.build import code_findings, make_job, plan_run, private_code
        from toolkit.jobs.control import start
        from toolkit.jobs.logs import Excerpt

        session.require_some()
        say_changes(changes := session.changes())
        findings = (*findings, *changes)
        job = make_job(session, request)
        how = start_of(inventory, request)
        if how.why:
            say(f"launcher {how.launcher}: {how.why}")
        plan = plan_run(session, job, request.workdir, ahead.tree)
        if private := private_code(plan):
            say(f"  stays on this machine, and is not sent with the code: {', '.join(private)}")
        about_job = (*launcher_findings(job, how), *code_findings(plan), *restart_warnings(session, job))
        warn(about_job)
        findings = (*findings, *about_job)
        if dry_run:
            show_plans(session, (plan,), as_json, as_warnings(findings))
            return
        if not no_check:
            refuse_lacking(session, {host.name for host in job.hosts})
            about_hosts = _refuse_faults(session, {job.main, *(host.name for host in job.hosts)})
            findings = (*findings, *about_hosts)
        pressed = False
        with Progress(verbose) as listener:
            try:
                start(session, plan, listener)
            except KeyboardInterrupt:
                pressed = True  # it runs already: to be ended like any other
        places = ", ".join(f"{h.name} x {h.slots}" for h in job.hosts)
        say(f"job {job.id}: {counted(job.world_size, 'rank')} ({places}), {job.launcher}")
        if detach and not pressed:
            say(f"  watch it: toolkit attach {job.id}    end it: toolkit stop {job.id}")
            if as_json:
                put_json({"job": job.id, "state": "starting", **as_warnings(findings)})
            return
        sink = None if as_json else rank_output(raw)
        status = watch(session, job.id, signals, Excerpt(fold=fold), on_interrupt, sink, pressed)
    if as_json:
        result = {"job": job.id, "state": status.state, "exit_code": status.exit_code, "from": "job"}
        put_json(result | as_warnings(findings))
    raise typer.Exit(status.exit_code if status.exit_code is not None else 1)


def _refuse_faults(session: Session, hosts: set[str]) -> tuple[Finding, ...]:
    """Stop at errors; print the first warnings and return all of them."""
    from toolkit.checks.preflight import preflight, refuse_faults
    from toolkit.plan.show import alarms_text, warnings_text

    found = preflight(session, hosts)
    errors = [finding for finding in found if finding.verdict == "error"]
    if errors:
        say(alarms_text(errors))
    refuse_faults(found)
    if found:
        say(warnings_text(found, "toolkit check"))
    return found


def _variables(line: CommandLine, words: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for word in words:
        name, value = variable(line, word)
        if not name:
            continue
        if value is None and name not in os.environ:
            line.refuse(f"--env {name}", "is not set here; write NAME=VALUE")
        pairs.append((name, os.environ.get(name, "") if value is None else value))
    return tuple(pairs)
