"""Render targets: the whole cluster as named files; one registry, read by `toolkit render`."""

from __future__ import annotations

from collections.abc import Callable

from toolkit.plan.containers import cluster_container, worker_sshd_config
from toolkit.plan.layout import Layout
from toolkit.render.compose import compose_file
from toolkit.render.docker import docker_run_script
from toolkit.render.ssh import ssh_config


def docker_files(layout: Layout) -> dict[str, str]:
    """Return one script per host with its `docker run` line."""
    return {
        f"{place.name}/{place.role}.sh": docker_run_script(cluster_container(layout, place))
        for place in layout.places
    }


def compose_files(layout: Layout) -> dict[str, str]:
    """Return one compose file per host."""
    return {
        f"{place.name}/compose.yaml": compose_file(cluster_container(layout, place), place.role)
        for place in layout.places
    }


def ssh_files(layout: Layout) -> dict[str, str]:
    """Return the client's configuration, and each worker's sshd configuration."""
    files = {"ssh_config": ssh_config(layout.paths, layout.port, layout.user)}
    for place in layout.workers:
        files[f"{place.name}/sshd_config"] = worker_sshd_config(layout, place)
    return files


TARGETS: dict[str, Callable[[Layout], dict[str, str]]] = {
    "compose": compose_files,
    "docker": docker_files,
    "ssh": ssh_files,
}
