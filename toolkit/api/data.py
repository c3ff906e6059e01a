"""The data sets of the hosts file on the hosts."""

from __future__ import annotations

from toolkit.api.connection import Connection
from toolkit.api.part import Part
from toolkit.api.prepared import Notices, PreparedPlan, closed_on_error
from toolkit.core.report import Report, refuse_failed
from toolkit.data.manage import list_data, read_data, remove_plan, require_data, send_plan
from toolkit.data.plan import DataRow


def prepare_data_send(cluster: Connection) -> PreparedPlan:
    """Read the data here, connect to the hosts, and plan what each is sent.

    Raises:
        BadInput: the hosts file names no data, or a source is not there.
    """
    require_data(cluster.inventory)
    data = read_data(cluster.inventory)
    session = cluster.connect()
    with closed_on_error(session):
        return PreparedPlan(cluster, session, Notices(cluster), send_plan(session, data))


def prepare_data_remove(cluster: Connection) -> PreparedPlan:
    """Connect to the hosts and plan what removes the staged data from each of them.

    Raises:
        BadInput: the hosts file names no data.
    """
    require_data(cluster.inventory)
    session = cluster.connect()
    with closed_on_error(session):
        return PreparedPlan(cluster, session, Notices(cluster), remove_plan(session))


class DataPart(Part):
    """The data sets of the hosts file."""

    def prepare_send(self) -> PreparedPlan:
        """Plan ``send``, see ``Prepared``."""
        return prepare_data_send(self._cluster)

    def send(self) -> Report:
        """Stage the data of the hosts file on every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.prepare_send() as prepared:
            return refuse_failed(prepared.execute(self._cluster.listen))

    def rows(self) -> tuple[DataRow, ...]:
        """Return what every host holds of the data of the hosts file."""
        with self._cluster.connect() as session:
            return list_data(session)

    def prepare_remove(self) -> PreparedPlan:
        """Plan ``remove``, see ``Prepared``."""
        return prepare_data_remove(self._cluster)

    def remove(self) -> Report:
        """Remove the staged data from every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.prepare_remove() as prepared:
            return refuse_failed(prepared.execute(self._cluster.listen))
