"""toolkit run: a training run across the hosts, followed to its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolkit.cli.common import (
    DEFAULT_HOSTS,
    DryRun,
    HostsFile,
    Json,
    NoCheck,
    Progress,
    Verbose,
    connect,
    load,
    put_json,
    say,
    to_stdout,
)

if TYPE_CHECKING:
    from toolkit.api import Session
    from toolkit.jobs import Status

# A script's own options come after it and are not ours.
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def run(
    words: Annotated[list[str], typer.Argument(metavar="SCRIPT [ARGS]... | -- COMMAND...")],
    hosts: HostsFile = DEFAULT_HOSTS,
    ranks: Annotated[int | None, typer.Option("--np", min=1, help="Ranks; one per slot by default.")] = None,
    launcher: Annotated[str, typer.Option(help="horovodrun, mpirun or torchrun; else the file's.")] = "",
    env: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, or NAME to pass yours on; repeatable.")
    ] = None,
    workdir: Annotated[Path, typer.Option(help="Folder that is sent, and that ranks run in.")] = Path(),
    only: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="On these hosts only; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="Not on these hosts; repeatable.")
    ] = None,
    timeout: Annotated[float | None, typer.Option(min=1, help="Seconds until the job is ended.")] = None,
    on_interrupt: Annotated[str, typer.Option(help="stop or detach: what Ctrl-C does.")] = "stop",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Start it and come back at once.")] = False,
    share: Annotated[bool, typer.Option("--share", help="Also while another job runs.")] = False,
    no_check: NoCheck = False,
    dry_run: DryRun = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Run SCRIPT of the working directory, or a COMMAND, on all slots; ends with the job's exit code.

    The job belongs to the cluster: it goes on when this command, the terminal or the connection dies.
    """
    from toolkit.jobs import start
    from toolkit.preflight import questions
    from toolkit.request import Request, check_request, make_job, plan_run
    from toolkit.show import plan_text

    variables = _variables(env or [])
    _check_choice(on_interrupt)
    inventory = load(hosts)
    request = Request(
        words=tuple(words),
        workdir=workdir.resolve(),
        ranks=ranks,
        launcher=launcher,
        env=variables,
        only=tuple(only or ()),
        exclude=tuple(exclude or ()),
        timeout=timeout,
        share=share,
    )
    check_request(inventory, request)
    with connect(inventory, verbose, questions=() if no_check else questions()) as session:
        session.require_some()
        job = make_job(session, request)
        plan = plan_run(session, job, request.workdir)
        if dry_run:
            print(plan_text(plan), end="")
            return
        if not no_check:
            _refuse_faults(session, {job.main, *(host.name for host in job.hosts)})
        listener = Progress(verbose)
        pressed = False
        try:
            start(session, plan, listener)
        except KeyboardInterrupt:
            pressed = True  # it runs already: to be ended like any other
        finally:
            listener.close()
        places = ", ".join(f"{h.name} x {h.slots}" for h in job.hosts)
        say(f"job {job.id}: {job.world_size} ranks ({places}), {job.launcher}")
        if detach and not pressed:
            say(f"  follow it: toolkit logs {job.id}    end it: toolkit stop {job.id}")
            if as_json:
                put_json({"job": job.id, "state": "starting"})
            return
        status = _watch(session, job.id, on_interrupt, as_json, pressed)
    if as_json:
        put_json({"job": job.id, "state": status.state, "exit_code": status.exit_code, "from": "job"})
    raise typer.Exit(status.exit_code if status.exit_code is not None else 1)


def _refuse_faults(session: Session, hosts: set[str]) -> None:
    """Stop at errors; warnings were told by `up` and are only counted here."""
    from toolkit.preflight import preflight, refuse_faults
    from toolkit.show import alarms_text

    found = preflight(session, hosts)
    errors = [finding for finding in found if finding.verdict == "error"]
    if errors:
        say(alarms_text(errors))
    refuse_faults(found)
    if found:
        many = "1 warning" if len(found) == 1 else f"{len(found)} warnings"
        say(f"{many} about the hosts: toolkit check")


def _watch(session: Session, job: str, on_interrupt: str, quiet: bool, pressed: bool) -> Status:
    """Follow the job to its end, and do what Ctrl-C asks for, ``pressed`` for one that came before."""
    from toolkit.errors import Unreachable
    from toolkit.jobs import follow, kill, status, stop

    sink = (lambda data: None) if quiet else to_stdout
    try:
        if pressed:
            raise KeyboardInterrupt
        follow(session, job, sink)
    except Unreachable as error:
        fix = f"it goes on without us; when main answers again: toolkit logs {job}"
        raise Unreachable(f"lost sight of {job}: {error.what}", fix, error.host) from error
    except KeyboardInterrupt:
        if on_interrupt == "detach":
            say(f"\ndetached; {job} goes on. Follow it: toolkit logs {job}    end it: toolkit stop {job}")
            raise typer.Exit(130) from None
        say(f"\nstopping {job} on all hosts (Ctrl-C again: kill it at once)")
        try:
            stop(session, job, interrupt=True)
        except KeyboardInterrupt:
            say(f"\nkilling {job} on all hosts")
            kill(session, job)
            stop(session, job, interrupt=True)
    final = status(session, job)
    took = f" after {final.ended - final.started:.1f} s" if final.ended else ""
    why = f": {final.reason}" if final.reason else ""
    say(f"job {job}: {final.state}{took}, exit code {final.exit_code}{why}")
    if final.unswept:
        say(f"  could not look for leftovers on {', '.join(final.unswept)}; toolkit down does")
    return final


def _variables(words: list[str]) -> tuple[tuple[str, str], ...]:
    import os

    from toolkit.errors import BadInput, Problem
    from toolkit.spec.fields import env_name

    pairs, problems = [], []
    for word in words:
        name, equals, value = word.partition("=")
        try:
            env_name(name)
        except ValueError as error:
            problems.append(Problem(f"--env {name}", str(error)))
            continue
        if not equals and name not in os.environ:
            problems.append(Problem(f"--env {name}", "is not set here; write NAME=VALUE"))
        pairs.append((name, value if equals else os.environ.get(name, "")))
    if problems:
        raise BadInput("command line", tuple(problems))
    return tuple(pairs)


def _check_choice(on_interrupt: str) -> None:
    from toolkit.errors import BadInput, Problem

    if on_interrupt not in ("stop", "detach"):
        problem = Problem("--on-interrupt", f"is stop or detach, found {on_interrupt}")
        raise BadInput("command line", (problem,))
