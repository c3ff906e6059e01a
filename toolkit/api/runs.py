"""What `toolkit run` and `jobs` do, as a part of ``Cluster``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.api.connection import Connection

if TYPE_CHECKING:
    from toolkit.api.job import ClusterJob


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
        from toolkit.api.job import ClusterJob
        from toolkit.api.meanwhile import BeforeRun
        from toolkit.checks.preflight import preflight, questions, refuse_faults, restart_warnings
        from toolkit.data.manage import refuse_lacking
        from toolkit.jobs.build import code_findings, make_job, plan_run
        from toolkit.jobs.control import start
        from toolkit.jobs.launcher import launcher_findings
        from toolkit.jobs.request import Request, check_request, environment_findings, start_of

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
        check_request(self.inventory, request)
        self.warn_of(environment_findings(self.inventory, request))
        asked, ahead = questions() if check else (), BeforeRun(request.workdir, check)
        with self.connect(questions=asked, desks=True, meanwhile=ahead) as session:
            session.require_some()
            self.warn_of(session.changes())
            job = make_job(session, request)
            plan = plan_run(session, job, request.workdir, ahead.tree)
            how = start_of(self.inventory, request)
            self.warn_of((*launcher_findings(job, how), *code_findings(plan)))
            self.warn_of(restart_warnings(session, job))
            if check:
                refuse_lacking(session, {host.name for host in job.hosts})
                found = preflight(session, {job.main, *(host.name for host in job.hosts)})
                self.warn_of(finding for finding in found if finding.verdict != "error")
                refuse_faults(found, told=False)
            start(session, plan, self.listen)
        return ClusterJob(self, job.id)

    def jobs(self) -> list[ClusterJob]:
        """Return the cluster's jobs, the newest last."""
        from toolkit.api.job import ClusterJob
        from toolkit.jobs.records import known_jobs

        with self.connect(self.inventory.answering) as session:
            session.require_some()
            return [ClusterJob(self, status.id) for status in known_jobs(session)]

    def job(self, job: str = "") -> ClusterJob:
        """Return a job by its id or the last part of it; the newest one by default.

        Raises:
            NotReady: there is none.
        """
        from toolkit.api.job import ClusterJob

        return ClusterJob(self, ClusterJob(self, job).status().id)
