"""A job as an MPIJob (kubeflow.org/v2beta1) or a TrainJob (trainer.kubeflow.org/v1alpha1)."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Any

from toolkit.launchers.mpirun import mpirun_words
from toolkit.launchers.openmpi import openmpi_daemons
from toolkit.render.batch import BY_MPI, CODE, BatchJob, network_lines, rank_text
from toolkit.render.templates import render_template

# Where the operator is to mount the job's ssh key, and where a pod keeps what it makes of it.
_SSH, _OWN = "/run/toolkit/ssh", "/run/toolkit/job"
# On a host's network the operator's own 22 is the host's sshd; the same port for both.
_PORT = 12345
_MASTER_PORT = 29500
_HOSTFILE = "/etc/mpi/hostfile"
_HOSTNAME = "kubernetes.io/hostname"
_GPU = "nvidia.com/gpu"

KIND_OF = {**dict.fromkeys(BY_MPI, "MPIJob"), "torchrun": "TrainJob"}


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
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes text of several lines as a block."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, "|" if "\n" in text else None)

    Dumper.add_representer(str, block)
    return yaml.dump(made, Dumper=Dumper, sort_keys=False, width=110, allow_unicode=False)


def secret_name(job: BatchJob) -> str:
    """Return the Secret that variables without a value here are taken from."""
    return f"{job.cluster}-secrets"


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
        **_container("launcher", job, ("sh", "-c", launch)),
        "env": [*_pod_address(), *_plain(launcher_env)],
        # Its ranks are on the workers.
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}},
        "securityContext": _security(),
    }
    place = {"MASTER_ADDR": f"{job.name}-worker-0.{job.name}", "MASTER_PORT": str(_MASTER_PORT)}
    worker = {
        **_container("worker", job, ("sh", "-c", serve)),
        "env": [*_pod_address(), *_plain(place), *_env(job)],
        "resources": _resources(job, pods),
        # Only then is the launcher started; see launcherCreationPolicy.
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 2},
        # What sshd as root needs to become the session's user and to lock up its unprivileged half.
        "securityContext": _security("SETGID", "SETUID", "SYS_CHROOT", *_rdma(pods)),
        "volumeMounts": _volume_mounts(job),
    }
    replica = {"restartPolicy": "Never"}
    shared = {"terminationGracePeriodSeconds": job.grace, **_where(pods)}
    run_policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if job.timeout is not None:
        run_policy["activeDeadlineSeconds"] = max(1, round(job.timeout))
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": _metadata(job, pods),
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
                    "template": _template(job, {**shared, "containers": [launcher]}),
                },
                "Worker": {
                    "replicas": len(job.nodes),
                    **replica,
                    "template": _template(
                        job,
                        {
                            **shared,
                            "affinity": _one_per_node(job),
                            "containers": [worker],
                            "volumes": _volumes(job),
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
        "command": list(command),
        "env": [*_pod_address(), *_env(job)],
        "numNodes": len(job.nodes),
        "numProcPerNode": job.slots,
    }
    if resources := _resources(job, pods):
        trainer["resourcesPerNode"] = resources
    node: dict[str, Any] = {
        "name": "node",
        "securityContext": _security(*_rdma(pods)),
        "volumeMounts": _volume_mounts(job),
    }
    spec: dict[str, Any] = {"containers": [node], "volumes": _volumes(job)}
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
        "metadata": _metadata(job, pods),
        "spec": made,
    }


def _metadata(job: BatchJob, pods: Pods) -> dict[str, Any]:
    made: dict[str, Any] = {"name": job.name}
    if pods.namespace:
        made["namespace"] = pods.namespace
    if job.labels:
        made["labels"] = dict(job.labels)
    return made


def _template(job: BatchJob, spec: dict[str, Any]) -> dict[str, Any]:
    return {**({"metadata": {"labels": dict(job.labels)}} if job.labels else {}), "spec": spec}


def _container(name: str, job: BatchJob, command: tuple[str, ...]) -> dict[str, Any]:
    return {
        "name": name,
        "image": job.image,
        "imagePullPolicy": "Always" if job.pull == "always" else "IfNotPresent",
        "command": list(command),
        "workingDir": CODE,
    }


def _plain(env: dict[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in sorted(env.items())]


def _env(job: BatchJob) -> list[dict[str, Any]]:
    cpu = {} if job.gpus else {"ACCELERATE_USE_CPU": "true"}
    # Kubernetes reads $(NAME) in a value as another variable; $$ is a plain $.
    given = {name: value.replace("$(", "$$(") for name, value in job.env}
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret_name(job), "key": name}}}
        for name in job.passed
    ]
    return [*_plain({**cpu, "PYTHONUNBUFFERED": "1", **given}), *secrets]


def _pod_address() -> list[dict[str, Any]]:
    return [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]


def _resources(job: BatchJob, pods: Pods) -> dict[str, Any]:
    limits = {**({_GPU: job.gpus} if job.gpus else {}), **dict(pods.resources)}
    return {"limits": limits} if limits else {}


def _rdma(pods: Pods) -> tuple[str, ...]:
    # RDMA pins memory, and a pod has no limit of its own that could be raised.
    return (
        ("IPC_LOCK",)
        if any(name.startswith(("rdma/", "vpc.amazonaws.com/efa")) for name, _ in pods.resources)
        else ()
    )


def _security(*capabilities: str) -> dict[str, Any]:
    add = {"add": list(capabilities)} if capabilities else {}
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"], **add}}


def _where(pods: Pods) -> dict[str, Any]:
    made: dict[str, Any] = {"hostNetwork": True} if pods.host_network else {}
    if pods.node_selector:
        made["nodeSelector"] = dict(pods.node_selector)
    return made


def _one_per_node(job: BatchJob) -> dict[str, Any]:
    ours = {"training.kubeflow.org/job-name": job.name, "training.kubeflow.org/job-role": "worker"}
    term = {"labelSelector": {"matchLabels": ours}, "topologyKey": _HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _volumes(job: BatchJob) -> list[dict[str, Any]]:
    memory = {"medium": "Memory", "sizeLimit": str(job.shm_bytes)}
    hosts = [{"name": f"mount-{n}", "hostPath": {"path": m.source}} for n, m in enumerate(job.mounts)]
    return [{"name": "shm", "emptyDir": memory}, *hosts]


def _volume_mounts(job: BatchJob) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"name": "shm", "mountPath": "/dev/shm"}]
    for number, mount in enumerate(job.mounts):
        read_only = {"readOnly": True} if mount.read_only else {}
        made.append({"name": f"mount-{number}", "mountPath": mount.target, **read_only})
    return made
