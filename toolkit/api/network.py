"""The network between the hosts: explained and tuned."""

from __future__ import annotations

from toolkit.api.connection import Part
from toolkit.bench.tune import DEFAULT_BUDGET_S, check_tune, tune
from toolkit.cluster.connect import try_ways
from toolkit.cluster.pairs import network_ways
from toolkit.network.choose import choose
from toolkit.network.explain import Explanation, explain
from toolkit.network.tuning import Tuning


class NetworkPart(Part):
    """The network between the hosts."""

    def explain(self) -> Explanation:
        """Return the address that ranks use on each host, the reasons, and the resulting settings.

        Hosts try connections in every network that they share.
        """
        with self._cluster.connect() as session:
            session.require_some()
            inventory, facts = session.inventory, session.facts
            ways = network_ways(choose(inventory, facts).shared, facts)
            away = {name: error.what for name, error in session.errors.items()}
            return explain(inventory, facts, try_ways(ways, session.runners_in_use()), away)

    def tune(self, backend: str = "auto", budget: float = DEFAULT_BUDGET_S) -> Tuning:
        """Measure the all-reduce algorithms of Open MPI or NCCL; later jobs use the fastest settings.

        Args:
            backend: auto, mpi or nccl.
            budget: target in seconds for all trials together; each trial has at least 1 s.
        """
        check_tune(backend, budget)
        with self._cluster.connect() as session:
            session.require_some()
            return tune(session, backend, budget, self._cluster.listen)
