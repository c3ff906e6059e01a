"""What `toolkit image`, `data`, `network` and `bench` do, as parts of a ``Cluster``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit.api.part import Part
from toolkit.bench.network import NetworkBench, check_bench, run_bench
from toolkit.bench.scaling import measure_all
from toolkit.bench.scaling_fit import Scaling
from toolkit.bench.tune import check_tune, tune
from toolkit.cluster.reachability import explain_network
from toolkit.cluster.trust import ShownKey, look, record
from toolkit.hostsfile.load import choose_hosts
from toolkit.jobs.request import Request, check_request
from toolkit.network.explain import Explanation
from toolkit.network.measured import Measured
from toolkit.network.tuning import Tuning
from toolkit.services.control import states
from toolkit.services.forward import Door, Doors
from toolkit.services.status import ServiceState


class KeysPart(Part):
    """The ssh keys that hosts show, and what is on record of them here."""

    def shown(self, *hosts: str) -> list[ShownKey]:
        """Return the keys that hosts show now, all of them by default; those of jump hosts as well."""
        return look(self._cluster.inventory, choose_hosts(self._cluster.inventory, hosts, ()))

    def record(self, key: ShownKey) -> Path:
        """Trust a key from now on; return the file that it was written to.

        Compare its fingerprint with one that came another way first: whoever answers here may be anybody.
        """
        return record(key)


class ServicesPart(Part):
    """The services of the hosts file."""

    def states(self) -> list[ServiceState]:
        """Return how each stands; those that run are asked for their health."""
        with self._cluster.connect() as session:
            return states(session)

    @contextmanager
    def forward(self, service: str, port: int = 0) -> Iterator[list[Door]]:
        """Within its `with` a service answers on 127.0.0.1; each door has its address.

        Args:
            port: the local one; 0 for the service's own or the next that is free.

        Raises:
            KeyError: the file has no such service.
        """
        found = {one.name: one for one in self._cluster.inventory.services}[service]
        with self._cluster.connect([found.host]) as session:
            doors = Doors(session, lambda text: None)
            try:
                yield doors.open(found, port)
            finally:
                doors.close()


class NetworkPart(Part):
    """The network between the hosts."""

    def explain(self) -> Explanation:
        """Return which address ranks use on each host, why nothing else, and the settings that follow."""
        with self._cluster.connect() as session:
            session.require_some()
            away = {name: error.what for name, error in session.errors.items()}
            return explain_network(session.inventory, session.facts, session.runners_in_use(), away)

    def tune(self, engine: str = "auto", budget: float = 120.0) -> Tuning:
        """Measure which of Open MPI's or NCCL's ways is quickest here, and give it to later jobs.

        Args:
            budget: seconds for all of it.
        """
        check_tune(engine, budget)
        with self._cluster.connect() as session:
            session.require_some()
            return tune(session, engine, budget, self._cluster.listen)


class BenchPart(Part):
    """What a cluster that is up gives."""

    def network(self, seconds: float = 0.5, engine: str = "auto", only: Sequence[str] = ()) -> Measured:
        """Measure every ordered pair of hosts and all-reduce by size, in the image.

        Args:
            seconds: of sending per direction of a pair.
            engine: what does the all-reduce: auto, mpi, gloo or nccl.
        """
        bench = NetworkBench(seconds=seconds, engine=engine)
        check_bench(bench)
        with self._cluster.connect() as session:
            session.require_some()
            return run_bench(session, bench, self._cluster.listen, tuple(only))

    def scaling(
        self,
        *words: str,
        workdir: str | Path = ".",
        on: Sequence[int] = (),
        warm_up: float = 5.0,
        seconds: float = 20.0,
        patience: float = 300.0,
        launcher: str = "",
    ) -> Scaling:
        """Run a script on 1, 2, … hosts, each time until its pace is known; times in seconds.

        Args:
            on: numbers of hosts; all up to 16 by default, then powers of two.
            warm_up: after the first step, which does not count; ``seconds`` follow.
            patience: within which the first step is to be seen.
        """
        request = Request(words=words, workdir=Path(workdir).resolve(), launcher=launcher)
        check_request(self._cluster.inventory, request)
        times = (warm_up, seconds, patience)
        with self._cluster.connect(desks=True) as session:
            session.require_some()
            return measure_all(session, request, on, times, self._cluster.listen, lambda text: None)
