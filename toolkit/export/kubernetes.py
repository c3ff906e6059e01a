"""A job as an MPIJob (kubeflow.org/v2beta1) or a TrainJob (trainer.kubeflow.org/v1alpha1)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from toolkit.core.templates import render_template
from toolkit.export.job import BY_MPI, CODE, BatchJob, network_lines, rank_text, rank_variables
from toolkit.launchers.mpirun import mpirun_words
from toolkit.launchers.openmpi import openmpi_daemons

# Path at which the operator mounts the job's ssh key, and folder of the pod's own files.
_SSH, _OWN = "/run/toolkit/ssh", "/run/toolkit/job"
# With the network of the node, port 22 (the default of the operator) belongs to the sshd of the node. So both
# cases use this port.
_PORT = 12345
_MASTER_PORT = 29500
_HOSTFILE = "/etc/mpi/hostfile"

KIND_OF = {**dict.fromkeys(BY_MPI, "MPIJob"), "torchrun": "TrainJob"}

_HOSTNAME = "kubernetes.io/hostname"
_GPU = "nvidia.com/gpu"
# Text that kubectl can read as a number or as a boolean, although PyYAML does not quote it: 1e-4, 0o17, y.
_CONVERTED = re.compile(r"[-+.]*[0-9_].*|[yYnN]")
# Prefixes of the resources of RDMA device plugins.
_RDMA = ("rdma/", "vpc.amazonaws.com/efa")


@dataclass(frozen=True)
class Pods:
    """Settings of pods that a hosts file does not contain.

    Args:
        namespace: empty for the namespace at submission.
        host_network: pods use the network of their node.
        resources: additional resource requests of each worker, such as ``rdma/hca=1``.
        node_selector: labels that nodes must have.
        runtime: the ClusterTrainingRuntime of a TrainJob.
    """

    namespace: str = ""
    host_network: bool = False
    resources: tuple[tuple[str, str], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    runtime: str = "torch-distributed"


def manifest(job: BatchJob, pods: Pods) -> dict[str, Any]:
    """Return the object that runs the job; its launcher decides the kind."""
    return (_mpijob if KIND_OF[job.launcher] == "MPIJob" else _trainjob)(job, pods)


def manifest_text(made: dict[str, Any]) -> str:
    """Return the object as YAML with scripts as blocks."""

    class Dumper(yaml.SafeDumper):
        """A dumper that writes several lines as a block and quotes text that kubectl would convert."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def styled(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        style = "|" if "\n" in text else "'" if _CONVERTED.fullmatch(text) else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, styled)
    return yaml.dump(made, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=False)


def _mpijob(job: BatchJob, pods: Pods) -> dict[str, Any]:
    words = {"own": _OWN, "ssh": _SSH, "port": _PORT}
    rank = render_template("scripts/pod-rank.sh.j2", rank=rank_text(job), device=False, network=[])
    argv = mpirun_words(
        str(job.world_size), ("--hostfile", _HOSTFILE), ("sh", "-c", rank, "rank", *job.command)
    )
    launch = render_template("scripts/mpi-launcher.sh.j2", **words, launch=shlex.join(argv))
    serve = render_template("scripts/mpi-worker.sh.j2", **words, network=network_lines(job))
    launcher_env = {
        **openmpi_daemons(f"{_OWN}/agent", len(job.nodes)),
        # Each worker has its own interfaces, which are in its environment.
        "OMPI_MCA_plm_rsh_pass_environ_mca_params": "0",
        # Hosts in the operator's list have long names. For Open MPI 4, the operator sets this itself.
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
    }
    launcher = {
        **container("launcher", job, ("sh", "-c", launch)),
        "env": [*pod_address(), *plain_env(launcher_env)],
        # The ranks run on the workers.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": security(),
    }
    place = {"MASTER_ADDR": f"{job.name}-worker-0.{job.name}", "MASTER_PORT": str(_MASTER_PORT)}
    worker = {
        **container("worker", job, ("sh", "-c", serve)),
        "env": [*pod_address(), *plain_env(place), *pod_env(job)],
        "resources": resources(job, pods),
        # The operator starts the launcher once all workers are ready; see launcherCreationPolicy.
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 2},
        # sshd runs as root and needs these to become the session's user and to confine its unprivileged part.
        "securityContext": security("SETGID", "SETUID", "SYS_CHROOT", *rdma(pods)),
        "volumeMounts": volume_mounts(job),
    }
    replica = {"restartPolicy": "Never"}
    shared = {"terminationGracePeriodSeconds": job.grace, **where(pods)}
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if job.timeout is not None:
        run_policy["activeDeadlineSeconds"] = max(1, round(job.timeout))
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": metadata(job, pods),
        "spec": {
            "slotsPerWorker": job.slots,
            "mpiImplementation": "OpenMPI",
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": _SSH,
            "runPolicy": run_policy,
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    **replica,
                    "template": pod_template(job, {**shared, "containers": [launcher]}),
                },
                "Worker": {
                    "replicas": len(job.nodes),
                    **replica,
                    "template": pod_template(
                        job,
                        {
                            **shared,
                            "affinity": one_per_node(job),
                            "containers": [worker],
                            "volumes": volumes(job),
                        },
                    ),
                },
            },
        },
    }


