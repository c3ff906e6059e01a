"""A job's output as it stands, from the caller's side: the merged log or one rank's; see following.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.cluster.session import Session
from toolkit.core.causes import words_of
from toolkit.core.command import command
from toolkit.core.names import INSIDE
from toolkit.core.result import Result
from toolkit.core.runner import Runner
from toolkit.errors import NotReady, ToolkitError
from toolkit.jobs.status import JobStatus


@dataclass(frozen=True)
class Excerpt:
    """What of a job's output is wanted; everything of the merged log by default.

    Args:
        rank: this rank's own log, whole, in place of the merged one.
        host: only what the ranks on this host have said.
        ago: only what came in the last so many seconds.
        since: only what came after this moment, seconds since the epoch.
        tail: only so many lines at the end.
        fold: show a line that several ranks print once.
    """

    rank: int | None = None
    host: str = ""
    ago: float | None = None
    since: float | None = None
    tail: int | None = None
    fold: bool = False

    def words(self) -> list[str]:
        """Return it as options of toolkit/inside/follow.py."""
        named = {"rank": self.rank, "host": self.host or None, "ago": self.ago, "since": self.since}
        words = [
            w for n, v in {**named, "tail": self.tail}.items() if v is not None for w in (f"--{n}", str(v))
        ]
        return [*words, *(["--fold"] if self.fold else [])]


ALL = Excerpt()


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
        from toolkit.jobs.part_logs import show_parts

        show_parts(session, job.id, sink, what, more)
        return
    host = session.inventory.main if what.rank is None else job.host_of(what.rank)
    copy(session.container(host), job.id, sink, what, *more)


def copy(runner: Runner, job: str, sink: Callable[[bytes], None], what: Excerpt, *more: str) -> str:
    """Run follow.py in a container; return what it says on standard error.

    Raises:
        ToolkitError: it failed, or was ended.
    """
    ask = command("python3", str(INSIDE / "follow.py"), job, *what.words(), *more)
    return heard_out(runner.stream(ask, sink), job, runner.name)


def heard_out(result: Result, job: str, host: str) -> str:
    """Return what follow.py has said on standard error; raises what ``copy`` raises."""
    if result.ok:
        return result.stderr
    if words := words_of(result.stderr):
        raise ToolkitError(f"cannot show the log of {job}: {words}", "toolkit jobs", host)
    # The engine ends what runs in a container that goes, and nobody is left to say a word.
    what = f"cannot show the log of {job} any more: the program that reads it was ended, as when"
    raise ToolkitError(f"{what} its container goes down", "toolkit status; toolkit jobs", host)
