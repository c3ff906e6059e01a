"""`toolkit predict` and `toolkit render` as methods of ``Cluster``; they return text and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from toolkit.api.runs import Runs
from toolkit.bench.step_time import probe_request, probe_step
from toolkit.cluster.session import observe_layout
from toolkit.core.facts import Facts
from toolkit.export.job import BatchJob
from toolkit.export.kubernetes import Pods, manifest, manifest_text
from toolkit.export.prepare import KUBERNETES, SLURM, BatchRequest, prepare_batch_job
from toolkit.export.slurm import script
from toolkit.hostsfile.inventory import Inventory
from toolkit.lifecycle.renderings import TARGETS
from toolkit.network.measured import Measured
from toolkit.predict.ask import Options, Predicted, predict_training
from toolkit.predict.model import Probed


class Elsewhere(Runs):
    """Predicts training speed, and renders the cluster or a job for other tools."""

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
