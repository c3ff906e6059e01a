"""`toolkit run` and `toolkit jobs` as methods of ``Cluster``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.api.connection import Connection
from toolkit.api.job import ClusterJob
from toolkit.api.run import PreparedRun, prepare_run
from toolkit.jobs.records import known_jobs
from toolkit.jobs.request import Request, check_request


class Runs(Connection):
    """Starts and lists jobs."""

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
        """Start a script of ``workdir``, or a command, on all slots, and return while the job runs.

        Args:
            env: variables for the ranks; these variables override `env` of the hosts file.
            timeout, stall_after: seconds.
            check: first check the hosts for problems and the data for completeness.
            others: see the options of `toolkit run` with the same names; ``ranks`` is ``--np``.

        Raises:
            BadInput: the request is invalid; lists every problem. No host was contacted.
            NotReady: the cluster is not up, slots are taken, or hosts have problems; lists each.
            KeyboardInterrupt: Ctrl-C; if the start had begun, the job runs (see ``jobs``).
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

    def prepare_run(self, request: Request, check: bool = True) -> PreparedRun[ClusterJob]:
        """Plan ``run``: inspect the plan, then execute it; see ``Prepared``.

        Args:
            request: the arguments of ``run``.
            check: as for ``run``.

        Raises:
            BadInput, NotReady: as for ``run``, except for problems of the hosts.
        """
        checked = check_request(self.inventory, request)
        return prepare_run(self, checked, lambda job: ClusterJob(self, job), check)

    def jobs(self) -> list[ClusterJob]:
        """Return the jobs of the cluster, the newest last."""

        with self.connect(self.inventory.answering) as session:
            session.require_some()
            return [ClusterJob(self, status.id) for status in known_jobs(session)]

    def job(self, job: str = "") -> ClusterJob:
        """Return a job by its id or the last part of the id; by default the newest job.

        Raises:
            NotReady: there is no such job.
        """
        return ClusterJob(self, ClusterJob(self, job).status().id)
