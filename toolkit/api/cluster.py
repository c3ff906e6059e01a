"""`from toolkit import Cluster`: a cluster as an object, for scripts and notebooks.

    cluster = Cluster("hosts.yaml")
    cluster.up()
    job = cluster.run("train.py", "--epochs", "3")
    for line in job.lines():
        print(line)
    job.wait()
    cluster.down()

Most methods do the work of the command of the same name. Each call connects to the hosts and then
disconnects: no connection is open between two calls, and each result is current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from toolkit.api.bench import BenchPart
from toolkit.api.connection import Connection
from toolkit.api.data import DataPart
from toolkit.api.down import PreparedDown, prepare_down
from toolkit.api.image import ImagePart
from toolkit.api.job import ClusterJob
from toolkit.api.keys import KeysPart
from toolkit.api.network import NetworkPart
from toolkit.api.prepared import completed
from toolkit.api.run import PreparedRun, prepare_run
from toolkit.api.services import ServicesPart
from toolkit.api.smoke import PreparedSmoke, prepare_smoke
from toolkit.api.up import PreparedUp, prepare_up
from toolkit.bench.smoke import Smoke
from toolkit.bench.step_time import probe_request, probe_step
from toolkit.checks.run import choose_checks, run_checks
from toolkit.cleanup.gc import collect
from toolkit.cleanup.gc import questions as leftover_questions
from toolkit.cluster.applied import change_finding
from toolkit.cluster.container_status import HostState, host_states
from toolkit.cluster.gauges import Gauges
from toolkit.cluster.session import observe_layout
from toolkit.core.command import Result
from toolkit.core.facts import Facts
from toolkit.core.finding import Finding
from toolkit.core.gauges import HostGauges
from toolkit.core.host_programs import container_programs
from toolkit.core.report import Report, refuse_failed
from toolkit.errors import ToolkitError
from toolkit.export.job import BatchJob
from toolkit.export.kubernetes import Pods, manifest, manifest_text
from toolkit.export.prepare import KUBERNETES, SLURM, BatchRequest, prepare_batch_job
from toolkit.export.slurm import script
from toolkit.hostsfile.inventory import Inventory
from toolkit.hostsfile.load import choose_hosts
from toolkit.init.probe_hosts import first_file
from toolkit.jobs.records import known_jobs
from toolkit.jobs.request import Request, check_request
from toolkit.lifecycle.renderings import TARGETS
from toolkit.network.measured import Measured
from toolkit.predict.ask import Options, Predicted, predict_training
from toolkit.predict.model import Probed
from toolkit.protocol.names import RUNS
from toolkit.remote.fanout import fan_out


class Cluster(Connection):
    """A cluster, given its hosts file; ``Connection`` documents the arguments."""

    @cached_property
    def keys(self) -> KeysPart:
        """The SSH host keys."""
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
        """Measurements of the running cluster."""
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
        """Probe hosts, write a hosts file for the usable ones, and return their cluster.

        Args:
            hosts: as ``[NAME=][USER@]ADDRESS[:SLOTS]``; their SSH host keys must be in known_hosts.
            cluster: name of the cluster; by default derived from the file or its folder.
            image: by default chosen by the GPUs of the hosts.
            user: SSH user of hosts that name no user.
            force: overwrite an existing file.

        Raises:
            BadInput: a host has another form, or the file exists; no host was contacted.
            ToolkitError: no host can be used.
        """
        return cls(first_file(hosts, path, cluster, image, user, force))

    def check(self, only: Sequence[str] = (), quick: bool = False) -> tuple[Finding, ...]:
        """Return the findings of all or some checks, the most severe first.

        Args:
            only: ids of checks, all by default.
            quick: run no test program in a container.
        """
        return run_checks(self.inventory, choose_checks(only), self.trace, quick)

    def up(self, data: bool = True, force: bool = False, check: bool = True) -> Report:
        """Start or repair the cluster: image, keys, containers and data on every host. Safe to call again.

        Args:
            data: copy the data sets of the hosts file.
            force: continue even if this stops a running job or undoes changes that a newer toolkit made.
            check: check the hosts for problems first.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
            NotReady: a host has problems that would break or corrupt a job; lists all of them.
            ToolkitError: no host can be used.
        """
        return completed(self.prepare_up(data, force, check))

    def prepare_up(
        self, data: bool = True, force: bool = False, check: bool = True, prepare: bool = False
    ) -> PreparedUp:
        """Plan ``up``: inspect the plan, then execute it; see ``Prepared``.

        Args:
            data, force, check: as for ``up``.
            prepare: copy image and data, and write keys and configurations, but start no containers.
        """
        return prepare_up(self, data, force, check, prepare)

    def down(self, save_to: str | Path = "", save: bool = True) -> Report:
        """Stop running jobs, then remove containers, keys and files of this cluster. Images and data stay.

        Args:
            save_to: local folder for job records, logs and results; ``runs/CLUSTER`` by default.
            save: False deletes records, logs and results without a download.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        return completed(self.prepare_down(save_to, save))

    def prepare_down(self, save_to: str | Path = "", save: bool = True) -> PreparedDown:
        """Plan ``down``: inspect the plan, then execute it. Arguments as for ``down``."""
        folder = str(save_to or f"{RUNS}/{self.inventory.cluster}") if save else ""
        return prepare_down(self, folder)

    def smoke(self, launcher: str = "") -> Smoke:
        """Test the GPUs in containers on every host, then repeat a verified all-reduce over all slots.

        Args:
            launcher: launcher of the all-reduce; by default as for `toolkit smoke`.
        """
        with self.prepare_smoke(launcher) as prepared:
            return prepared.execute(self.listen)

    def prepare_smoke(self, launcher: str = "") -> PreparedSmoke:
        """Plan ``smoke``: inspect the plan, then execute it. Arguments as for ``smoke``."""
        return prepare_smoke(self, launcher)

    def status(self) -> list[HostState]:
        """Return the state of every host, including hosts that do not answer."""
        with self.connect() as session:
            self.warn_of(change_finding(self.inventory, session.facts))
            return host_states(self.inventory, session.facts, session.errors, container_programs())

    def gauges(self, seconds: float = 2.0) -> tuple[tuple[HostGauges, ...], dict[str, str]]:
        """Return the current load of hosts, GPUs and ranks, and the reason for each host without a reading.

        Args:
            seconds: time over which rates are measured.
        """
        with self.connect() as session:
            session.require_some()
            with Gauges(session, seconds) as gauges:
                gauges.wait_for_rates()
                return gauges.now()

    def execute(self, host: str, *command: str, timeout: float | None = None) -> Result:
        """Run a command in the container of a host. If this program exits, the command ends too.

        Args:
            timeout: seconds after which the command is stopped; None means no limit.

        Raises:
            NotReady: no container of the cluster runs on the host.
        """
        (name,) = choose_hosts(self.inventory, (host,), ())
        with self.connect([name]) as session:
            session.require_own()
            return session.run_inside(name, command, timeout)

    def on_all(self, *command: str, timeout: float | None = None) -> dict[str, Result | ToolkitError]:
        """Run a command in all containers in parallel; return a result or an error for each host.

        Args:
            timeout: seconds after which the command is stopped on each host; None means no limit.
        """
        with self.connect() as session:
            session.require_own()
            done, errors = fan_out(
                self.inventory.names, lambda name: session.run_inside(name, command, timeout)
            )
        return {name: done[name] if name in done else errors[name] for name in self.inventory.names}

    def collect_garbage(self, days: float | None = None, state: bool = False) -> Report:
        """Remove leftovers of interrupted runs of all clusters of this user. Running jobs continue.

        Args:
            days: also remove folders of jobs of this cluster that ended more than this many days ago.
            state: also remove keys and records of clusters that have no container on the host.

        Raises:
            PlanFailed: a step failed on a host; contains the report.
        """
        with self.connect(questions=leftover_questions()) as session:
            session.require_some()
            return refuse_failed(session.execute(collect(session, days, state).plan, self.listen))

    def predict(
        self,
        options: Options,
        *arguments: str,
        measured: Measured | None = None,
        workdir: str | Path = ".",
    ) -> Predicted:
        """Return the predicted step time on 1 to N hosts, and the conclusion.

        Args:
            options: as for `toolkit predict`; toolkit contacts hosts only if the options contain a script.
            arguments: arguments of the script; ``workdir`` is its folder.
            measured: result of ``bench.network``.

        Raises:
            BadInput: the options are invalid; lists every problem.
        """

        def probe(inventory: Inventory, script: str) -> Probed:
            request = probe_request(inventory, script, arguments, Path(workdir).resolve())
            with self.connect() as session:
                session.require_some()
                return probe_step(session, request, self.listen)

        options = replace(options, measured=measured is not None)
        return predict_training(self.inventory, options, measured, probe)

    def render(self, target: str) -> dict[str, str]:
        """Return name and text of files with which other tools start the same containers.

        Args:
            target: compose, docker or ssh.

        Raises:
            KeyError: the target is unknown.
            ToolkitError: a host of the file did not answer.
        """
        make = TARGETS[target]
        with self.connect() as session:
            files = dict(make(observe_layout(session)))
            session.all_facts()
            return files

    def render_slurm(self, batch: BatchRequest, sbatch: Sequence[str] = ()) -> dict[str, str]:
        """Return name and text of a script for sbatch that runs a job like this cluster.

        Args:
            batch: the job and its options; toolkit queries hosts only if the number of their GPUs is unknown.
            sbatch: further options of sbatch.

        Raises:
            BadInput: lists the settings that Slurm cannot provide.
        """
        job = self._batch_job(batch, SLURM)
        return {f"{job.name}.sh": script(job, batch.runtime, sbatch)}

    def render_kubernetes(self, batch: BatchRequest, pods: Pods | None = None) -> dict[str, str]:
        """Return name and text of an MPIJob or a TrainJob that runs a job like this cluster.

        Args:
            batch: as for ``render_slurm``.
            pods: placement and resources of the pods.

        Raises:
            BadInput: lists the settings that Kubernetes cannot provide.
        """

        pods = pods or Pods()
        batch = replace(batch, resources=bool(pods.resources), host_network=pods.host_network)
        job = self._batch_job(batch, KUBERNETES)
        return {f"{job.name}.yaml": manifest_text(manifest(job, pods))}

    def _batch_job(self, batch: BatchRequest, target: str) -> BatchJob:
        def ask(hosts: tuple[str, ...]) -> Mapping[str, Facts]:
            with self.connect(hosts) as session:
                return session.all_facts()

        return prepare_batch_job(self.inventory, batch, target, ask)

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
        check: bool = True,
    ) -> ClusterJob:
        """Start a script of ``workdir``, or a command, on all slots, and return while the job runs.

        Args:
            env: variables for the ranks; these variables override `env` of the hosts file.
            timeout, stall_after: seconds.
            check: first check the hosts for problems and the data for completeness.
            others: see the options of `toolkit run` with the same names; ``ranks`` is ``--np``.

        Raises:
            BadInput: the request is invalid; lists every problem. No host was contacted.
            NotReady: the cluster is not up, slots are taken, or hosts have problems; lists each.
            KeyboardInterrupt: Ctrl-C; if the start had begun, the job runs (see ``jobs``).
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
        with self.prepare_run(request, check) as prepared:
            return prepared.execute(self.listen)

    def prepare_run(self, request: Request, check: bool = True) -> PreparedRun[ClusterJob]:
        """Plan ``run``: inspect the plan, then execute it; see ``Prepared``.

        Args:
            request: the arguments of ``run``.
            check: as for ``run``.

        Raises:
            BadInput, NotReady: as for ``run``, except for problems of the hosts.
        """
        checked = check_request(self.inventory, request)
        return prepare_run(self, checked, lambda job: ClusterJob(self, job), check)

    def jobs(self) -> list[ClusterJob]:
        """Return the jobs of the cluster, the newest last."""

        with self.connect(self.inventory.answering) as session:
            session.require_some()
            return [ClusterJob(self, status.id) for status in known_jobs(session)]

    def job(self, job: str = "") -> ClusterJob:
        """Return a job by its id or the last part of the id; by default the newest job.

        Raises:
            NotReady: there is no such job.
        """
        return ClusterJob(self, ClusterJob(self, job).status().id)
