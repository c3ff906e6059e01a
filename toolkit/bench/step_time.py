"""Measurement of one step of a training script on one slot: its duration and the size of its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.cluster.session import Session
from toolkit.core.answers import answer_of
from toolkit.errors import BadInput, ToolkitError, quotation
from toolkit.hostsfile.inventory import Inventory
from toolkit.jobs.control import run_to_completion
from toolkit.jobs.launcher import rank_command, script_problems
from toolkit.jobs.make_job import plan_request
from toolkit.jobs.records import job_status
from toolkit.jobs.request import Request, check_request
from toolkit.plan.execute import Listener
from toolkit.predict.model import Probed, parse_probed
from toolkit.protocol.names import program

_SECONDS = 600.0


def probe_request(inventory: Inventory, script: str, arguments: Sequence[str], workdir: Path) -> Request:
    """Return the request that runs the script as one rank, on the main host if it has slots.

    Raises:
        BadInput: the script is outside the folder that toolkit sends, or is ignored.
    """
    command = rank_command((script, *arguments), workdir)
    if problems := script_problems(command, workdir):
        raise BadInput("command line", tuple(problems))
    ordered = sorted(inventory.hosts, key=lambda host: host.name != inventory.main)
    with_slots = [host.name for host in ordered if host.slots != 0]
    request = Request(
        # `python SCRIPT ARGUMENTS` without its first word; mpirun, because Horovod also starts under it.
        words=(*program("bench.step_time"), *command[1:]),
        workdir=workdir,
        ranks=1,
        launcher="mpirun",
        only=tuple(with_slots[:1]),
        timeout=_SECONDS,
    )
    check_request(inventory, request)
    return request


def probe_step(session: Session, request: Request, listen: Listener) -> Probed:
    """Run the script for a few steps and return the measurement.

    Raises:
        ToolkitError: the cluster is not up, or the script made no steps; contains the job's id.
    """
    planned = plan_request(session, request)
    job = planned.job
    text = run_to_completion(session, planned.plan, job.id, listen)
    with answer_of(job.hosts[0].name, "the step times of the script"):
        probed = parse_probed(text)
    if probed is None:
        ended = job_status(session, job.id)
        # Only the output of the rank: the launcher prints many lines about the exit after it.
        output = [line for line in text.splitlines() if line.startswith(f"[{job.hosts[0].name} 0] ")]
        tail = quotation(output[-6:])
        why = tail or f": {ended.reason}"
        raise ToolkitError(
            f"the job that measures the step time ended with the state {ended.state}, without a result{why}",
            f"toolkit logs {job.id}",
        )
    return probed
