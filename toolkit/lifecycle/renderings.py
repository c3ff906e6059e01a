"""Render targets: the whole cluster as named files; one registry, read by `toolkit render`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from toolkit.cluster.containers import cluster_container, ssh_config, worker_sshd_config
from toolkit.cluster.layout import Layout
from toolkit.core.container import Container, docker_run_script
from toolkit.core.templates import render_template
from toolkit.errors import BadInput, Problem
from toolkit.protocol.names import SERVICE
from toolkit.services.plan import service_of


def docker_files(layout: Layout) -> dict[str, str]:
    """Return one script per host with its `docker run` line, and one for each service."""
    files, engine = {}, layout.inventory.engine
    for place in layout.places:
        files[f"{place.name}/{place.role}.sh"] = docker_run_script(
            cluster_container(layout, place), engine=engine
        )
        for service in layout.inventory.services_on(place.name):
            script = docker_run_script(service_of(layout, place, service), place.name, engine)
            files[f"{place.name}/{SERVICE}-{service.name}.sh"] = script
    return files


def compose_files(layout: Layout) -> dict[str, str]:
    """Return one compose file per host."""
    files = {}
    for place in layout.places:
        services = [service_of(layout, place, one) for one in layout.inventory.services_on(place.name)]
        container = cluster_container(layout, place)
        files[f"{place.name}/compose.yaml"] = compose_file(container, place.role, services)
    return files


def compose_file(container: Container, role: str, services: Sequence[Container] = ()) -> str:
    """Return the compose file of one host.

    Args:
        role: ``main`` or ``worker``.
        services: additional containers on the host.
    """
    return render_template(f"compose/{role}.yaml.j2", container=container, role=role, services=services)


def ssh_files(layout: Layout) -> dict[str, str]:
    """Return the client's configuration, and each worker's sshd configuration.

    Raises:
        BadInput: the containers of this cluster do not use SSH.
    """
    if not layout.port:
        what = f"with transport: {layout.inventory.used_transport}, containers have no SSH configuration"
        raise BadInput(layout.inventory.source, (Problem("", what),))
    files = {"ssh_config": ssh_config(layout.paths, layout.port, layout.user)}
    for place in layout.workers:
        files[f"{place.name}/sshd_config"] = worker_sshd_config(layout, place)
    return files


TARGETS: dict[str, Callable[[Layout], dict[str, str]]] = {
    "compose": compose_files,
    "docker": docker_files,
    "ssh": ssh_files,
}
