"""Parts of ``Cluster`` by subject: SSH keys, services, measurements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from toolkit.api.connection import Part
from toolkit.bench.network import NetworkBench, check_bench, run_bench
from toolkit.bench.scaling import measure_all
from toolkit.bench.scaling_report import Scaling
from toolkit.cluster.trust import ShownKey, look, record
from toolkit.hostsfile.load import choose_hosts
from toolkit.jobs.request import Request, check_request
from toolkit.network.measured import Measured
from toolkit.services.control import states
from toolkit.services.forward import Door, Doors
from toolkit.services.status import ServiceState


class KeysPart(Part):
    """The SSH host keys, and their records on this machine."""

    def shown(self, *hosts: str) -> list[ShownKey]:
        """Return the current keys of hosts (all by default) and of their jump hosts."""
        return look(self._cluster.inventory, choose_hosts(self._cluster.inventory, hosts, ()))

    def record(self, key: ShownKey) -> Path:
        """Record a key as trusted and return the known_hosts file.

        First compare the fingerprint with a fingerprint from another source, because an attacker could answer
        instead of the host.
        """
        return record(key)


class ServicesPart(Part):
    """The services of the hosts file."""

    def states(self) -> list[ServiceState]:
        """Return the state of each service; running services get a health check."""
        with self._cluster.connect() as session:
            return states(session)

    @contextmanager
    def forward(self, service: str, port: int = 0) -> Iterator[list[Door]]:
        """Forward a service to 127.0.0.1 within a ``with``; each `Door` contains a local address.

        Args:
            port: local port; 0 means the port of the service, or the next free port.

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


class BenchPart(Part):
    """Measurements of a running cluster."""

    def network(self, seconds: float = 0.5, backend: str = "auto", only: Sequence[str] = ()) -> Measured:
        """Measure every ordered pair of hosts and all-reduce by size, in the image.

        Args:
            seconds: time of sending in each direction of a pair.
            backend: library of the all-reduce: auto, mpi, gloo or nccl.
            only: hosts to measure, all by default.
        """
        bench = NetworkBench(seconds=seconds, engine=backend)
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
        """Run a script on 1, 2, … hosts and measure its throughput. Times are in seconds.

        Args:
            on: numbers of hosts; by default every number up to 16, then powers of two.
            warm_up: time between the first step and the measurement.
            seconds: time of the measurement after the warm-up.
            patience: time limit for the first step.
        """
        request = Request(words=words, workdir=Path(workdir).resolve(), launcher=launcher)
        check_request(self._cluster.inventory, request)
        times = (warm_up, seconds, patience)
        with self._cluster.connect(container_sessions=True) as session:
            session.require_some()
            return measure_all(session, request, on, times, self._cluster.listen, lambda text: None)
