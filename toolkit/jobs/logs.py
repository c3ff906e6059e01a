"""What of a job's output is wanted, and how one host is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from toolkit.core.causes import words_of
from toolkit.core.command import Result, command
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError
from toolkit.protocol.names import program


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
        """Return it as options of toolkit/container/logs/follow.py."""
        named = {"rank": self.rank, "host": self.host or None, "ago": self.ago, "since": self.since}
        words = [
            w for n, v in {**named, "tail": self.tail}.items() if v is not None for w in (f"--{n}", str(v))
        ]
        return [*words, *(["--fold"] if self.fold else [])]


ALL = Excerpt()


def copy(runner: Runner, job: str, sink: Callable[[bytes], None], what: Excerpt, *more: str) -> str:
    """Run follow.py in a container; return what it says on standard error.

    Raises:
        ToolkitError: it failed, or was ended.
    """
    ask = command(*program("logs.follow"), job, *what.words(), *more)
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
