"""Prepares and starts a job."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.api.connection import Connection
from toolkit.api.prepared import Notices, Prepared, Result, closed_on_error
from toolkit.checks.preflight import preflight, questions, raise_if_errors, restart_warnings
from toolkit.cluster.applied import change_finding
from toolkit.cluster.session import Session
from toolkit.core.finding import Topic
from toolkit.core.printable import counted
from toolkit.data.data_sets import refuse_incomplete_data
from toolkit.jobs.control import start
from toolkit.jobs.launcher import launcher_findings
from toolkit.jobs.make_job import (
    PlannedJob,
    code_findings,
    job_layout,
    make_job,
    private_code,
    read_code,
)
from toolkit.jobs.plan import plan_job
from toolkit.jobs.request import CheckedRequest, environment_findings, nccl_findings, with_transport
from toolkit.launchers.job import Job
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan
from toolkit.remote.fanout import Background


class PreparedRun(Prepared[Result]):
    """See ``prepare_run``; ``begun`` is True once the start of the job has begun."""

    def __init__(
        self,
        cluster: Connection,
        session: Session,
        notices: Notices,
        planned: PlannedJob,
        check: bool,
        started: Callable[[str], Result],
    ) -> None:
        super().__init__(cluster, session, notices)
        self._planned, self._check, self._started = planned, check, started
        self.begun = False

    @property
    def job(self) -> Job:
        return self._planned.job

    @property
    def plans(self) -> tuple[Plan, ...]:
        return (self._planned.plan,)

    def execute(self, listen: Listener) -> Result:
        """Start the job, which belongs to the cluster from then on.

        Raises:
            NotReady: data is missing on its hosts, or they have problems.
            KeyboardInterrupt: Ctrl-C; if ``begun`` is True, the job runs.
        """
        if self._check:
            hosts = {host.name for host in self.job.hosts}
            refuse_incomplete_data(self.session, hosts)
            found = preflight(self.session, {self.job.main, *hosts}, running=True)
            self._notices.add(Topic.HOSTS, found)
            raise_if_errors(found, told=self.cluster.shows_notices)
        self.begun = True
        start(self.session, self._planned.plan, listen)
        return self._started(self.job.id)


def prepare_run(
    cluster: Connection, checked: CheckedRequest, started: Callable[[str], Result], check: bool = True
) -> PreparedRun[Result]:
    """Connect to the hosts and plan the start of a job.

    Args:
        checked: from ``toolkit.jobs.request.check_request``.
        started: makes the result of ``execute`` from the id of the job.
        check: before the start, check the hosts for problems and the data for completeness.
    """
    inventory, request, notices = cluster.inventory, checked.request, Notices(cluster)
    notices.add(Topic.ENVIRONMENT, environment_findings(inventory, request))
    # Read while the hosts answer: problems of the cluster are reported before a long read ends.
    code = Background("code", lambda: read_code(inventory, request.workdir))
    session = cluster.connect(
        questions=questions() if check else (),
        container_sessions=True,
        local_image=check and inventory.pull == "never",
    )
    with closed_on_error(session):
        session.require_some()
        checked = with_transport(checked, session.inventory)
        notices.add(Topic.CHANGES, change_finding(inventory, session.facts))
        layout = job_layout(session, checked)
        notices.add(Topic.ENVIRONMENT, nccl_findings(inventory, request, layout.image))
        job = make_job(session, checked, layout)
        if checked.start.why:
            notices.add(Topic.LAUNCHER, text=f"launcher {checked.start.launcher}: {checked.start.why}")
        plan = plan_job(layout, job, str(request.workdir or ""), code.result())
        if private := private_code(plan, inventory.source):
            number = counted(len(private), "private file")
            text = f"toolkit does not send {number} with the code: {', '.join(private)}"
            notices.add(Topic.CODE, text=text)
        about_job = (*launcher_findings(job, checked.start), *code_findings(plan))
        notices.add(Topic.JOB, (*about_job, *restart_warnings(session, job)))
        return PreparedRun(cluster, session, notices, PlannedJob(job, plan, layout), check, started)
