"""Services as they are now: their health, their output, and where their hosts reach them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from toolkit.cluster.session import Session
from toolkit.core.causes import words_of
from toolkit.core.command import script
from toolkit.core.runner import until_stdin_ends
from toolkit.errors import NotReady, ToolkitError
from toolkit.hostsfile.inventory import Service
from toolkit.protocol.names import service_container
from toolkit.remote.fanout import fan_out
from toolkit.services.status import (
    ServiceState,
    address_command,
    container_of,
    health_command,
    service_states,
    to_ask,
)

_HEALTH_SECONDS = 20.0
_BEAT_S = 1.0
_MOST_REASON = 1000  # bytes of the end of a log that can contain Docker's error
# Both streams as one, in the order in which the service has written.
_LOGS = 'exec docker logs "$@" 2>&1'


def states(session: Session) -> list[ServiceState]:
    """Return the status of every service of the file, with the health of those that run."""
    queried = {service.name: service for service in to_ask(session.inventory, session.facts)}

    def ask(name: str) -> str:
        asking = health_command(session.inventory, queried[name])
        result = session.runners[queried[name].host].run(asking, _HEALTH_SECONDS)
        return "" if result.ok else words_of(result.stdout or result.stderr) or "no answer"

    answers, silent = fan_out(list(queried), ask)
    unhealthy = {name: why for name, why in answers.items() if why}
    unhealthy |= {name: error.what for name, error in silent.items()}
    return service_states(session.inventory, session.facts, session.errors, unhealthy)


def show_log(session: Session, service: Service, sink: Callable[[bytes], None], words: Iterable[str]) -> None:
    """Copy the log of a service to ``sink``; with ``--follow`` among the words, until the service ends.

    Args:
        words: options of ``docker logs``.

    Raises:
        NotReady: there is no container of it.
        ToolkitError: its log cannot be read.
    """
    if service.host in session.errors:
        raise session.errors[service.host]
    if container_of(session.inventory.cluster, service, session.facts[service.host]) is None:
        raise NotReady(f"service {service.name} has no container", "toolkit up", service.host)
    over = threading.Event()
    last = b""

    def beats() -> Iterable[bytes]:
        while not over.wait(_BEAT_S):
            yield b"\n"

    def copy(data: bytes) -> None:
        nonlocal last
        last = (last + data)[-_MOST_REASON:]
        sink(data)

    name = service_container(session.inventory.cluster, service.name)
    try:
        result = session.runners[service.host].stream(
            until_stdin_ends(script(_LOGS, *words, name)), copy, beats()
        )
    finally:
        over.set()
    if not result.ok:
        # Docker's own error is the last line of the two streams.
        line = last.decode(errors="replace").strip().rpartition("\n")[2]
        reason = words_of(result.stderr) or words_of(line)
        raise ToolkitError(
            f"cannot read the log of service {service.name}: {reason}",
            "toolkit status",
            service.host,
        )


def address_of(session: Session, service: Service) -> str:
    """Return the address of a service's container, as its host reaches it.

    Raises:
        NotReady: it is not running.
    """
    if service.host in session.errors:
        raise session.errors[service.host]
    # Queried now, not taken from the facts, because the container can have been recreated since.
    result = session.runners[service.host].run(address_command(session.inventory, service), _HEALTH_SECONDS)
    state, *addresses = result.stdout.split() or [""]
    if not result.ok:
        what = f"the container of service {service.name} does not exist or cannot be inspected"
        raise NotReady(f"{what}: {words_of(result.stderr)}", "toolkit up", service.host)
    if state != "running" or not addresses:
        fix = f"toolkit logs --service {service.name}  # then toolkit up"
        what = f"the container of service {service.name} is not running: its state is {state}"
        if state == "running":
            what = f"the container of service {service.name} has no IP address"
        raise NotReady(what, fix, service.host)
    return addresses[0]
