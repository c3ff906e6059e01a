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

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from toolkit.api import Session
from toolkit.bench import NetworkBench, check_bench, run_bench
from toolkit.check import choose_checks, look
from toolkit.cluster_job import ClusterJob
from toolkit.core.command import Command
from toolkit.core.finding import Finding
from toolkit.core.gauges import HostGauges
from toolkit.core.report import Report
from toolkit.core.result import Result
from toolkit.datasets import list_data, read_data, refuse_lacking, remove_plan, require_data, send_plan
from toolkit.effects.fanout import fan_out
from toolkit.effects.ssh import Trace
from toolkit.errors import PlanFailed, ToolkitError
from toolkit.execute import Listener
from toolkit.forwarding import Door, Doors
from toolkit.gauges import Gauges
from toolkit.inputs import choose_hosts, load_inventory
from toolkit.jobs import refuse_to_end_jobs, start
from toolkit.launching import launcher_findings
from toolkit.network.measured import Measured
from toolkit.network.predict import counts
from toolkit.network.scaling import Scaling
from toolkit.network.tuning import Tuning
from toolkit.plan.data import DataRow
from toolkit.plan.standing import HostState
from toolkit.preflight import preflight, questions, refuse_faults
from toolkit.race import bring_up
from toolkit.records import known_jobs
from toolkit.request import (
    Request,
    code_findings,
    environment_findings,
    make_job,
    plan_run,
    start_of,
)
from toolkit.scaling import measure, on_first, ordered_hosts
from toolkit.smoke import Smoke, run_smoke
from toolkit.spec.inventory import Inventory
from toolkit.tune import tune

Warn = Callable[[Finding], None]


class ToolkitWarning(UserWarning):
    """Something about the hosts or the job that does not keep it from running."""


def _warn(finding: Finding) -> None:
    host = f"{finding.host}: " if finding.host else ""
    text = f"{host}{finding.subject}: {finding.what}; fix: {finding.fix}"
    warnings.warn(text, ToolkitWarning, stacklevel=4)


def _hear_nothing(event: object) -> None:
    pass


