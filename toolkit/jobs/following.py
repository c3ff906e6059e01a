"""A job's output up to its end, from the caller's side, and how the job went then."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.cluster.session import Session
from toolkit.core.answers import read_answer
from toolkit.core.causes import words_of
from toolkit.core.names import INSIDE
from toolkit.core.result import TIMED_OUT
from toolkit.errors import ToolkitError
from toolkit.jobs.logs import ALL, Excerpt, copy, heard_out
from toolkit.jobs.status import JobStatus, parse_status
from toolkit.protocol.jobs import Ended


def follow(session: Session, job: str, sink: Callable[[bytes], None], what: Excerpt = ALL) -> JobStatus:
    """Copy a job's output to ``sink`` until the job has ended; return how it went, without its record.

    Raises:
        ToolkitError: nobody is left who could say how it ended.
    """
    if session.inventory.in_parts:
        from toolkit.jobs.part_logs import follow_parts

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
        from toolkit.jobs.part_logs import follow_parts

        return follow_parts(session, job, None, ALL, seconds) is not None
    ask = ("python3", str(INSIDE / "follow.py"), job, "--silent")
    # Ends there with the limit or with this program, whichever is first.
    result = session.run_inside(session.inventory.main, ask, seconds)
    if not result.ok and result.status != TIMED_OUT:
        raise ToolkitError(f"cannot wait for {job}: {words_of(result.stderr)}", "toolkit jobs")
    return result.ok
