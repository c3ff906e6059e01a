"""Status of services: whether their containers run and serve, and the addresses by which hosts reach them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolkit.cluster.container_status import why_not_running
from toolkit.cluster.ownership import services_of
from toolkit.core.command import Command, command, script
from toolkit.core.facts import ContainerFacts, Facts
from toolkit.core.printable import table
from toolkit.errors import ToolkitError
from toolkit.hostsfile.inventory import Inventory, Service
from toolkit.protocol.names import container_name, program, service_container

# The addresses of the container, of which callers use the first: the address on the bridge of Docker or
# Podman, which changes with each start. Users can connect a container to further networks. A host cannot
# reach its containers on a macvlan, and the engine sorts networks by name.
_ADDRESS = "{{with .IPAddress}}{{.}} {{end}}{{end}}"
_ADDRESSES = (
    f'{{{{with index .NetworkSettings.Networks "bridge"}}}}{_ADDRESS}'
    f'{{{{with index .NetworkSettings.Networks "podman"}}}}{_ADDRESS}'
    f"{{{{range .NetworkSettings.Networks}}}}{_ADDRESS}"
)


def health_command(inventory: Inventory, service: Service) -> Command:
    """Return the health check of a service for its host; it exits with 0, or prints the reason.

    From the cluster's own container, which has Python and the host's network.
    """
    role = inventory.role(service.host)
    ask = f"docker exec {container_name(inventory.cluster, role)} {' '.join(program('check.health'))}"
    return script(
        f"""at=$(docker inspect --format '{_ADDRESSES}' "$1") || exit; """
        f"""exec {ask} "http://${{at%% *}}:$2$3" """.strip(),
        service_container(inventory.cluster, service.name),
        str(service.ports[0]),
        service.health,
    )


def address_command(inventory: Inventory, service: Service) -> Command:
    """Return the command that prints the status of a service's container and its addresses on the host."""
    name = service_container(inventory.cluster, service.name)
    return command("docker", "inspect", "--format", f"{{{{.State.Status}}}} {_ADDRESSES}", name)


@dataclass(frozen=True)
class ServiceState:
    """One service as `status` shows it.

    Args:
        state: ``healthy``, ``running`` (without a health check), ``not healthy``, ``no container``,
            ``unreachable``, or Docker's word.
        note: what is worth saying about it.
        fix: what to do about that.
    """

    service: str
    host: str
    state: str
    ports: tuple[int, ...] = ()
    image: str = ""
    note: str = ""
    fix: str = ""

    @property
    def ok(self) -> bool:
        return self.state in ("healthy", "running")


def service_states(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    errors: Mapping[str, ToolkitError],
    unhealthy: Mapping[str, str],
) -> list[ServiceState]:
    """Return the status of every service of the file.

    Args:
        errors: of the hosts that did not answer.
        unhealthy: why services that run do not serve, by name.
    """
    return [_state(inventory, service, facts, errors, unhealthy) for service in inventory.services]


def _state(
    inventory: Inventory,
    service: Service,
    facts: Mapping[str, Facts],
    errors: Mapping[str, ToolkitError],
    unhealthy: Mapping[str, str],
) -> ServiceState:
    state = ServiceState(service.name, service.host, "", service.ports, service.image or inventory.image)
    if service.host in errors:
        lost = errors[service.host]
        return replace(state, state="unreachable", note=lost.what, fix=lost.fix)
    found = container_of(inventory.cluster, service, facts[service.host])
    logs = f"toolkit logs --service {service.name}"
    if found is None:
        return replace(state, state="no container", fix="toolkit up")
    if why := why_not_running(found, facts[service.host]):
        return replace(
            state, state=f"{found.state} ({found.exit_code})", note=why, fix=f"{logs}  # then toolkit up"
        )
    if service.name in unhealthy:
        return replace(state, state="not healthy", note=unhealthy[service.name], fix=logs)
    return replace(state, state="healthy" if service.health else "running")


def container_of(cluster: str, service: Service, facts: Facts) -> ContainerFacts | None:
    """Return the container of a service on its host, or None."""
    name = service_container(cluster, service.name)
    return next((c for c in services_of(cluster, facts) if c.name == name), None)


def to_ask(inventory: Inventory, facts: Mapping[str, Facts]) -> Sequence[Service]:
    """Return the services whose containers run, so that their health can be checked."""
    return [
        service
        for service in inventory.services
        if service.health and service.host in facts and _runs(inventory.cluster, service, facts[service.host])
    ]


def _runs(cluster: str, service: Service, facts: Facts) -> bool:
    found = container_of(cluster, service, facts)
    return found is not None and found.state == "running"


def services_text(states: Iterable[ServiceState]) -> str:
    """Return a table of services, with a fix for each that does not serve."""
    states = list(states)
    cells = [(s.service, s.host, s.state, ", ".join(map(str, s.ports)), s.image, s.note) for s in states]
    fixes = "".join(f"fix for {s.service}: {s.fix}\n" for s in states if s.fix)
    return table(("service", "host", "state", "ports", "image", "note"), cells) + fixes
