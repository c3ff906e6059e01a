"""The services of the hosts file, and their ports on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from toolkit.api.part import Part
from toolkit.services.control import states
from toolkit.services.forward import Door, Doors
from toolkit.services.status import ServiceState


class ServicesPart(Part):
    """The services of the hosts file."""

    def states(self) -> list[ServiceState]:
        """Return how each stands; those that run are asked for their health."""
        with self._cluster.connect() as session:
            return states(session)

    @contextmanager
    def forward(self, service: str, port: int = 0) -> Iterator[list[Door]]:
        """Within its `with` a service answers on 127.0.0.1; each door has its address.

        Args:
            port: the local one; 0 for the service's own or the next that is free.

        Raises:
            KeyError: the file has no such service.
        """
        found = {one.name: one for one in self._cluster.inventory.services}[service]
        with self._cluster.connect([found.host]) as session:
            doors = Doors(session, lambda text: None)
            try:
                yield doors.open(found, port)
            finally:
                doors.close()
