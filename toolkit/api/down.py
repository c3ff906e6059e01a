"""Prepares and runs ``down``: download the job records, remove the cluster, verify that nothing is left."""

from __future__ import annotations

from dataclasses import replace

from toolkit.api.connection import Connection
from toolkit.api.prepared import Notices, PreparedPlan, closed_on_error
from toolkit.cluster.ownership import main_host
from toolkit.cluster.versions import newer_hosts
from toolkit.core.finding import Topic
from toolkit.core.report import Report
from toolkit.jobs.control import end_jobs
from toolkit.jobs.id_cache import remember_jobs
from toolkit.jobs.records import running_jobs
from toolkit.lifecycle.down import plan_down
from toolkit.plan.execute import Listener


class PreparedDown(PreparedPlan):
    """See ``prepare_down``."""

    def running_jobs(self) -> list[str]:
        """Query the hosts for running jobs, which ``execute`` would stop."""
        return running_jobs(self.session)

    def execute(self, listen: Listener) -> Report:
        def tell(job: str) -> None:
            self._notices.add(
                Topic.ENDING, text=f"job {job} is running; toolkit stops the job, then removes the cluster"
            )

        end_jobs(self.session, tell)
        report = super().execute(listen)
        if report.ok:
            remember_jobs(self.session.inventory.cluster, ())
        return report


def prepare_down(cluster: Connection, save_to: str = "") -> PreparedDown:
    """Connect to the hosts and plan the removal of the cluster from each host.

    Args:
        save_to: local folder for the jobs' records, logs and results; empty means not to save them.
    """
    notices, inventory = Notices(cluster), cluster.inventory
    session = cluster.connect(local_image=True)
    with closed_on_error(session):
        session.require_some()
        for host, version in newer_hosts(inventory.cluster, session.facts.values()).items():
            text = (
                f"{host}: toolkit {version} created the cluster and is newer than your version; "
                "`down` might leave files of the cluster on the host"
            )
            notices.add(Topic.VERSION, text=text)
        session.require_own()
        if main := main_host(inventory.cluster, session.facts):
            # Jobs are stopped where their supervisor runs, also after an edit of `main` in hosts.yaml.
            session.inventory = replace(session.inventory, main=main)
        image = session.find_local_image()
        plan = plan_down(inventory, session.facts, save_to, (image.identity,) if image else ())
        return PreparedDown(cluster, session, notices, plan)
