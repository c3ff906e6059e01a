"""A job of a cluster as an object; see ``toolkit.api.cluster``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Full, Queue
from threading import Event, Thread

from toolkit.api.connection import Connection
from toolkit.cluster.session import Session
from toolkit.core.local_writer import destination
from toolkit.diagnose.why import Answer, ask_why
from toolkit.errors import NotReady
from toolkit.hostsfile.load import choose_hosts
from toolkit.jobs.control import stop
from toolkit.jobs.get import (
    Got,
    NoFolder,
    NoSuchFile,
    bring,
    check_local,
    default_folder,
    find_files,
    with_earlier_jobs,
)
from toolkit.jobs.logs import MOST_LINE, Excerpt, follow, show_log, wait_for_end
from toolkit.jobs.records import job_status, known_jobs, newest_job
from toolkit.jobs.status import JobStatus
from toolkit.monitor.job_report import JobReport
from toolkit.monitor.report import job_report

# Pieces of a job's output that wait for the caller of `lines`, and seconds until its end is noticed.
_PIECES, _POLL_S = 64, 1.0


class ClusterJob:
    """A job, which belongs to the cluster and continues without this object.

    Args:
        cluster: cluster of the job.
        id: id of the job, or the last part of the id; empty for the newest job.
    """

    def __init__(self, cluster: Connection, id: str = "") -> None:
        self.cluster = cluster
        self.id = id

    def __repr__(self) -> str:
        return f"ClusterJob({self.id!r})"

    def status(self, running: bool = False) -> JobStatus:
        """Return the status of the job.

        Args:
            running: without an id, prefer the newest running job.

        Raises:
            NotReady: there is no such job, or the main container is not running.
        """
        with self._connect() as session:
            return self._status(session, running)

    def wait(self, timeout: float | None = None, running: bool = False) -> JobStatus:
        """Wait until the job ends, and return its status.

        Args:
            timeout: limit in seconds; None means no limit.

        Raises:
            NotReady: the job still runs after ``timeout``, and continues.
        """
        with self._connect() as session:
            found = self._status(session, running)
            if not found.final and not wait_for_end(session, found.id, timeout):
                raise NotReady(f"job {found.id} still runs after {timeout:g} s", f"toolkit attach {found.id}")
            return job_status(session, found.id)

    def follow(self, sink: Callable[[bytes], None], tail: int | None = None, fold: bool = True) -> JobStatus:
        """Pass the output of all ranks to ``sink`` until the job ends, and return its status.

        Args:
            sink: called with each piece of the merged log.
            tail: number of earlier lines; None means all.
            fold: pass a line only once if several ranks print the line.
        """
        with self._connect() as session:
            return follow(session, self._status(session).id, sink, Excerpt(tail=tail, fold=fold))

    def lines(self, tail: int | None = None, fold: bool = True) -> Iterator[str]:
        """Yield the output of all ranks, line by line, until the job ends; a line of over 1 MiB in parts.

        Raises:
            ToolkitError: the connection to the job was lost.
        """
        output: Queue[bytes | BaseException | None] = Queue(_PIECES)  # if it is full, the host waits
        left = Event()

        def put(item: bytes | BaseException | None) -> None:
            while not left.is_set():
                with suppress(Full):
                    output.put(item, timeout=_POLL_S)
                    return

        # Leaving the loop over the lines closes the session too, which ends the thread.
        with self._connect() as session:
            job = self._status(session).id

            def work() -> None:
                try:
                    follow(session, job, put, Excerpt(tail=tail, fold=fold))
                    put(None)
                except BaseException as error:  # the loop over the lines raises it again
                    put(error)

            Thread(target=work, daemon=True).start()
            rest = b""
            try:
                while (piece := output.get()) is not None:
                    if isinstance(piece, BaseException):
                        raise piece
                    *whole, rest = (rest + piece).split(b"\n")
                    yield from (line.decode(errors="replace") for line in whole)
                    if len(rest) > MOST_LINE:  # yielded in parts: nothing is kept of an endless line
                        yield rest.decode(errors="replace")
                        rest = b""
            finally:
                left.set()
            if rest:
                yield rest.decode(errors="replace")

    def log(self, rank: int | None = None, host: str = "", tail: int | None = None) -> str:
        """Return the output so far: of all ranks, of one rank, or of the ranks on one host."""
        pieces: list[bytes] = []
        with self.cluster.connect() as session:
            show_log(session, self._status(session), pieces.append, Excerpt(rank, host, tail=tail), False)
        return b"".join(pieces).decode(errors="replace")

    def stop(self, grace: float | None = None, running: bool = False) -> JobStatus:
        """Stop the job on every host and return its status. A job that has ended does not change.

        Args:
            grace: seconds between SIGTERM and SIGKILL; None means the value of the job.

        Raises:
            ToolkitError: the job could not be stopped on a host.
        """
        with self._connect() as session:
            found = self._status(session, running)
            if found.final and found.state not in ("lost", "unknown"):
                return found
            return stop(session, found.id, grace=grace)

    def why(self) -> Answer:
        """Query all hosts of the job, and return the rank that blocks the job, or the reason for its end."""
        with self.cluster.connect() as session:
            return ask_why(session, self.id)

    def report(self) -> JobReport:
        """Return the records of the job: times, throughput, gauges, restarts, versions."""
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
        """Download files of the job to a local folder, from the main host or from another host.

        Args:
            patterns: paths relative to the working directory of the job, or absolute paths in the container.
            into: local folder; ``runs/JOB`` by default, which ``run`` never sends as code.
            replace: replace local files that differ.
            keep_modes: keep execute bits.

        Raises:
            ToolkitError: no file matches, a local file differs, or a local folder of the path is a link;
                no file was downloaded.
        """
        with self.cluster.connect() as session:
            found = self._status(session)
            name = choose_hosts(session.inventory, (host,), ())[0] if host else session.inventory.main
            folder = destination(into) if into else default_folder(found.id)
            try:
                wanted = find_files(session, name, found.id, list(patterns), folder)
            except (NoFolder, NoSuchFile) as error:
                if self.id:
                    raise
                raise with_earlier_jobs(error, known_jobs(session), found.id, patterns) from error
            check_local([wanted], replace)
            return bring(session, wanted, lambda done, total: None, keep_modes)

    def _connect(self) -> Session:
        """Connect to the hosts that know the status of the job."""
        return self.cluster.connect(self.cluster.inventory.answering)

    def _status(self, session: Session, running: bool = False) -> JobStatus:
        session.require_some()
        return job_status(session, self.id) if self.id else newest_job(session, running)
