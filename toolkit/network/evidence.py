"""Results of the hosts about connections to each other: routes of their kernels, connections they tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from toolkit.core.facts import Facts, leaves_by

# The result of one TCP connection. ``refused``: the target, or a firewall in its name, answered that no
# program listens; ``unreachable``: a router or a firewall answered; ``timeout``: no answer.
Answer = Literal["open", "refused", "timeout", "unreachable"]
# Both show that packets arrive and answers return.
ANSWERED: tuple[Answer, ...] = ("open", "refused")
_BEST_FIRST: tuple[Answer, ...] = (*ANSWERED, "unreachable", "timeout")


@dataclass(frozen=True)
class Evidence:
    """Results of connections between hosts; an absent entry was not tried.

    Args:
        tries: by (source host, address, port).
        routes: by (source host, address) the interface that its kernel uses, empty without a route.
    """

    tries: Mapping[tuple[str, str, int], Answer] = field(default_factory=dict)
    routes: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @cached_property
    def _ports(self) -> Mapping[tuple[str, str], dict[int, Answer]]:
        # Once for all pairs: a search in all attempts for each pair takes time in the fourth power of hosts.
        found: dict[tuple[str, str], dict[int, Answer]] = {}
        for (host, address, port), answer in self.tries.items():
            found.setdefault((host, address), {})[port] = answer
        return found

    def ports(self, host: str, address: str) -> Mapping[int, Answer]:
        """Return the result of each port of an address that a host tried."""
        return self._ports.get((host, address), {})

    def answer(self, host: str, address: str) -> Answer | None:
        """Return the best result of any port of an address, None if none was tried."""
        return min(self.ports(host, address).values(), key=_BEST_FIRST.index, default=None)

    def egress(self, facts: Facts, address: str) -> str | None:
        """Return the interface through which a host sends to an address; None if it is not known.

        The answer of the host's kernel takes precedence over its main routing table.
        """
        queried = self.routes.get((facts.host, address))
        if queried is None and facts.routes:
            return leaves_by(facts.routes, address)
        return queried
