"""What `toolkit run` and `jobs` do, as a part of ``Cluster``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.api.connection import Connection
from toolkit.api.job import ClusterJob
from toolkit.api.run import PreparedRun, prepare_run
from toolkit.jobs.records import known_jobs
from toolkit.jobs.request import Request, check_request


class Runs(Connection):
    """Starts jobs, and finds those that there are."""

    def run(
        self,
        *words: str,
        workdir: str | Path = ".",
        ranks: int | None = None,
        launcher: str = "",
        env: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        exclude: Sequence[str] = (),
        timeout: float | None = None,
        max_restarts: int = 0,
        min_hosts: int = 0,
        elastic: bool = False,
        stall_after: float | None = None,
        share: bool = False,
        check: bool = True,
    ) -> ClusterJob:
        """Start a script of ``workdir`` with its arguments, or a command, on all slots; return while it runs.

        Args:
            env: variables for the ranks, which win over the hosts file's.
            timeout, stall_after: in seconds.
            check: look for faults of its hosts, and for data that is not whole, first.
            others: as the options of `toolkit run` by these names; ``ranks`` is its ``--np``.

        Raises:
            BadInput: names all that is wrong with it; nothing was contacted.
            NotReady: the cluster is not up, others have the slots, or a host has a fault; says each.
            KeyboardInterrupt: Ctrl-C; where the start was under way the job runs, see ``jobs``.
        """
        request = Request(
            words=words,
            workdir=Path(workdir).resolve(),
            ranks=ranks,
            launcher=launcher,
            env=tuple((env or {}).items()),
            only=tuple(only),
            exclude=tuple(exclude),
            timeout=timeout,
            max_restarts=max_restarts,
            min_hosts=min_hosts,
            elastic=elastic,
            stall_after=stall_after,
            share=share,
        )
        with self.prepare_run(request, check) as prepared:
            return prepared.execute(self.listen)

    def prepare_run(self, request: Request, check: bool = True) -> PreparedRun:
        """Plan what ``run`` does, to be looked at and then executed; see ``Prepared``.

        Args:
            request: as the arguments of ``run``; check: as there.

        Raises:
            BadInput, NotReady: as ``run`` does, but for problems of the hosts.
        """
        return prepare_run(self, check_request(self.inventory, request), check)

    def jobs(self) -> list[ClusterJob]:
        """Return the cluster's jobs, the newest last."""

        with self.connect(self.inventory.answering) as session:
            session.require_some()
            return [ClusterJob(self, status.id) for status in known_jobs(session)]

    def job(self, job: str = "") -> ClusterJob:
        """Return a job by its id or the last part of it; the newest one by default.

        Raises:
            NotReady: there is none.
        """
        return ClusterJob(self, ClusterJob(self, job).status().id)
