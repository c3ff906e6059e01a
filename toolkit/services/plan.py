"""Services: additional containers, each on one host, and the steps that start them."""

from __future__ import annotations

from toolkit import __version__
from toolkit.cluster.container_status import REMOVE_SERVICE, lost_steps, start_step
from toolkit.cluster.containers import gpu_env, gpu_security, home_of
from toolkit.cluster.gpus import gpu_access, service_gpus
from toolkit.cluster.layout import Layout, Place
from toolkit.cluster.ownership import services_of
from toolkit.core.command import command, script
from toolkit.core.container import Container, Mount
from toolkit.core.engines import ENGINE_FAILED, PODMAN
from toolkit.core.image import pull_name
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Inventory, Service
from toolkit.plan.steps import Failure, Phase, Run, Step, WaitFor
from toolkit.protocol.names import (
    LABEL_CLUSTER,
    LABEL_HOST,
    LABEL_OWNER,
    LABEL_ROLE,
    LABEL_SERVICE,
    LABEL_VERSION,
    SERVICE,
    service_container,
)
from toolkit.services.status import health_command

# Its ports are not published: only the host reaches them, and no port of the host is used.
NETWORK = "bridge"
_PULL_SECONDS = 3600.0


def service_folders(inventory: Inventory, host: str) -> tuple[str, ...]:
    """Return the folders below a host's state that are the homes of its services."""
    names = [f"services/{service.name}" for service in inventory.services_on(host)]
    return ("services", *names) if names else ()


def service_of(layout: Layout, place: Place, service: Service) -> Container:
    """Return the container of a service, with its digest among the labels.

    Raises:
        NotReady: the host does not have the requested GPUs, or its engine cannot run services.
    """
    inventory, facts = layout.inventory, place.facts
    if facts.engine == PODMAN and facts.rootless:
        # Its bridge is in a network namespace of its own, and its users need another mapping.
        what = (
            f"service {service.name} cannot run with rootless Podman, because the host cannot connect to "
            "containers on a rootless bridge network"
        )
        fix = f"remove services/{service.name}, set engine: docker, or set hosts/{place.name}/user to root"
        raise NotReady(what, f"in hosts.yaml: {fix}", place.name)
    home = home_of(place.user, facts.uid)
    given = service_gpus(inventory.host(place.name), service, facts)
    gpus, cdi = gpu_access(given, facts)
    labels = dict(inventory.labels) | {
        LABEL_CLUSTER: inventory.cluster,
        LABEL_ROLE: SERVICE,
        LABEL_SERVICE: service.name,
        LABEL_HOST: place.name,
        LABEL_OWNER: facts.user,
        LABEL_VERSION: __version__,
    }
    folder = Mount(f"{place.state}/services/{service.name}", home)
    own = {
        "HOME": home,
        "LOGNAME": place.user,
        "USER": place.user,
        **dict(gpu_env(given, facts)),
        **dict(service.env),
    }
    return Container(
        name=service_container(inventory.cluster, service.name),
        hostname=service.name,
        image=service.image or layout.reference,
        argv=service.argv,
        user=f"{facts.uid}:{facts.gid}",
        groups=tuple(sorted(gid for gid, _ in facts.groups if gid != facts.gid)),
        workdir=home,
        env=tuple(sorted((own | {"TOOLKIT_CLUSTER": inventory.cluster}).items())),
        mounts=(folder, *inventory.all_mounts, *service.mounts),
        labels=tuple(sorted(labels.items())),
        gpus=gpus,
        cdi=cdi,
        shm_bytes=inventory.shm_bytes,
        security=gpu_security(given, facts),
        pids=65536,
        network=NETWORK,
    ).labelled()


def lost_services(layout: Layout, place: Place) -> tuple[Step, ...]:
    """Return the steps that remove the services of a host with lost mounts; see ``lost_steps``.

    Raises:
        NotReady: see ``service_of``.
    """
    inventory, facts = layout.inventory, place.facts
    there = {found.name for found in services_of(inventory.cluster, facts)}
    wanted = (
        service_of(layout, place, service)
        for service in inventory.services_on(place.name)
        if service_container(inventory.cluster, service.name) in there
    )
    return tuple(step for container in wanted for step in lost_steps(container, facts))


def service_phases(layout: Layout) -> tuple[Phase, ...]:
    """Return phases that start all services, remove those that the file no longer names, and wait.

    Raises:
        NotReady: see ``service_of``.
    """
    pairs = [
        (place, service)
        for service in layout.inventory.services
        if (place := layout.place(service.host)) is not None
    ]
    stale = tuple(step for place in layout.places for step in _stale_steps(layout, place))
    return (
        Phase("services", (*stale, *(step for pair in pairs for step in _start_steps(layout, *pair)))),
        Phase("health", tuple(_wait_step(layout, place, service) for place, service in pairs)),
    )


def _stale_steps(layout: Layout, place: Place) -> tuple[Step, ...]:
    """Return steps that remove services which the hosts file does not name for this host."""
    cluster = layout.inventory.cluster
    wanted = {service_container(cluster, one.name) for one in layout.inventory.services_on(place.name)}
    return tuple(
        Run(
            place.name,
            f"remove {found.name}, because hosts.yaml does not assign this service to the host",
            script(REMOVE_SERVICE, found.name, place.facts.user),
            unless=script('! docker container inspect "$1" >/dev/null 2>&1', found.name),
            again=ENGINE_FAILED,
            fix=f"on {place.name}: {place.facts.engine} rm --force {found.name}",
        )
        for found in services_of(cluster, place.facts)
        if found.name not in wanted
    )


def _start_steps(layout: Layout, place: Place, service: Service) -> tuple[Step, ...]:
    no_bridge = Failure(
        r"network bridge not found",
        'services require a bridge network, but the engine has none ("bridge": "none")',
        f'on {place.name}: remove "bridge": "none" from /etc/docker/daemon.json, '
        "then: sudo systemctl restart docker",
    )
    container = service_of(layout, place, service)
    start = start_step(container, place.facts, f"service {service.name}", (no_bridge,))
    if not service.image:
        return (start,)
    name, engine = service.image, place.facts.engine
    pulled = pull_name(name, engine)
    pull = Run(
        place.name,
        f"pull {name}",
        command("docker", "pull", "--quiet", pulled),
        unless=script('docker image inspect "$1" >/dev/null 2>&1', name),
        timeout=_PULL_SECONDS,
        fix=(
            f"on {place.name}: {engine} pull {pulled}  # or load the image on {place.name}: "
            f"{engine} load -i FILE"
        ),
    )
    return (pull, start)


def _wait_step(layout: Layout, place: Place, service: Service) -> Step:
    name = service_container(layout.inventory.cluster, service.name)
    runs = script('test "$(docker inspect --format "{{.State.Running}}" "$1")" = true', name)
    # A service with a wrong command exits soon.
    stays = script('sleep 1; test "$(docker inspect --format "{{.State.Running}}" "$1")" = true', name)
    where = f" at {service.health}" if service.health else ""
    return WaitFor(
        place.name,
        f"{service.name} {'answers' if service.health else 'runs'}{where}",
        ready=health_command(layout.inventory, service) if service.health else stays,
        alive=runs,
        explain=script('docker logs --tail 5 "$1" 2>&1', name),
        deadline=service.start_within,
        fix=f"toolkit logs --service {service.name}",
    )
