"""`from toolkit import Cluster`: a cluster as an object, for scripts and notebooks.

    cluster = Cluster("hosts.yaml")
    cluster.up()
    job = cluster.run("train.py", "--epochs", "3")
    for line in job.lines():
        print(line)
    job.wait()
    cluster.down()

Each method does what the verb of that name does: it connects to the hosts, does its work and leaves, so that
nothing is kept open between two of them and what it finds is never old.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from toolkit.api.bench import BenchPart
from toolkit.api.data import DataPart
from toolkit.api.down import PreparedDown, prepare_down
from toolkit.api.elsewhere import Elsewhere
from toolkit.api.image import ImagePart
from toolkit.api.keys import KeysPart
from toolkit.api.network import NetworkPart
from toolkit.api.services import ServicesPart
from toolkit.api.smoke import PreparedSmoke, prepare_smoke
from toolkit.api.up import PreparedUp, prepare_up
from toolkit.bench.smoke import Smoke
from toolkit.checks.run import choose_checks, look
from toolkit.cleanup.gc import collect
from toolkit.cleanup.gc import questions as leftover_questions
from toolkit.cluster.applied import change_finding
from toolkit.cluster.container_status import HostState, host_states
from toolkit.cluster.gauges import Gauges
from toolkit.core.command import Result
from toolkit.core.finding import Finding
from toolkit.core.gauges import HostGauges
from toolkit.core.host_programs import container_programs
from toolkit.core.report import Report, refuse_failed
from toolkit.errors import ToolkitError
from toolkit.hostsfile.load import choose_hosts
from toolkit.init.meet import first_file
from toolkit.protocol.names import RUNS
from toolkit.remote.fanout import fan_out


class Cluster(Elsewhere):
    """A cluster, by its hosts file; see ``Connection`` for what it is made with."""

    @cached_property
    def keys(self) -> KeysPart:
        """The ssh keys that hosts show."""
        return KeysPart(self)

    @cached_property
    def services(self) -> ServicesPart:
        """The services of the hosts file."""
        return ServicesPart(self)

    @cached_property
    def image(self) -> ImagePart:
        """The image on the hosts."""
        return ImagePart(self)

    @cached_property
    def data(self) -> DataPart:
        """The data sets of the hosts file."""
        return DataPart(self)

    @cached_property
    def network(self) -> NetworkPart:
        """The network between the hosts."""
        return NetworkPart(self)

    @cached_property
    def bench(self) -> BenchPart:
        """What the cluster gives."""
        return BenchPart(self)

    @classmethod
    def init(
        cls,
        *hosts: str,
        path: str | Path = "hosts.yaml",
        cluster: str = "",
        image: str = "",
        user: str = "",
        force: bool = False,
    ) -> Cluster:
        """Try hosts, write the first hosts file for those that can be used, and return their cluster.

        Args:
            hosts: as ``[NAME=][USER@]ADDRESS[:SLOTS]``; their ssh keys must be on record already.
            cluster: its name; after the file or its folder by default.
            image: by the GPUs by default.
            user: of hosts that name none.
            force: write over a file that is there.

        Raises:
            BadInput: a host is not written so, or the file is there; nobody was contacted.
            ToolkitError: none of the hosts can be used.
        """
        return cls(first_file(hosts, path, cluster, image, user, force))

    def check(self, only: Sequence[str] = (), quick: bool = False) -> tuple[Finding, ...]:
        """Return what would stop, spoil or slow a job, the gravest first; changes nothing.

        Args:
            only: ids of checks, all by default.
            quick: start no containers.
        """
        return look(self.inventory, choose_checks(only), self.trace, quick)

    def up(self, data: bool = True, force: bool = False, check: bool = True) -> Report:
        """Bring image, keys, containers and data to every host; a second time it changes nothing.

        Args:
            data: stage the data of the hosts file first.
            force: although it ends a running job, or undoes what a newer toolkit has made.
            check: look for faults of the hosts first.

        Raises:
            PlanFailed: on some host; carries the report.
            NotReady: faults that would stop or spoil a job; says each.
            ToolkitError: something stands in its way on all of them.
        """
        with self.prepare_up(data, force, check) as prepared:
            return refuse_failed(prepared.execute(self.listen))

    def prepare_up(
        self, data: bool = True, force: bool = False, check: bool = True, prepare: bool = False
    ) -> PreparedUp:
        """Plan what ``up`` does, to be looked at and then executed; see ``Prepared``.

        Args:
            data, force, check: as for ``up``.
            prepare: keys and configs only: you start the containers yourself.
        """
        return prepare_up(self, data, force, check, prepare)

    def down(self, save_to: str | Path = "", save: bool = True) -> Report:
        """Remove containers, keys and files of this cluster from every host; images and data stay.

        Jobs that run are ended first.

        Args:
            save_to: folder for the jobs' records, logs and results; ``runs/CLUSTER`` by default.
            save: False leaves them to go.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.prepare_down(save_to, save) as prepared:
            return refuse_failed(prepared.execute(self.listen))

    def prepare_down(self, save_to: str | Path = "", save: bool = True) -> PreparedDown:
        """Plan what ``down`` does, to be looked at and then executed; arguments as there."""
        folder = str(save_to or f"{RUNS}/{self.inventory.cluster}") if save else ""
        return prepare_down(self, folder)

    def smoke(self, launcher: str = "") -> Smoke:
        """Look at the GPUs from containers on every host, then run one checked all-reduce over all slots.

        Args:
            launcher: of the all-reduce; by default the hosts file's, or another if the image is without it.
        """
        with self.prepare_smoke(launcher) as prepared:
            return prepared.execute(self.listen)

    def prepare_smoke(self, launcher: str = "") -> PreparedSmoke:
        """Plan what ``smoke`` does, to be looked at and then executed; arguments as there."""
        return prepare_smoke(self, launcher)

    def status(self) -> list[HostState]:
        """Return what is on every host, those that do not answer included."""
        with self.connect() as session:
            self.warn_of(change_finding(self.inventory, session.facts))
            return host_states(self.inventory, session.facts, session.errors, container_programs())

    def gauges(self, seconds: float = 2.0) -> tuple[tuple[HostGauges, ...], dict[str, str]]:
        """Return one reading of what hosts, GPUs and ranks do, and why other hosts say nothing.

        Args:
            seconds: over which rates are taken.
        """
        with self.connect() as session:
            session.require_some()
            with Gauges(session, seconds) as gauges:
                gauges.wait_for_rates()
                return gauges.now()

    def execute(self, host: str, *command: str, timeout: float | None = None) -> Result:
        """Run a command in the container of a host. If this program exits, the command ends too.

        Args:
            timeout: seconds until the command is ended; None for no limit.

        Raises:
            NotReady: no container of the cluster runs there.
        """
        (name,) = choose_hosts(self.inventory, (host,), ())
        with self.connect([name]) as session:
            session.require_own()
            return session.run_inside(name, command, timeout)

    def on_all(self, *command: str, timeout: float | None = None) -> dict[str, Result | ToolkitError]:
        """Run a command in every host's container at once; a host that cannot has its error in the answer.

        Args:
            timeout: seconds until the command is ended on each host; None for no limit.
        """
        with self.connect() as session:
            session.require_own()
            done, errors = fan_out(
                self.inventory.names, lambda name: session.run_inside(name, command, timeout)
            )
        return {name: done[name] if name in done else errors[name] for name in self.inventory.names}

    def collect_garbage(self, days: float | None = None, state: bool = False) -> Report:
        """Remove what dead runs of this user left on the hosts, of whatever cluster; running jobs stay.

        Args:
            days: also folders of jobs that ended so long ago.
            state: also keys and records of clusters that have no container there.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.connect(questions=leftover_questions()) as session:
            session.require_some()
            return refuse_failed(session.execute(collect(session, days, state).plan, self.listen))
