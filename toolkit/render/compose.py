"""A Container as a compose file, from ``compose/*.j2``; brings up the same container as `docker run`."""

from __future__ import annotations

from toolkit.core.container import Container
from toolkit.render.templates import render_template


def compose_file(container: Container, role: str) -> str:
    """Return the compose file of one host.

    Args:
        role: ``main`` or ``worker``; also the name of the service.
    """
    return render_template(f"compose/{role}.yaml.j2", container=container, role=role)
