"""The services of the hosts file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.api.connection import Part
from toolkit.services.control import states
from toolkit.services.forward import Door, Doors
from toolkit.services.status import ServiceState


class ServicesPart(Part):
    """The services of the hosts file."""

    def states(self) -> list[ServiceState]:
        """Return the state of each service; running services get a health check."""
        with self._cluster.connect() as session:
            return states(session)

    @contextmanager
    def forward(self, service: str, port: int = 0) -> Iterator[list[Door]]:
        """Forward a service to 127.0.0.1 within a ``with``; each `Door` contains a local address.

        Ports of the service that refuse connections get no `Door`. If all ports refuse connections, or if the
        first port does and ``port`` is not 0, this is an error.

        Args:
            port: local port; 0 means the port of the service or, if this port is not available, a free port.

        Raises:
            KeyError: the file has no such service.
            ToolkitError: see above; or the local port is not available.
        """
        found = {one.name: one for one in self._cluster.inventory.services}[service]
        with self._cluster.connect([found.host]) as session:
            doors = Doors(session, lambda text: None)
            try:
                yield doors.open(found, port)
            finally:
                doors.close()
