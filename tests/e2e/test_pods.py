"""The pods of rendered manifests as containers of this machine's engine, with what an operator gives them.

A cluster is not to be had here. What an operator adds to a pod is taken from its source: the ssh key as a
folder, the list of hosts, variables (newSSHAuthSecret, newConfigMap, ompiEnvVars of mpi-operator; PET_* of
Trainer).
"""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.world import PROGRAM
from tests.kubelet import expanded
from toolkit.core.host_programs import packed

pytestmark = pytest.mark.lab

IMAGE = "toolkit:cpu"
HOSTS = "cluster: demo\nimage: toolkit:cpu\nhosts: {gpu1: {slots: 2}, gpu2: {slots: 2}}\nshm_size: 256m\n"
# As one write: ranks share a pipe, and the image's Python writes each word separately.
TELLS = (
    "import os; names = 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NOTE'.split(); "
    "words = ['told', *(os.environ[n] for n in names), os.uname().nodename]; "
    "os.write(1, (' '.join(words) + '\\n').encode())"
)
ALLREDUCE = packed("bench.allreduce")


class Pods:
    """Containers on a network of their own; all go with `close`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.network = f"toolkit-pods-{uuid.uuid4().hex[:8]}"
        self.names: list[str] = []
        docker("network", "create", "--label", "toolkit.test=pods", self.network)

    def run(
        self, name: str, container: dict[str, Any], *options: str, subdomain: str, wait: bool = False
    ) -> str:
        """Start a pod's container with what its spec says and these options of docker; return its output."""
        security = container["securityContext"]
        words = ["--name", f"{self.network}-{name}", "--hostname", name, "--network", self.network]
        for alias in (name, f"{name}.{subdomain}", f"{name}.{subdomain}.default.svc"):
            words += ["--network-alias", alias]
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        if "workingDir" in container:
            words += ["--workdir", container["workingDir"]]
        assert security["allowPrivilegeEscalation"] is False
        for capability in security["capabilities"].get("add", ()):
            words += ["--cap-add", capability]
        for each in container["env"]:
            if each["name"] != "POD_IP":
                words += ["--env", f"{each['name']}={expanded(each['value'])}"]
        self.names.append(f"{self.network}-{name}")
        # The pod's address, which the cluster gives to a pod.
        argv = [
            "sh",
            "-c",
            'POD_IP=$(hostname -i); export POD_IP; exec "$@"',
            "pod",
            *map(expanded, container["command"]),
        ]
        how = [] if wait else ["--detach"]
        return docker("run", *how, *words, *options, container["image"], *argv)

    def logs(self, name: str) -> str:
        done = subprocess.run(
            ["docker", "logs", f"{self.network}-{name}"], capture_output=True, text=True, check=True
        )
        return done.stdout + done.stderr

    def close(self) -> None:
        for name in self.names:
            docker("rm", "--force", "--volumes", name)
        docker("network", "rm", self.network)


def docker(*words: str) -> str:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[Pods]:
    made = Pods(tmp_path)
    try:
        yield made
    finally:
        made.close()


def rendered(folder: Path, *words: str) -> dict[str, Any]:
    (folder / "hosts.yaml").write_text(HOSTS)
    done = subprocess.run(
        [PROGRAM, "render", "kubernetes", "--gpus", "0", *words], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    made: dict[str, Any] = yaml.safe_load(done.stdout)
    return made


def secret(folder: Path) -> Path:
    """The folder that the MPI operator mounts: one key pair, and its public half as the one let in."""
    key = ec.generate_private_key(ec.SECP521R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    made = folder / "secret"
    made.mkdir()
    for name, data in (("id_rsa", private), ("id_rsa.pub", public), ("authorized_keys", public)):
        (made / name).write_bytes(data + (b"" if data.endswith(b"\n") else b"\n"))
        (made / name).chmod(0o644)  # as a volume of a secret is without a mode of its own
    made.chmod(0o777)
    return made


def mpijob(pods: Pods, made: dict[str, Any], *, key: Path | None = None) -> str:
    """Run the pods of an MPIJob as its operator does; return what the launcher says."""
    name, spec = made["metadata"]["name"], made["spec"]
    ssh = secret(pods.folder)
    volume = ["--volume", f"{ssh}:{spec['sshAuthMountPath']}:ro"]
    replicas = spec["mpiReplicaSpecs"]
    worker = replicas["Worker"]["template"]["spec"]["containers"][0]
    lines = []
    for number in range(replicas["Worker"]["replicas"]):
        pods.run(f"{name}-worker-{number}", worker, *volume, subdomain=name)
        lines.append(f"{name}-worker-{number}.{name}.default.svc slots={spec['slotsPerWorker']}")
    config = pods.folder / "config"
    config.mkdir()
    (config / "hostfile").write_text("\n".join(lines) + "\n")
    operator = {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(spec["slotsPerWorker"]),
    }
    more = [word for pair in operator.items() for word in ("--env", "=".join(pair))]
    launcher = replicas["Launcher"]["template"]["spec"]["containers"][0]
    if key is not None:
        volume = ["--volume", f"{key}:{spec['sshAuthMountPath']}:ro"]
    where = f"{name}-launcher"
    try:
        pods.run(
            where, launcher, *volume, *more, "--volume", f"{config}:/etc/mpi:ro", subdomain=name, wait=True
        )
    except AssertionError as error:
        return str(error)
    return pods.logs(where)


def test_an_mpijob_s_pods_make_one_world(pods: Pods) -> None:
    words = ("--env", "NOTE=it's $5", "--launcher", "horovodrun", "--", "python", "-c", TELLS)
    said = mpijob(pods, rendered(pods.folder, *words))
    told = sorted(re.findall(r"told (\d) (\d) (\d) (\d) it's \$5 (\S+)", said))
    where = [f"demo-python-worker-{n}" for n in (0, 0, 1, 1)]
    assert told == [(str(n), "4", str(n % 2), "2", where[n]) for n in range(4)], said


@pytest.mark.rare
def test_an_mpijob_s_ranks_reach_each_other(pods: Pods) -> None:
    words = ("--launcher", "mpirun", "--", "python", "-c", ALLREDUCE)
    said = mpijob(pods, rendered(pods.folder, *words))
    assert "all-reduce over 4 ranks: sum 10 correct on all ranks" in said, said


def test_an_mpijob_s_launcher_takes_no_other_worker(pods: Pods, tmp_path: Path) -> None:
    """A worker that has another key than the job's is not talked to."""
    other = tmp_path / "other"
    other.mkdir()
    said = mpijob(pods, rendered(pods.folder, "--launcher", "mpirun", "--", "true"), key=secret(other))
    assert "Host key verification failed" in said, said


@pytest.mark.rare
def test_a_trainjob_s_pods_make_one_world(pods: Pods) -> None:
    words = ("--env", "NOTE=x", "--launcher", "torchrun", "--", "python", "-c", ALLREDUCE)
    made = rendered(pods.folder, *words)
    name, trainer = made["metadata"]["name"], made["spec"]["trainer"]
    patch = made["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    node = patch["template"]["spec"]["template"]["spec"]["containers"][0]
    container = {**node, "image": trainer["image"], "command": trainer["command"], "env": trainer["env"]}
    for number in reversed(range(trainer["numNodes"])):
        pet = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(number),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29400",
        }
        more = [word for pair in pet.items() for word in ("--env", "=".join(pair))]
        pods.run(f"{name}-node-0-{number}", container, *more, subdomain=name, wait=number == 0)
    said = pods.logs(f"{name}-node-0-0")
    assert "all-reduce over 4 ranks: sum 10 correct on all ranks" in said, said
