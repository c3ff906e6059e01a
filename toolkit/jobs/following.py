"""A job's output as it stands, or up to its end, and how the job went then."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.cluster.session import Session
from toolkit.core.answers import read_answer
from toolkit.core.causes import words_of
from toolkit.core.command import TIMED_OUT
from toolkit.errors import NotReady, ToolkitError
from toolkit.jobs.logs import ALL, Excerpt, copy, heard_out
from toolkit.jobs.part_logs import follow_parts, show_parts
from toolkit.jobs.status import JobStatus, parse_status
from toolkit.protocol.jobs import Ended
from toolkit.protocol.names import program


def show_log(
    session: Session, job: JobStatus, sink: Callable[[bytes], None], what: Excerpt, on: bool
) -> None:
    """Copy what there is of a job's output to ``sink``; with ``on``, go on until its end.

    Raises:
        NotReady: the job has no such rank or host.
    """
    if what.host and what.host not in dict(job.hosts):
        known = ", ".join(name for name, _ in job.hosts)
        raise NotReady(f"job {job.id} has no ranks on {what.host}; it has some on {known}", "toolkit jobs")
    more = () if on else ("--now",)
    if what.rank is None and session.inventory.in_parts:
        show_parts(session, job.id, sink, what, more)
        return
    host = session.inventory.main if what.rank is None else job.host_of(what.rank)
    copy(session.container(host), job.id, sink, what, *more)


def follow(session: Session, job: str, sink: Callable[[bytes], None], what: Excerpt = ALL) -> JobStatus:
    """Copy a job's output to ``sink`` until the job has ended; return how it went, without its record.

    Raises:
        ToolkitError: nobody is left who could say how it ended.
    """
    if session.inventory.in_parts:
        session.desks.leave()
        ended = follow_parts(session, job, sink, what)
        assert ended is not None  # without a limit it is heard to its end
        return ended
    if desk := session.desks.take(session.inventory.main):
        result = desk.follow((job, *what.words(), "--status"), sink)
        said = heard_out(result, job, session.inventory.main).strip()
    else:
        said = copy(session.main, job, sink, what, "--status").strip()
    if not said:
        raise ToolkitError(f"following {job} ended before the job did", f"toolkit attach {job}")
    return parse_status(job, read_answer(Ended, said, session.inventory.main, f"the end of {job}").status)


def wait_for_end(session: Session, job: str, seconds: float | None = None) -> bool:
    """Return True when the job has ended, False when it has not after so many seconds."""
    if session.inventory.in_parts:
        return follow_parts(session, job, None, ALL, seconds) is not None
    ask = (*program("logs.follow"), job, "--silent")
    # Ends there with the limit or with this program, whichever is first.
    result = session.run_inside(session.inventory.main, ask, seconds)
    if not result.ok and result.status != TIMED_OUT:
        raise ToolkitError(f"cannot wait for {job}: {words_of(result.stderr)}", "toolkit jobs")
    return result.ok
