"""A Container as a compose file, from ``compose/*.j2``; it starts the same container as `docker run`."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.core.container import Container
from toolkit.core.templates import render_template


def compose_file(container: Container, role: str, services: Sequence[Container] = ()) -> str:
    """Return the compose file of one host.

    Args:
        role: ``main`` or ``worker``.
        services: additional containers on the host.
    """
    return render_template(f"compose/{role}.yaml.j2", container=container, role=role, services=services)