class Cluster:
    """A cluster, by its hosts file.

    Args:
        hosts: path of a hosts.yaml, or what ``load_inventory`` has returned.
        listen: called with what happens while plans run (``toolkit.execute.Event``), from several threads.
        warn: called with findings that keep nothing from running; by default they are Python warnings.
        trace: called with host and line for each command, before it is run there.

    Raises:
        BadInput: the file cannot be read or is wrong; names all that is wrong with it.
    """

    def __init__(
        self,
        hosts: str | Path | Inventory = "hosts.yaml",
        listen: Listener = _hear_nothing,
        warn: Warn = _warn,
        trace: Trace | None = None,
    ) -> None:
        self.inventory = hosts if isinstance(hosts, Inventory) else load_inventory(hosts)
        self.listen = listen
        self.warn = warn
        self.trace = trace

    @property
    def name(self) -> str:
        return self.inventory.cluster

    def connect(
        self,
        hosts: Iterable[str] | None = None,
        questions: Sequence[tuple[str, str]] = (),
        desks: bool = False,
    ) -> Session:
        """Connect to hosts, all by default; for what has no method here. To be used in a ``with``.

        Args:
            questions, desks: see ``Session.open``.
        """
        return Session.open(self.inventory, hosts, self.trace, questions, desks)

    # The cluster

    def check(self, only: Sequence[str] = (), quick: bool = False) -> tuple[Finding, ...]:
        """Return what would stop, spoil or slow a job, the gravest first; changes nothing.

        Args:
            only: ids of checks, all by default.
            quick: start no containers.
        """
        return look(self.inventory, choose_checks(only), self.trace, quick)

    def up(self, data: bool = True, force: bool = False) -> Report:
        """Bring image, keys, containers and data to every host; a second time it changes nothing.

        Args:
            data: stage the data of the hosts file first.
            force: although it ends a running job, or undoes what a newer toolkit has made.

        Raises:
            PlanFailed: on some host; carries the report.
            ToolkitError: something stands in its way on all of them.
        """
        staged = read_data(self.inventory) if data else ()
        self._warn_of(environment_findings(self.inventory))
        with self.connect(questions=questions()) as session:
            found = preflight(session, session.inventory.names)
            self._warn_of(finding for finding in found if finding.verdict != "error")
            refuse_faults(found)
            pull = session.plan_pull()
            pulled = session.pull(pull, self.listen) if pull.steps else None
            session.require_some()
            plan = session.plan_up(data=staged)
            if not force:
                session.refuse_newer()
                refuse_to_end_jobs(session)
            return _done(bring_up(session, plan, self.listen, force=force).after(pulled))

    def down(self, save_to: str | Path | None = None) -> Report:
        """Remove containers, keys and files of this cluster from every host; images and data stay.

        Args:
            save_to: folder for the jobs' records, logs and results; None leaves them to go.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.connect() as session:
            session.require_some()
            return _done(session.execute(session.plan_down(str(save_to or "")), self.listen))

    def smoke(self, launcher: str = "mpirun") -> Smoke:
        """Look at the GPUs from containers on every host, then run one checked all-reduce over all slots."""
        with self.connect() as session:
            session.require_some()
            return run_smoke(session, launcher, self.listen)

    def status(self) -> list[HostState]:
        """Return what is on every host, those that do not answer included."""
        with self.connect() as session:
            return session.host_states()

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

    def execute(self, host: str, *command: str, timeout: float | None = 600.0) -> Result:
        """Run a command in the container of a host; ``timeout`` in seconds.

        Raises:
            NotReady: no container of the cluster runs there.
        """
        (name,) = choose_hosts(self.inventory, (host,), ())
        with self.connect([name]) as session:
            session.require_own()
            return session.container(name).run(Command(command), timeout)

    @contextmanager
    def forward(self, service: str, port: int = 0) -> Iterator[list[Door]]:
        """Within its ``with`` a service of the hosts file answers on 127.0.0.1; each door has its address.

        Args:
            port: the local one; 0 for the service's own or the next that is free.

        Raises:
            KeyError: the file has no such service.
        """
        found = {one.name: one for one in self.inventory.services}[service]
        with self.connect([found.host]) as session:
            doors = Doors(session, lambda text: None)
            try:
                yield doors.open(found, port)
            finally:
                doors.close()

    # Image and data

    def send_image(self) -> Report:
        """Bring the image to every host that lacks it; only missing layers travel.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.connect() as session:
            return _done(session.execute(session.plan_image_send(), self.listen))

    def send_data(self) -> Report:
        """Stage the data of the hosts file on every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        require_data(self.inventory)
        data = read_data(self.inventory)
        with self.connect() as session:
            return _done(session.execute(send_plan(session, data), self.listen))

    def data(self) -> tuple[DataRow, ...]:
        """Return what every host holds of the data of the hosts file."""
        with self.connect() as session:
            return list_data(session)

    def remove_data(self) -> Report:
        """Remove the staged data from every host.

        Raises:
            PlanFailed: on some host; carries the report.
        """
        with self.connect() as session:
            return _done(session.execute(remove_plan(session), self.listen))

    # Jobs

    def run(
        self,
        *words: str,
        workdir: str | Path = ".",
        ranks: int | None = None,
        launcher: str = "",
        env: Mapping[str, str] | None = None,
        only: Sequence[str] = (),
        exclude: Sequence[str] = (),
        timeout: float | None = None,
        max_restarts: int = 0,
        min_hosts: int = 0,
        elastic: bool = False,
        stall_after: float | None = None,
        share: bool = False,
    ) -> ClusterJob:
        """Start a script of ``workdir`` with its arguments, or a command, on all slots; return while it runs.

        Args:
            env: variables for the ranks, which win over the hosts file's.
            timeout, stall_after: in seconds.
            others: as the options of `toolkit run` by these names; ``ranks`` is its ``--np``.

        Raises:
            BadInput: names all that is wrong with it; nothing was contacted.
            NotReady: the cluster is not up, or others have the slots.
        """
        request = Request(
            words=words,
            workdir=Path(workdir).resolve(),
            ranks=ranks,
            launcher=launcher,
            env=tuple((env or {}).items()),
            only=tuple(only),
            exclude=tuple(exclude),
            timeout=timeout,
            max_restarts=max_restarts,
            min_hosts=min_hosts,
            elastic=elastic,
            stall_after=stall_after,
            share=share,
        )
        self._warn_of(environment_findings(self.inventory, request))
        with self.connect(questions=questions(), desks=True) as session:
            session.require_some()
            job = make_job(session, request)
            plan = plan_run(session, job, request.workdir)
            how = start_of(self.inventory, request)
            self._warn_of((*launcher_findings(job, how), *code_findings(plan)))
            refuse_lacking(session, {host.name for host in job.hosts})
            refuse_faults(preflight(session, {job.main, *(host.name for host in job.hosts)}))
            start(session, plan, self.listen)
        return ClusterJob(self.connect, job.id)

    def jobs(self) -> list[ClusterJob]:
        """Return the cluster's jobs, the newest last."""
        with self.connect(self.inventory.answering) as session:
            session.require_some()
            return [ClusterJob(self.connect, status.id) for status in known_jobs(session)]

    def job(self, job: str = "") -> ClusterJob:
        """Return a job by its id or the last part of it; the newest one by default.

        Raises:
            NotReady: there is none.
        """
        return ClusterJob(self.connect, ClusterJob(self.connect, job).status().id)

    # Measuring

    def bench_network(self, seconds: float = 0.5, engine: str = "auto", only: Sequence[str] = ()) -> Measured:
        """Measure every ordered pair of hosts and all-reduce by size, in the image.

        Args:
            seconds: of sending per direction of a pair.
            engine: what does the all-reduce: auto, mpi, gloo or nccl.
        """
        bench = NetworkBench(seconds=seconds, engine=engine)
        check_bench(bench)
        with self.connect() as session:
            session.require_some()
            return run_bench(session, bench, self.listen, tuple(only))

    def bench_scaling(
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
        points, faults = [], []
        with self.connect(desks=True) as session:
            session.require_some()
            order = ordered_hosts(session.inventory, request)
            for number in on or counts(len(order)):
                asked = on_first(request, order, number)
                try:
                    points.append(
                        measure(session, asked, warm_up, seconds, patience, self.listen, lambda text: None)
                    )
                except ToolkitError as error:
                    faults.append(f"{number} hosts: {error.what}")
        return Scaling(tuple(points), faults=tuple(faults))

    def tune_network(self, engine: str = "auto", budget: float = 120.0) -> Tuning:
        """Measure which of Open MPI's or NCCL's ways is quickest here, and give it to later jobs.

        Args:
            budget: seconds for all of it.
        """
        with self.connect() as session:
            session.require_some()
            return tune(session, engine, budget, self.listen)

    def on_all(self, *command: str, timeout: float | None = 600.0) -> dict[str, Result | ToolkitError]:
        """Run a command in every host's container at once; a host that cannot has its error in the answer."""
        with self.connect() as session:
            session.require_own()
            done, errors = fan_out(
                self.inventory.names, lambda name: session.container(name).run(Command(command), timeout)
            )
        return {name: done[name] if name in done else errors[name] for name in self.inventory.names}

    def _warn_of(self, findings: Iterable[Finding]) -> None:
        for finding in findings:
            self.warn(finding)


def _done(report: Report) -> Report:
    if not report.ok:
        raise PlanFailed(replace(report))
    return report
