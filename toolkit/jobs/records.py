"""The jobs of a cluster: their records and their states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from toolkit.cluster.keys import CLUSTER_KEY
from toolkit.cluster.ownership import with_processes
from toolkit.cluster.session import Session
from toolkit.core.answers import read_answer
from toolkit.core.command import Command, Result
from toolkit.core.facts import ContainerFacts
from toolkit.core.host_programs import packed
from toolkit.core.runner import ContainerRunner
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.jobs.exec_mode import Parts, all_parts
from toolkit.jobs.slots import Taken
from toolkit.jobs.status import JobStatus, parse_status
from toolkit.plan.context import reason
from toolkit.protocol.jobs import JobRow
from toolkit.protocol.names import JOBS, LABEL_PORT, MAIN, container_name
from toolkit.protocol.transport import NOT_FOUND
from toolkit.remote.fanout import fan_out

_MOST_SLOTS = 1 << 20  # of all jobs that a host lists
_FEWER_JOBS = (
    "toolkit gc --older-than 30  # deletes the records, logs and results of jobs that ended more than 30 "
    "days ago; if the error remains, use fewer days"
)


def known_jobs(session: Session) -> list[JobStatus]:
    """Return the jobs that main knows, or all hosts together where each has a part; oldest first.

    Raises:
        NotReady: main is not running, and no other host is.
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
    """Return the same as ``known_jobs``, but none when main is not running."""
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


def running_jobs(session: Session, certain: bool = False) -> list[str]:
    """Return the jobs of which anything runs on any host that answers, whatever starts them.

    The containers are those that exist: after an edit of hosts.yaml, their roles can differ from the file.

    Args:
        certain: do not return an empty list if a job can be running.

    Raises:
        ToolkitError: a host that can run the supervisor of a job did not list its jobs.
    """
    cluster, facts = session.inventory.cluster, session.facts
    there = {(host, c.name): c for host in facts for c in with_processes(cluster, facts[host])}

    def ask(key: tuple[str, str]) -> list[str]:
        host, name = key
        if there[key].state == "paused":
            fix = f"on {host}: {facts[host].engine} unpause {name}"
            raise ToolkitError(f"cannot list the jobs of {host}: the container {name} is paused", fix)
        listing = _listing(ContainerRunner(session.runners[host], name))
        if listing.status == NOT_FOUND:  # without Python, no supervisor runs
            return []
        return [row.id for row in _rows(listing, host) if row.alive]

    found, errors = fan_out(there, ask)
    jobs = sorted({job for jobs in found.values() for job in jobs})
    if certain and not jobs:
        _raise_if_unknown(session, there, errors)
    return jobs


def _raise_if_unknown(
    session: Session,
    there: Mapping[tuple[str, str], ContainerFacts],
    errors: Mapping[tuple[str, str], ToolkitError],
) -> None:
    """Raise an error if a supervisor can run in a container that listed no jobs.

    Supervisors run in the main container, and in worker containers without an sshd.

    Args:
        there: containers with processes, by host and name.
        errors: of the containers that did not list their jobs.
    """
    main, name = session.inventory.main, container_name(session.inventory.cluster, MAIN)
    led = [key for key, found in there.items() if key[1] != name and LABEL_PORT in found.labels]
    for key, error in errors.items():
        if key not in led:
            raise error
    # A main container that exited has no supervisor.
    if not led or any(c.name == name for f in session.facts.values() for c in f.containers):
        return
    if main in session.errors:
        silent = session.errors[main]
        raise ToolkitError(f"cannot list the jobs of {main}: {silent.what}", silent.fix)
    # The supervisor of another main host could not log in to these workers.
    own = dict(session.facts[main].public_keys).get(CLUSTER_KEY, "")
    if all(session.facts[host].remembered.main_key == own for host, _ in led):
        return
    what = f"cannot list the jobs: no host that answered has the container {name}"
    raise ToolkitError(what, "in hosts.yaml: set main: to the main host of the last `toolkit up`")


def job_status(session: Session, job: str) -> JobStatus:
    """Return one job by its id, or by the last part of it.

    Raises:
        NotReady: main knows no such job or several, or is not running.
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
        NotReady: none has ever run, or main is not running.
    """
    known = known_jobs(session)
    if not known:
        raise NotReady("the cluster has no job records", "toolkit run SCRIPT")
    return next((one for one in reversed(known) if running and not one.final), known[-1])


def taken_slots(session: Session) -> tuple[Taken, ...]:
    """Return the slots of running jobs; none if main is not running, or no host is."""
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
    return _rows(_listing(session.container(host)), host)


def _listing(container: ContainerRunner) -> Result:
    return container.run(Command(("python3", "-", str(JOBS)), packed("job_list").encode()), 30)


def _rows(result: Result, host: str) -> Sequence[JobRow]:
    """The rows that job_list.py makes of a host's jobs."""
    if not result.ok:
        what = f"cannot list the jobs of {host}: {reason(result)}"
        raise ToolkitError(what, "toolkit status -v")
    rows = read_answer(tuple[JobRow, ...], result.stdout, host, "the job list", if_too_large=_FEWER_JOBS)
    return _limited(rows, host)


def _limited(rows: Sequence[JobRow], host: str) -> Sequence[JobRow]:
    """Return the rows; a short list of jobs must not become a table of all their slots that fills the memory.

    Raises:
        ToolkitError: the jobs have more than ``_MOST_SLOTS`` slots together.
    """
    if sum(row.record.slots for row in rows if row.record) > _MOST_SLOTS:
        what = f"the jobs in the job list have more than {_MOST_SLOTS} slots in total"
        raise ToolkitError(what, _FEWER_JOBS, host)
    return rows


def _parse(rows: Sequence[JobRow]) -> list[JobStatus]:
    known = [parse_status(row.id, row.status, row.alive, row.record) for row in rows]
    return sorted(known, key=lambda s: s.started)
