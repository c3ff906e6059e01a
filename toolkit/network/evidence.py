"""What hosts found out about the ways to each other: routes they asked for, connections they tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from toolkit.core.facts import Facts, leaves_by

# What came of one TCP connection. ``refused``: the far side, or a firewall in its name, answered that nobody
# listens; ``unreachable``: a router or a firewall said so; ``timeout``: nobody said anything.
Answer = Literal["open", "refused", "timeout", "unreachable"]
# Either shows that packets go there and come back.
ANSWERED: tuple[Answer, ...] = ("open", "refused")


@dataclass(frozen=True)
class Evidence:
    """What was tried between hosts; what is absent was not tried.

    Args:
        tries: by (host that tried, address, port).
        routes: by (host that was asked, address) the interface by which its kernel sends there, empty
            when it has no route.
    """

    tries: Mapping[tuple[str, str, int], Answer] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def answer(self, host: str, address: str) -> Answer | None:
        """Return the best that came of any port of an address, None when none was tried."""
        found = {a for (h, to, _), a in self.tries.items() if (h, to) == (host, address)}
        order: tuple[Answer, ...] = (*ANSWERED, "unreachable", "timeout")
        return next((answer for answer in order if answer in found), None)

    def egress(self, facts: Facts, address: str) -> str | None:
        """Return the interface by which a host sends to an address; None when nothing tells it.

        What the host's kernel answered counts more than what its main table would say.
        """
        asked = self.routes.get((facts.host, address))
        if asked is None and facts.routes:
            return leaves_by(facts.routes, address)
        return asked
