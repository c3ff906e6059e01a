"""Services as text for people."""

from __future__ import annotations

from collections.abc import Iterable

from toolkit.plan.show import table
from toolkit.services.status import ServiceState


def services_text(states: Iterable[ServiceState]) -> str:
    """Return a table of services, and below it what to do about those that do not serve."""
    states = list(states)
    cells = [(s.service, s.host, s.state, ", ".join(map(str, s.ports)), s.image, s.note) for s in states]
    fixes = "".join(f"fix for {s.service}: {s.fix}\n" for s in states if s.fix)
    return table(("service", "host", "state", "ports", "image", "note"), cells) + fixes
