"""What `toolkit predict` and `render` do, as a part of ``Cluster``: text and figures, nothing is changed."""

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
from toolkit.predict.ask import Options
from toolkit.predict.model import Probed
from toolkit.predict.run import Predicted, predict_training


class Elsewhere(Runs):
    """Says what the cluster, or a job of it, would be for others."""

    def predict(
        self,
        options: Options,
        *arguments: str,
        measured: Measured | None = None,
        workdir: str | Path = ".",
    ) -> Predicted:
        """Return what a step would take on 1 … N hosts, and the verdict.

        Args:
            options: as the words of `toolkit predict`; contacts nobody unless they name a script to probe.
            arguments: of that script; ``workdir``: the folder that it is in.
            measured: what ``bench.network`` has returned.

        Raises:
            BadInput: names all that is wrong with the options.
        """

        def probe(inventory: Inventory, script: str) -> Probed:
            request = probe_request(inventory, script, arguments, Path(workdir).resolve())
            with self.connect() as session:
                session.require_some()
                return probe_step(session, request, self.listen)

        options = replace(options, measured=measured is not None)
        return predict_training(self.inventory, options, measured, probe)

    def render(self, target: str) -> dict[str, str]:
        """Return name and text of the files by which others would start the same containers.

        Args:
            target: compose, docker or ssh.

        Raises:
            KeyError: another target.
            ToolkitError: a host of the file did not answer.
        """
        make = TARGETS[target]
        with self.connect() as session:
            files = dict(make(observe_layout(session)))
            session.all_facts()
            return files

    def render_slurm(self, batch: BatchRequest, sbatch: Sequence[str] = ()) -> dict[str, str]:
        """Return name and text of a script for sbatch that runs a job as this cluster would.

        Args:
            batch: the job and its options; hosts are queried only if nothing says how many GPUs they have.
            sbatch: further options of sbatch.

        Raises:
            BadInput: names all that Slurm has no means for.
        """
        job = self._batch_job(batch, SLURM)
        return {f"{job.name}.sh": script(job, batch.runtime, sbatch)}

    def render_kubernetes(self, batch: BatchRequest, pods: Pods | None = None) -> dict[str, str]:
        """Return name and text of an MPIJob or a TrainJob that runs a job as this cluster would.

        Args:
            batch: as for ``render_slurm``; pods: where and with what its pods stand.

        Raises:
            BadInput: names all that Kubernetes has no means for.
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
