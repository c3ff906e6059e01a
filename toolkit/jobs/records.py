"""The jobs of a cluster: their records and their states."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.cluster.session import Session
from toolkit.core.answers import read_answer
from toolkit.core.command import Command
from toolkit.core.host_programs import packed
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.jobs.exec_mode import Parts, all_parts
from toolkit.jobs.slots import Taken
from toolkit.jobs.status import JobStatus, parse_status
from toolkit.plan.context import reason
from toolkit.protocol.jobs import JobRow
from toolkit.protocol.names import JOBS
from toolkit.remote.fanout import fan_out

_MOST_SLOTS = 1 << 20  # of all jobs that a host lists


def known_jobs(session: Session) -> list[JobStatus]:
    """Return the jobs that main knows, or all hosts together where each has a part; oldest first.

    Raises:
        NotReady: main does not run; none of the hosts does.
    """
    if session.inventory.in_parts:
        return [parts.status for parts in job_parts(session)]
    return _parse(_ask(session, session.inventory.main))


def job_parts(session: Session, container_sessions: bool = False) -> list[Parts]:
    """Return the same for each host.

    Args:
        container_sessions: ask those that are open already, where there are any.
    """
    return all_parts(
        session, lambda host: _asked_in_session(session, host) if container_sessions else _ask(session, host)
    )


def job_statuses(session: Session) -> list[JobStatus]:
    """Return the same as ``known_jobs``, but none when main does not run."""
    # Only the jobs of this toolkit's own are requested from open sessions: `run` resumes no others.
    if session.inventory.in_parts:
        return [parts.status for parts in _parts_of_sessions(session)]
    try:
        session.container(session.inventory.main)
    except (ToolkitError, KeyError):
        return []
    return _parse(_asked_in_session(session, session.inventory.main))


def _parts_of_sessions(session: Session) -> list[Parts]:
    try:
        return job_parts(session, container_sessions=True)
    except (NotReady, Unreachable):
        return []


def running_jobs(session: Session) -> list[str]:
    """Return the jobs of which anything runs on any host that answers, whatever starts them."""

    def ask(host: str) -> list[str]:
        return [row.id for row in _ask(session, host) if row.alive]

    found, _ = fan_out(session.facts, ask)
    return sorted({job for jobs in found.values() for job in jobs})


def job_status(session: Session, job: str) -> JobStatus:
    """Return one job by its id, or by the last part of it.

    Raises:
        NotReady: main knows no such job or several, or does not run.
    """
    return find_job(known_jobs(session), job)


def find_job(known: Sequence[JobStatus], job: str) -> JobStatus:
    """Return the job with this id, or the only one whose id ends in it; see ``job_status``."""
    for one in known:
        if one.id == job:
            return one
    ends = [one for one in known if one.id.endswith(f"-{job}")]
    if len(ends) == 1:
        return ends[0]
    if ends:
        ids = [one.id for one in ends]
        what = f"{len(ids)} job ids end in {job}: {', '.join(ids[:-1])} and {ids[-1]}"
        raise NotReady(what, "toolkit jobs  # then run the same command again with the complete id")
    raise NotReady(f"there is no job {job}", "toolkit jobs")


def newest_job(session: Session, running: bool = False) -> JobStatus:
    """Return the job that started last.

    Args:
        running: of those that have not ended, if there is one.

    Raises:
        NotReady: none has ever run, or main does not run.
    """
    known = known_jobs(session)
    if not known:
        raise NotReady("the cluster has no job records", "toolkit run SCRIPT")
    return next((one for one in reversed(known) if running and not one.final), known[-1])


def taken_slots(session: Session) -> tuple[Taken, ...]:
    """Return the slots of running jobs; none if main does not run, or no host runs."""
    if not session.inventory.in_parts:
        return tuple(
            Taken(job.id, job.owner, dict(job.hosts)) for job in job_statuses(session) if not job.final
        )
    taken = [(parts, parts.taken) for parts in _parts_of_sessions(session)]
    return tuple(Taken(parts.id, parts.record.owner or "", slots) for parts, slots in taken if slots)


def _asked_in_session(session: Session, host: str) -> Sequence[JobRow]:
    answer = session.container_sessions.ask(host, {"do": "jobs"}, "the job list")
    return _ask(session, host) if answer.jobs is None else _limited(answer.jobs, host)


def _ask(session: Session, host: str) -> Sequence[JobRow]:
    """The rows that job_list.py makes of a host's jobs."""
    result = session.container(host).run(
        Command(("python3", "-", str(JOBS)), packed("job_list").encode()), 30
    )
    if not result.ok:
        what = f"cannot list the jobs of {host}: {reason(result)}"
        raise ToolkitError(what, "toolkit status -v")
    return _limited(read_answer(tuple[JobRow, ...], result.stdout, host, "the job list"), host)


def _limited(rows: Sequence[JobRow], host: str) -> Sequence[JobRow]:
    """Return the rows; a short list of jobs must not become a table of all their slots that fills the memory.

    Raises:
        ToolkitError: the jobs have more than ``_MOST_SLOTS`` slots together.
    """
    if sum(row.record.slots for row in rows if row.record) > _MOST_SLOTS:
        what = f"the jobs in the job list have more than {_MOST_SLOTS} slots together"
        raise ToolkitError(what, "toolkit down  # downloads the job records, then removes the cluster", host)
    return rows


def _parse(rows: Sequence[JobRow]) -> list[JobStatus]:
    known = [parse_status(row.id, row.status, row.alive, row.record) for row in rows]
    return sorted(known, key=lambda s: s.started)
