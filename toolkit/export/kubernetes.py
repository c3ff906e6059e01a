"""A job as an MPIJob (kubeflow.org/v2beta1) or a TrainJob (trainer.kubeflow.org/v1alpha1)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from toolkit.core.templates import render_template
from toolkit.export.job import BY_MPI, CODE, BatchJob, network_lines, rank_text
from toolkit.launchers.mpirun import mpirun_words
from toolkit.launchers.openmpi import openmpi_daemons

# Where the operator is to mount the job's ssh key, and where a pod keeps what it makes of it.
_SSH, _OWN = "/run/toolkit/ssh", "/run/toolkit/job"
# On a host's network the operator's own 22 is the host's sshd; the same port for both.
_PORT = 12345
_MASTER_PORT = 29500
_HOSTFILE = "/etc/mpi/hostfile"

KIND_OF = {**dict.fromkeys(BY_MPI, "MPIJob"), "torchrun": "TrainJob"}

_HOSTNAME = "kubernetes.io/hostname"
_GPU = "nvidia.com/gpu"
# Names that resources of RDMA device plugins begin with.
_RDMA = ("rdma/", "vpc.amazonaws.com/efa")


@dataclass(frozen=True)
class Pods:
    """What a hosts file does not say about pods.

    Args:
        namespace: empty for the one that is submitted to.
        host_network: pods stand on their node's network.
        resources: more that each worker asks for, such as ``rdma/hca=1``.
        node_selector: labels that nodes must have.
        runtime: the ClusterTrainingRuntime of a TrainJob.
    """

    namespace: str = ""
    host_network: bool = False
    resources: tuple[tuple[str, str], ...] = ()
    node_selector: tuple[tuple[str, str], ...] = ()
    runtime: str = "torch-distributed"


def manifest(job: BatchJob, pods: Pods) -> dict[str, Any]:
    """Return the object that runs the job: what its launcher is, is what runs it there."""
    return (_mpijob if KIND_OF[job.launcher] == "MPIJob" else _trainjob)(job, pods)


def manifest_text(made: dict[str, Any]) -> str:
    """Return the object as YAML, scripts in it as people write them."""

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)

    Dumper.add_representer(str, block)
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
        # Interfaces are each worker's own, and stand in its environment.
        "OMPI_MCA_plm_rsh_pass_environ_mca_params": "0",
        # Hosts of the operator's list have long names; Open MPI 4 is told so by the operator itself.
        "PRTE_MCA_prte_keep_fqdn_hostnames": "1",
    }
    launcher = {
        **container("launcher", job, ("sh", "-c", launch)),
        "env": [*pod_address(), *plain_env(launcher_env)],
        # Its ranks are on the workers.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": security(),
    }
    place = {"MASTER_ADDR": f"{job.name}-worker-0.{job.name}", "MASTER_PORT": str(_MASTER_PORT)}
    worker = {
        **container("worker", job, ("sh", "-c", serve)),
        "env": [*pod_address(), *plain_env(place), *pod_env(job)],
        "resources": resources(job, pods),
        # Only then is the launcher started; see launcherCreationPolicy.
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 2},
        # What sshd as root needs to become the session's user and to lock up its unprivileged half.
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
        "scripts/pod-rank.sh.j2", rank=rank_text(job), device=True, network=network_lines(job)
    )
    # How many nodes there are, which one this is and where they meet, torchrun reads from PET_*, which the
    # operator sets.
    command = ("torchrun", "--no-python", "sh", "-c", rank, "rank", *job.command)
    trainer: dict[str, Any] = {
        "image": job.image,
        "command": [literal(word) for word in command],
        "env": [*pod_address(), *pod_env(job)],
        "numNodes": len(job.nodes),
        "numProcPerNode": job.slots,
    }
    if asked := resources(job, pods):
        trainer["resourcesPerNode"] = asked
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
    """Return the Secret that variables without a value here are taken from."""
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
    """Return what every container of the job has."""
    return {
        "name": name,
        "image": job.image,
        "imagePullPolicy": "Always" if job.pull == "always" else "IfNotPresent",
        "command": [literal(word) for word in command],
        "workingDir": CODE,
    }


def literal(text: str) -> str:
    """Return text that Kubernetes hands on as it is: $(NAME) in it would be one of its own variables.

    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    return re.sub(r"\$\$|\$\(", lambda found: found[0].replace("$", "$$"), text)


def plain_env(env: dict[str, str]) -> list[dict[str, Any]]:
    """Return variables as Kubernetes lists them."""
    return [{"name": name, "value": literal(value)} for name, value in sorted(env.items())]


def pod_env(job: BatchJob) -> list[dict[str, Any]]:
    """Return the variables of ranks."""
    cpu = {} if job.gpus else {"ACCELERATE_USE_CPU": "true"}
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name(job), "key": name}}}
        for name in job.passed
    ]
    return [*plain_env({**cpu, "PYTHONUNBUFFERED": "1", **dict(job.env)}), *secrets]


def pod_address() -> list[dict[str, Any]]:
    """Return the variable that tells a pod its own address."""
    return [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def resources(job: BatchJob, pods: Pods) -> dict[str, Any]:
    """Return what a worker asks for."""
    limits = {**({_GPU: job.gpus} if job.gpus else {}), **dict(pods.resources)}
    return {"limits": limits} if limits else {}


def rdma(pods: Pods) -> tuple[str, ...]:
    """Return the capability that RDMA wants, where it is asked for."""
    # RDMA pins memory, and a pod has no limit of its own that could be raised.
    return ("IPC_LOCK",) if any(name.startswith(_RDMA) for name, _ in pods.resources) else ()


def security(*capabilities: str) -> dict[str, Any]:
    """Return a container's rights: no capabilities but these."""
    add = {"add": list(capabilities)} if capabilities else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}


def where(pods: Pods) -> dict[str, Any]:
    """Return where pods may stand."""
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
    """Return where a worker sees them."""
    made: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(job.mounts):
        read_only = {"readOnly": True} if mount.read_only else {}
        made.append({"name": f"mount-{number}", "mountPath": mount.target, **read_only})
    return made
