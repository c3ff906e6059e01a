"""What the pods of a job are made of, whichever operator starts them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from toolkit.export.job import CODE, BatchJob

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
