"""Measurements of a running cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.api.connection import Part
from toolkit.bench.network import NetworkBench, check_bench, run_bench
from toolkit.bench.scaling import measure_all
from toolkit.bench.scaling_report import Scaling
from toolkit.jobs.request import Request, check_request
from toolkit.network.measured import Measured


class BenchPart(Part):
    """Measurements of a running cluster."""

    def network(self, seconds: float = 0.5, backend: str = "auto", only: Sequence[str] = ()) -> Measured:
        """Measure the network between every ordered pair of hosts, and the all-reduce by message size.

        Args:
            seconds: time of sending in each direction of a pair.
            backend: library of the all-reduce: auto, mpi, gloo or nccl.
            only: hosts to measure, by default all except spare hosts.
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
        """Run a script on several numbers of hosts and measure its throughput. Times are in seconds.

        Args:
            on: numbers of hosts; by default 1 to the number of hosts, or, for more than 16 hosts, 1 to 8,
                powers of two, and the number of hosts.
            warm_up: time between the first step and the measurement.
            seconds: time of the measurement after the warm-up; longer if steps are slow.
            patience: time limit for the first step, and between steps.
        """
        request = Request(words=words, workdir=Path(workdir).resolve(), launcher=launcher)
        check_request(self._cluster.inventory, request)
        times = (warm_up, seconds, patience)
        with self._cluster.connect(container_sessions=True) as session:
            session.require_some()
            return measure_all(session, request, on, times, self._cluster.listen, lambda text: None)
