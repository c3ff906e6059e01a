"""The data sets of the hosts file on the hosts."""

from __future__ import annotations

from toolkit.api.connection import Connection, Part
from toolkit.api.prepared import Notices, PreparedPlan, closed_on_error, completed
from toolkit.core.report import Report
from toolkit.data.data_sets import list_data, read_data, require_data
from toolkit.data.plan import DataRow, plan_data, plan_remove
from toolkit.network.choose import choose_paths


def prepare_data_send(cluster: Connection) -> PreparedPlan:
    """Read the local data, connect to the hosts, and plan the transfer to each host.

    Raises:
        BadInput: the hosts file names no data, or a source is missing.
    """
    require_data(cluster.inventory)
    data = read_data(cluster.inventory)
    session = cluster.connect()
    with closed_on_error(session):
        session.require_some()
        session.require_own()
        inventory, facts = session.inventory, session.facts
        paths = choose_paths(inventory, facts, session.try_networks())
        plan = plan_data(inventory, facts, paths, data, inventory.image)
        return PreparedPlan(cluster, session, Notices(cluster), plan)


def prepare_data_remove(cluster: Connection) -> PreparedPlan:
    """Connect to the hosts and plan the removal of the data sets from each host.

    Raises:
        BadInput: the hosts file names no data.
    """
    require_data(cluster.inventory)
    session = cluster.connect()
    with closed_on_error(session):
        session.require_some()
        session.require_own()
        plan = plan_remove(session.inventory, session.facts)
        return PreparedPlan(cluster, session, Notices(cluster), plan)


class DataPart(Part):
    """The data sets of the hosts file."""

    def prepare_send(self) -> PreparedPlan:
        """Plan ``send``; see ``Prepared``."""
        return prepare_data_send(self._cluster)

    def send(self) -> Report:
        """Copy the data sets of the hosts file to every host.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        return completed(self.prepare_send())

    def rows(self) -> tuple[DataRow, ...]:
        """Return the state of each data set of the hosts file on each host."""
        with self._cluster.connect() as session:
            return list_data(session)

    def prepare_remove(self) -> PreparedPlan:
        """Plan ``remove``; see ``Prepared``."""
        return prepare_data_remove(self._cluster)

    def remove(self) -> Report:
        """Remove the data sets from every host.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        return completed(self.prepare_remove())
