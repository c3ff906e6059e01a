"""Prepares and runs ``up``: image, keys and containers on every host."""

from __future__ import annotations

from toolkit.api.connection import Connection
from toolkit.api.prepared import Notices, PreparedAfterPull, closed_on_error, report_silent
from toolkit.checks.preflight import preflight, questions, raise_if_errors
from toolkit.cluster.applied import removed_finding
from toolkit.cluster.container_status import UP
from toolkit.cluster.layout import Layout, Observed
from toolkit.cluster.session import Session, wanted_layout
from toolkit.cluster.versions import refuse_newer
from toolkit.core.finding import Finding, Topic, graver_first
from toolkit.core.host_programs import container_programs
from toolkit.core.report import Report
from toolkit.data.data_sets import Staged, read_data
from toolkit.env_lint.lint import lint_inventory
from toolkit.jobs.control import refuse_to_end_jobs
from toolkit.lifecycle.port_retry import bring_up
from toolkit.lifecycle.up import plan_up
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan
from toolkit.protocol.transport import EXEC, transport_text


class PreparedUp(PreparedAfterPull):
    """See ``prepare_up``."""

    def __init__(
        self,
        cluster: Connection,
        session: Session,
        notices: Notices,
        found: tuple[Finding, ...],
        data: Staged,
        prepare: bool,
        force: bool,
    ) -> None:
        super().__init__(cluster, session, notices)
        self._found, self._data, self._prepare, self._force = found, data, prepare, force

    def _layout(self, observed: Observed) -> Layout:
        layout = wanted_layout(self.session, observed)
        if layout.inventory.chosen_transport == EXEC:
            self._notices.add(Topic.TRANSPORT, text=f"transport: {transport_text(EXEC)}")
        return layout

    def _plan(self, layout: Layout) -> Plan:
        return plan_up(layout, container_programs(), self._prepare, self._data)

    def execute(self, listen: Listener) -> Report:
        """Run the plan.

        Raises:
            NotReady: hosts have problems, a newer toolkit created the cluster, or a running job would end.
        """
        raise_if_errors(self._found, told=self.cluster.shows_notices)
        return super().execute(listen)

    def _run(self, layout: Layout, plan: Plan, listen: Listener) -> Report:
        session = self.session
        if not self._force:
            refuse_newer(session.inventory.cluster, session.facts.values())
            refuse_to_end_jobs(session, layout, self._prepare)
        report_silent(session, listen)
        return bring_up(session, layout, plan, listen, self._prepare, self._force)


def prepare_up(
    cluster: Connection,
    data: bool = True,
    force: bool = False,
    check: bool = True,
    prepare: bool = False,
) -> PreparedUp:
    """Connect to the hosts and plan the setup of image, keys, containers and data on each host.

    Args:
        data: copy the data sets of the hosts file.
        force: continue even if this stops a running job or undoes changes that a newer toolkit made.
        check: check the hosts for problems first.
        prepare: copy image and data, and write keys and configurations, but start no containers.
    """
    inventory, notices = cluster.inventory, Notices(cluster)
    staged = read_data(inventory) if data else ()
    notices.add(Topic.ENVIRONMENT, graver_first(lint_inventory(inventory)))
    queries = questions() if check else ()
    session = cluster.connect(questions=queries, local_image=inventory.pull == "never")
    with closed_on_error(session):
        notices.add(Topic.CHANGES, removed_finding(inventory, session.facts))
        found = preflight(session, inventory.names) if check else ()
        # `up` itself carries out this fix.
        found = tuple(one for one in found if one.command != UP)
        notices.add(Topic.HOSTS, found)
        return PreparedUp(cluster, session, notices, found, staged, prepare, force)
