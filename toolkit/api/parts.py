"""What `toolkit image`, `data`, `network` and `bench` do, as parts of a ``Cluster``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.core.report import refuse_failed

if TYPE_CHECKING:
    from toolkit.api.connection import Connection
    from toolkit.bench.scaling_report import Scaling
    from toolkit.cluster.trust import ShownKey
    from toolkit.core.report import Report
    from toolkit.data.plan import DataRow
    from toolkit.image.inventory import ImageRow
    from toolkit.network.explain import Explanation
    from toolkit.network.measured import Measured
    from toolkit.network.tuning import Tuning
    from toolkit.services.forward import Door
    from toolkit.services.status import ServiceState


class _Part:
    def __init__(self, cluster: Connection) -> None:
        self._cluster = cluster


class KeysPart(_Part):
    """The ssh keys that hosts show, and what is on record of them here."""

    def shown(self, *hosts: str) -> list[ShownKey]:
        """Return the keys that hosts show now, all of them by default; those of jump hosts as well."""
        from toolkit.cluster.trust import look
        from toolkit.hostsfile.load import choose_hosts

        return look(self._cluster.inventory, choose_hosts(self._cluster.inventory, hosts, ()))

    def record(self, key: ShownKey) -> Path:
        """Trust a key from now on; return the file that it was written to.

        Compare its fingerprint with one that came another way first: whoever answers here may be anybody.
        """
        from toolkit.cluster.trust import record

        return record(key)


class ServicesPart(_Part):
    """The services of the hosts file."""

    def states(self) -> list[ServiceState]:
        """Return how each stands; those that run are asked for their health."""
        from toolkit.services.control import states

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
        from toolkit.services.forward import Doors

        found = {one.name: one for one in self._cluster.inventory.services}[service]
        with self._cluster.connect([found.host]) as session:
            doors = Doors(session, lambda text: None)
            try:
                yield doors.open(found, port)
            finally:
                doors.close()


class ImagePart(_Part):
    """The image: built here, sent to the hosts, and what they keep of ours."""

    def build(
        self,
        flavour: str = "",
        tag: str = "",
        extras: Sequence[str] = (),
        requirements: str | Path = "",
        arguments: Mapping[str, str] | None = None,
        torch_index: str = "",
        certificate: str | Path = "",
        no_cache: bool = False,
    ) -> int:
        """Build the image on this machine and return its size in bytes.

        Args:
            flavour: cpu or gpu; by what this machine has by default.
            tag: the hosts file's name for the image by default.
            extras: frameworks to add; requirements: file of further packages.
            arguments: ARGs of the Dockerfile.
            torch_index: index or folder with the CPU wheel of torch.
            certificate: CA bundle that the build shall trust.

        Raises:
            BadInput: an ARG that the Dockerfile lacks, or what cannot be added.
            ImageError: it could not be built.
        """
        from toolkit.image.manage import ImageRecipe, build, known_flavour, make_build, own_arch

        recipe = ImageRecipe(
            known_flavour(flavour),
            tag or self._cluster.inventory.image,
            tuple((arguments or {}).items()),
            arch=own_arch(),
            torch_index=torch_index,
            no_cache=no_cache,
            extras=tuple(extras),
        )
        return build(make_build(recipe, str(certificate), str(requirements)), lambda title, line: None)

    def rows(self) -> tuple[ImageRow, ...]:
        """Return what every host holds of the image, and what else of ours it keeps."""
        from toolkit.image.manage import QUESTIONS, list_images

        with self._cluster.connect(questions=QUESTIONS) as session:
            return list_images(session)

    def prune(self) -> Report:
        """Remove images of ours that nobody needs from every host; never one that is used, or that you named.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        from toolkit.image.manage import QUESTIONS, prune_plan

        with self._cluster.connect(questions=QUESTIONS) as session:
            return refuse_failed(session.execute(prune_plan(session), self._cluster.listen))

    def send(self) -> Report:
        """Bring the image to every host that lacks it: the layers that it lacks, or its own pull.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        from toolkit.lifecycle.planning import image_send_plan, pull_plan
        from toolkit.plan.execute import reported_after

        with self._cluster.connect() as session:
            pull = pull_plan(session)
            pulled = session.pull(pull, self._cluster.listen) if pull.steps else None
            session.require_some()
            with reported_after(pulled):
                sent = session.execute(image_send_plan(session), self._cluster.listen)
            return refuse_failed(sent.after(pulled))


class DataPart(_Part):
    """The data sets of the hosts file."""

    def send(self) -> Report:
        """Stage the data of the hosts file on every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        from toolkit.data.manage import read_data, require_data, send_plan

        require_data(self._cluster.inventory)
        data = read_data(self._cluster.inventory)
        with self._cluster.connect() as session:
            return refuse_failed(session.execute(send_plan(session, data), self._cluster.listen))

    def rows(self) -> tuple[DataRow, ...]:
        """Return what every host holds of the data of the hosts file."""
        from toolkit.data.manage import list_data

        with self._cluster.connect() as session:
            return list_data(session)

    def remove(self) -> Report:
        """Remove the staged data from every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        from toolkit.data.manage import remove_plan

        with self._cluster.connect() as session:
            return refuse_failed(session.execute(remove_plan(session), self._cluster.listen))


class NetworkPart(_Part):
    """The network between the hosts."""

    def explain(self) -> Explanation:
        """Return which address ranks use on each host, why nothing else, and the settings that follow."""
        from toolkit.cluster.reachability import explain_network

        with self._cluster.connect() as session:
            session.require_some()
            away = {name: error.what for name, error in session.errors.items()}
            return explain_network(session.inventory, session.facts, session.runners_in_use(), away)

    def tune(self, engine: str = "auto", budget: float = 120.0) -> Tuning:
        """Measure which of Open MPI's or NCCL's ways is quickest here, and give it to later jobs.

        Args:
            budget: seconds for all of it.
        """
        from toolkit.bench.tune import check_tune, tune

        check_tune(engine, budget)
        with self._cluster.connect() as session:
            session.require_some()
            return tune(session, engine, budget, self._cluster.listen)


class BenchPart(_Part):
    """What a cluster that is up gives."""

    def network(self, seconds: float = 0.5, engine: str = "auto", only: Sequence[str] = ()) -> Measured:
        """Measure every ordered pair of hosts and all-reduce by size, in the image.

        Args:
            seconds: of sending per direction of a pair.
            engine: what does the all-reduce: auto, mpi, gloo or nccl.
        """
        from toolkit.bench.network import NetworkBench, check_bench, run_bench

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
        from toolkit.bench.scaling import measure_all
        from toolkit.jobs.request import Request, check_request

        request = Request(words=words, workdir=Path(workdir).resolve(), launcher=launcher)
        check_request(self._cluster.inventory, request)
        times = (warm_up, seconds, patience)
        with self._cluster.connect(desks=True) as session:
            session.require_some()
            return measure_all(session, request, on, times, self._cluster.listen, lambda text: None)
