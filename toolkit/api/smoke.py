"""Prepares and runs ``smoke``: GPUs as containers see them, then one checked all-reduce."""

from __future__ import annotations

from toolkit.api.connection import Connection
from toolkit.api.prepared import Notices, Prepared, closed_on_error
from toolkit.bench.smoke import PlannedSmoke, Smoke, plan_smoke, run_smoke
from toolkit.cluster.session import Session
from toolkit.core.finding import Topic
from toolkit.plan.execute import Listener
from toolkit.plan.steps import Plan


class PreparedSmoke(Prepared[Smoke]):
    """See ``prepare_smoke``."""

    def __init__(
        self, cluster: Connection, session: Session, notices: Notices, planned: PlannedSmoke
    ) -> None:
        super().__init__(cluster, session, notices)
        self._planned = planned

    @property
    def plans(self) -> tuple[Plan, ...]:
        return self._planned.plans

    def execute(self, listen: Listener) -> Smoke:
        return run_smoke(self.session, self._planned, listen)


def prepare_smoke(cluster: Connection, launcher: str = "") -> PreparedSmoke:
    """Connect to the hosts and plan both parts of the test.

    Args:
        launcher: launcher of the all-reduce; by default the one in hosts.yaml, or another one of the image.
    """
    notices = Notices(cluster)
    session = cluster.connect()
    with closed_on_error(session):
        session.require_some()
        planned = plan_smoke(session, launcher)
        if planned.instead:
            notices.add(Topic.LAUNCHER, text=f"smoke uses {planned.launcher}, because {planned.instead}")
        return PreparedSmoke(cluster, session, notices, planned)
