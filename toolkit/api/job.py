"""A job of a cluster as an object; see ``toolkit.cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from toolkit.api.connection import Connection
from toolkit.cluster.session import Session, choose_hosts
from toolkit.core.local_writer import destination
from toolkit.diagnose.why import Answer, ask_why
from toolkit.errors import NotReady
from toolkit.jobs.control import stop
from toolkit.jobs.files import Got, bring, check_local, default_folder, find_files
from toolkit.jobs.logs import Excerpt, follow, show_log, wait_for_end
from toolkit.jobs.records import job_status, newest_job
from toolkit.jobs.status import JobStatus
from toolkit.monitor.job_report import JobReport
from toolkit.monitor.report import job_report


class ClusterJob:
    """A job, which belongs to the cluster and goes on without this object.

    Args:
        cluster: whose job it is.
        id: of the job, the last part of it, or empty for the newest one.
    """

    def __init__(self, cluster: Connection, id: str = "") -> None:
        self.cluster = cluster
        self.id = id

    def __repr__(self) -> str:
        return f"ClusterJob({self.id!r})"

    def status(self, running: bool = False) -> JobStatus:
        """Return how it stands.

        Args:
            running: where no id was given: of those that run, if there is one.

        Raises:
            NotReady: there is no such job, or main does not run.
        """
        with self._connect() as session:
            return self._status(session, running)

    def wait(self, timeout: float | None = None, running: bool = False) -> JobStatus:
        """Wait until it has ended; return how.

        Args:
            timeout: seconds; None for as long as it takes.

        Raises:
            NotReady: it still runs after so long; it goes on.
        """
        with self._connect() as session:
            found = self._status(session, running)
            if not found.final and not wait_for_end(session, found.id, timeout):
                raise NotReady(f"{found.id} still runs after {timeout:g} s", f"toolkit attach {found.id}")
            return job_status(session, found.id)

    def follow(self, sink: Callable[[bytes], None], tail: int | None = None, fold: bool = True) -> JobStatus:
        """Pass on what its ranks print until it has ended; return how.

        Args:
            sink: called with pieces of the merged log as they come.
            tail: how many lines of before; None for all.
            fold: a line that several ranks print comes once.
        """
        with self._connect() as session:
            return follow(session, self._status(session).id, sink, Excerpt(tail=tail, fold=fold))

    def lines(self, tail: int | None = None, fold: bool = True) -> Iterator[str]:
        """Yield what its ranks print, line by line, until it has ended.

        Raises:
            ToolkitError: it cannot be followed any more.
        """
        told: SimpleQueue[bytes | BaseException | None] = SimpleQueue()
        # Closed also when the loop over the lines is left, which ends the thread.
        with self._connect() as session:
            job = self._status(session).id

            def work() -> None:
                try:
                    follow(session, job, told.put, Excerpt(tail=tail, fold=fold))
                    told.put(None)
                except BaseException as error:  # raised again where the lines are read
                    told.put(error)

            Thread(target=work, daemon=True).start()
            rest = b""
            while (piece := told.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                *whole, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in whole)
            if rest:
                yield rest.decode(errors="replace")

    def log(self, rank: int | None = None, host: str = "", tail: int | None = None) -> str:
        """Return what it has printed so far: all ranks, one rank, or those on one host."""
        pieces: list[bytes] = []
        with self.cluster.connect() as session:
            show_log(session, self._status(session), pieces.append, Excerpt(rank, host, tail=tail), False)
        return b"".join(pieces).decode(errors="replace")

    def stop(self, grace: float | None = None, running: bool = False) -> JobStatus:
        """End it on every host; return how it ended. One that has ended already is left as it is.

        Args:
            grace: seconds between SIGTERM and SIGKILL; the job's own for None.

        Raises:
            ToolkitError: it could not be ended on some host.
        """
        with self._connect() as session:
            found = self._status(session, running)
            if found.final and found.state not in ("lost", "unknown"):
                return found
            return stop(session, found.id, grace=grace)

    def why(self) -> Answer:
        """Return which rank holds it up, or what ended it: asks all its hosts at once, changes nothing."""
        with self.cluster.connect() as session:
            return ask_why(session, self.id)

    def report(self) -> JobReport:
        """Return what the hosts know of it: times, pace, gauges, restarts, versions."""
        with self.cluster.connect() as session:
            return job_report(session, self._status(session).id)

    def get(
        self,
        *patterns: str,
        into: str | Path = "",
        host: str = "",
        replace: bool = False,
        keep_modes: bool = False,
    ) -> Got:
        """Bring files that it has written to a local folder, from main or from one host.

        Args:
            patterns: relative to its folder, or absolute in the container.
            into: local folder; ``runs/JOB`` by default, which ``run`` never sends as code.
            replace: local files that differ.
            keep_modes: keep execute bits.

        Raises:
            ToolkitError: nothing matches, a local file differs or a local folder on the way is a link; then
                nothing was brought.
        """
        with self.cluster.connect() as session:
            found = self._status(session)
            name = choose_hosts(session.inventory, (host,), ())[0] if host else session.inventory.main
            folder = destination(into) if into else default_folder(found.id)
            wanted = find_files(session, name, found.id, list(patterns), folder)
            check_local([wanted], replace)
            return bring(session, wanted, lambda done, total: None, keep_modes)

    def _connect(self) -> Session:
        """Connect to those hosts that know how the job stands."""
        return self.cluster.connect(self.cluster.inventory.answering)

    def _status(self, session: Session, running: bool = False) -> JobStatus:
        session.require_some()
        return job_status(session, self.id) if self.id else newest_job(session, running)
