"""Port forwarding from your machine to services on the hosts, over SSH; a lost connection is reopened."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from toolkit.cluster.session import Session
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.hostsfile.inventory import Service
from toolkit.remote.port_forward import LOOPBACK, Forward, Stream
from toolkit.remote.ssh import SshRunner
from toolkit.services.control import address_of


@dataclass(frozen=True)
class Door:
    """A port of your machine that is forwarded to a service.

    Args:
        port: of this machine, at 127.0.0.1.
        leads_to: the port in the service's container.
    """

    service: str
    host: str
    port: int
    leads_to: int

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"


class Way:
    """A route to one service, found again after its container or the connection was replaced."""

    def __init__(self, session: Session, service: Service, say: Callable[[str], None]) -> None:
        self._session, self._service, self._say = session, service, say
        self._lock = threading.Lock()
        self._address = address_of(session, service)

    def dial(self, port: int) -> Stream:
        """Return a connection to one of the service's ports.

        Raises:
            ToolkitError: it is not running, its host is unreachable, or forbids forwarding.
        """
        host = self._service.host
        try:
            runner, address = self._session.runners[host], self._address
            try:
                return runner.dial((address, port))
            except (Unreachable, NotReady):
                self._renew(runner, address)
                return self._session.runners[host].dial((self._address, port))
        except ToolkitError as error:
            self._say(f"{self._service.name}: {error}")
            raise

    def _renew(self, runner: SshRunner, address: str) -> None:
        """Reconnect if necessary and query the service's address, while other threads wait."""
        host = self._service.host
        with self._lock:
            if (self._session.runners[host], self._address) != (runner, address):
                return  # another thread has done it
            if not runner.is_open:
                self._session.reconnect(host)
                self._say(f"reconnected to {host} for service {self._service.name}")
            self._address = address_of(self._session, self._service)


class Doors:
    """All ports of your machine that are forwarded to services, until they are closed."""

    def __init__(self, session: Session, say: Callable[[str], None]) -> None:
        self._session, self._say = session, say
        self._forwards: list[Forward] = []

    def open(self, service: Service, wanted: int = 0) -> list[Door]:
        """Open a port here for each of the service's: of the same number, or another where that is taken.

        A port that does not answer yet is reported and left out.

        Args:
            wanted: the number for its first port; 0 for none in particular.

        Raises:
            ToolkitError: none of the ports answers, see ``Way.dial``; or with ``wanted``, the first port does
                not answer, or the wanted port is taken.
        """
        way = Way(self._session, service, self._say)
        doors: list[Door] = []
        failed: list[ToolkitError] = []
        for index, port in enumerate(service.ports):
            try:
                way.dial(port).close()  # so that a host that forbids it is reported now
            except ToolkitError as error:
                if wanted and not index:
                    raise
                failed.append(error)  # ``dial`` reports it
                continue
            fixed = bool(wanted) and not index
            number = wanted if fixed else port
            forward = self._forward(number, partial(way.dial, port), service.name if fixed else "")
            doors.append(Door(service.name, service.host, forward.port, port))
        if failed and not doors:
            raise failed[0]
        return doors

    def _forward(self, port: int, dial: Callable[[], Stream], fixed_for: str) -> Forward:
        try:
            forward = Forward(port, dial)
        except OSError as error:
            if fixed_for:
                fix = f"toolkit forward {fixed_for}  # without --port, toolkit can use a free port"
                raise ToolkitError(
                    f"cannot listen on port {port} of your machine: {error.strerror}", fix
                ) from error
            forward = Forward(0, dial)  # in use, or only root can bind it
        self._forwards.append(forward)
        return forward

    def close(self) -> None:
        for forward in self._forwards:
            forward.close()