def _trainjob(job: BatchJob, pods: Pods) -> dict[str, Any]:
    rank = render_template(
        "scripts/pod-rank.sh.j2", rank=rank_text(job), device=True, network=network_lines(job), code=CODE
    )
    # The operator sets PET_*, from which torchrun reads the number of nodes, its node rank and rendezvous.
    command = ("torchrun", "--no-python", "sh", "-c", rank, "rank", *job.command)
    trainer: dict[str, Any] = {
        "image": job.image,
        "command": [literal(word) for word in command],
        "env": [*pod_address(), *pod_env(job)],
        "numNodes": len(job.nodes),
        "numProcPerNode": job.slots,
    }
    if needed := resources(job, pods):
        trainer["resourcesPerNode"] = needed
    node: dict[str, Any] = {
        "name": "node",
        "securityContext": security(*rdma(pods)),
        "volumeMounts": volume_mounts(job),
    }
    spec: dict[str, Any] = {"containers": [node], "volumes": volumes(job)}
    spec["terminationGracePeriodSeconds"] = job.grace
    if pods.node_selector:
        spec["nodeSelector"] = dict(pods.node_selector)
    template = {"spec": {"template": {"spec": spec}}}
    patch = {"template": {"spec": {"replicatedJobs": [{"name": "node", "template": template}]}}}
    made: dict[str, Any] = {"runtimeRef": {"name": pods.runtime}, "trainer": trainer}
    made["runtimePatches"] = [{"manager": "toolkit.local/render", "trainingRuntimeSpec": patch}]
    if job.timeout is not None:
        made["activeDeadlineSeconds"] = max(1, round(job.timeout))
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": metadata(job, pods),
        "spec": made,
    }


def secret_name(job: BatchJob) -> str:
    """Return the name of the Secret that contains the values of passed variables."""
    return f"{job.cluster}-secrets"


def metadata(job: BatchJob, pods: Pods) -> dict[str, Any]:
    """Return the object's metadata."""
    made: dict[str, Any] = {"name": job.name}
    if pods.namespace:
        made["namespace"] = pods.namespace
    if job.labels:
        made["labels"] = dict(job.labels)
    return made


def pod_template(job: BatchJob, spec: dict[str, Any]) -> dict[str, Any]:
    """Return a pod's template around its spec."""
    return {**({"metadata": {"labels": dict(job.labels)}} if job.labels else {}), "spec": spec}


def container(name: str, job: BatchJob, command: tuple[str, ...]) -> dict[str, Any]:
    """Return the common fields of every container of the job."""
    return {
        "name": name,
        "image": job.image,
        "imagePullPolicy": "Always" if job.pull == "always" else "IfNotPresent",
        "command": [literal(word) for word in command],
        "workingDir": CODE,
    }


def literal(text: str) -> str:
    """Return text that Kubernetes passes on unchanged: it would replace $(NAME) by a variable.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return re.sub(r"\$\$|\$\(", lambda found: found[0].replace("$", "$$"), text)


def plain_env(env: dict[str, str]) -> list[dict[str, Any]]:
    """Return variables in the format of Kubernetes."""
    return [{"name": name, "value": literal(value)} for name, value in sorted(env.items())]


def pod_env(job: BatchJob) -> list[dict[str, Any]]:
    """Return the variables of ranks."""
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name(job), "key": name}}}
        for name in job.passed
    ]
    return [*plain_env(rank_variables(job)), *secrets]


def pod_address() -> list[dict[str, Any]]:
    """Return the variable that contains a pod's own address."""
    return [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def resources(job: BatchJob, pods: Pods) -> dict[str, Any]:
    """Return the resource requests of a worker."""
    limits = {**({_GPU: job.gpus} if job.gpus else {}), **dict(pods.resources)}
    return {"limits": limits} if limits else {}


def rdma(pods: Pods) -> tuple[str, ...]:
    """Return the capability that RDMA requires, if the pods request RDMA."""
    # RDMA pins memory, and a pod has no own limit that could be raised.
    return ("IPC_LOCK",) if any(name.startswith(_RDMA) for name, _ in pods.resources) else ()


def security(*capabilities: str) -> dict[str, Any]:
    """Return a container's security context with only these capabilities."""
    add = {"add": list(capabilities)} if capabilities else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}


def where(pods: Pods) -> dict[str, Any]:
    """Return the network and the node selector of pods."""
    made: dict[str, Any] = {"hostNetwork": True} if pods.host_network else {}
    if pods.node_selector:
        made["nodeSelector"] = dict(pods.node_selector)
    return made


def one_per_node(job: BatchJob) -> dict[str, Any]:
    """Return the rule that no two workers share a node."""
    ours = {"training.kubeflow.org/job-name": job.name, "training.kubeflow.org/job-role": "worker"}
    term = {"labelSelector": {"matchLabels": ours}, "topologyKey": _HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def volumes(job: BatchJob) -> list[dict[str, Any]]:
    """Return the volumes of a worker."""
    memory = {"medium": "Memory", "sizeLimit": str(job.shm_bytes)}
    hosts = [{"name": f"mount-{n}", "hostPath": {"path": m.source}} for n, m in enumerate(job.mounts)]
    return [{"name": "shm", "emptyDir": memory}, *hosts]


def volume_mounts(job: BatchJob) -> list[dict[str, Any]]:
    """Return the volume mounts of a worker."""
    made: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(job.mounts):
        read_only = {"readOnly": True} if mount.read_only else {}
        made.append({"name": f"mount-{number}", "mountPath": mount.target, **read_only})
    return made
