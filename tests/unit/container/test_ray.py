"""The nodes of Ray that a job has: their command, their environment, the token."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import host_entry, memory_file
from toolkit.container.job import ray

HOSTS = [
    host_entry(slots=2, taken=[0, 1]),
    host_entry(name="gpu2", address="10.77.0.3", slots=3, taken=[0, 1, 2]),
]
JOB: dict[str, Any] = {
    "id": "20261122-000000-a-rather-long-name-here-abcd",
    "launcher": "ray",
    "hosts": HOSTS,
    "master_address": "10.77.0.2",
    "master_port": 29500,
    "world_size": 5,
    "variables": True,
    "tuned": {},
    "rules": "",
    "spares": [],
    "elastic": False,
    "launches": [],
    "attempt": 0,
}
VARIABLES = {"env": {"EPOCHS": "3"}, "override": {}, "token": "t0ken"}


@pytest.fixture
def rayed(root: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ray, "free_port", lambda: 41000)
    return ray


def host(name: str) -> dict[str, Any]:
    return {"cluster": "t", "host": name, "address": "", "interface": "eth0", "network": {}}


def test_the_first_host_is_the_head_and_a_slot_is_a_cpu(rayed: Any) -> None:
    head, other = rayed.node_argv(JOB, host("gpu1")), rayed.node_argv(JOB, host("gpu2"))
    assert {"--head", "--port=29500", "--num-cpus=2", "--num-gpus=0", "--node-ip-address=10.77.0.2"} <= {
        *head
    }
    assert {"--address=10.77.0.2:29500", "--num-cpus=3", "--node-ip-address=10.77.0.3"} <= {*other}
    assert "--head" not in other and not any(word.startswith("--temp-dir") for word in other)
    assert "t0ken" not in [*head, *other]


def test_with_gpus_ray_counts_those_and_the_hosts_own_cpus(rayed: Any) -> None:
    job = {**JOB, "hosts": [host_entry(slots=2, gpus=["GPU-a", "GPU-b"])]}
    argv = rayed.node_argv(job, host("gpu1"))
    assert "--num-gpus=2" in argv and not any(word.startswith("--num-cpus") for word in argv)


def test_ray_gets_one_mig_device_for_each_slot_and_divides_them(rayed: Any) -> None:
    own = host_entry(slots=2, gpus=["MIG-a", "MIG-b", "MIG-c"], visible="MIG-a,MIG-c")
    job = {**JOB, "hosts": [own], "world_size": 2}
    assert "--num-gpus=2" in rayed.node_argv(job, host("gpu1"))
    assert rayed.node_env(job, host("gpu1"), VARIABLES)["CUDA_VISIBLE_DEVICES"] == "MIG-a,MIG-c"


def test_sockets_have_room_below_the_temporary_folder(rayed: Any) -> None:
    (folder,) = [
        w.partition("=")[2] for w in rayed.node_argv(JOB, host("gpu1")) if w.startswith("--temp-dir")
    ]
    assert len(f"{folder}/session_2026-11-22_05-33-16_921004_1234567/sockets/plasma_store") < 107


def test_rays_workers_have_no_place_of_ours_but_all_else(rayed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    env = rayed.node_env(JOB, host("gpu2"), VARIABLES)
    assert env["EPOCHS"] == "3" and env["TOOLKIT_JOB"] == JOB["id"] and env["SPT_NOENV"] == "1"
    assert env["TMPDIR"] == str(rayed.temporary_folder(JOB["id"]))
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "TOOLKIT_RANK"} & {*env}


def test_ray_reads_its_token_in_memory(rayed: Any, tmp_path: Path) -> None:
    env = rayed.token_env(JOB)
    assert env["RAY_AUTH_MODE"] == "token" and "t0ken" not in env.values()
    # The lease makes it, see test_the_token_of_a_launcher_is_in_memory_alone.
    path = Path(env["RAY_AUTH_TOKEN_PATH"])
    assert path == memory_file(tmp_path / "jobs" / JOB["id"], "token") and not path.exists()


class Ray:
    """The part of Ray that is asked for its nodes; each look finds one node more."""

    def __init__(self, **cpus: float) -> None:
        self.cpus, self.looks = cpus, 0

    def init(self, **settings: object) -> None:
        self.address = settings["address"]

    def shutdown(self) -> None:
        self.left = True

    def nodes(self) -> list[dict[str, Any]]:
        self.looks += 1
        rows = list(self.cpus.items())[: self.looks]
        gone = {"NodeManagerAddress": "10.77.0.3", "Resources": {}, "Alive": False}
        addresses = {host["name"]: host["address"] for host in HOSTS}
        nodes = [{"NodeManagerAddress": addresses[name], "Resources": {"CPU": cpus}} for name, cpus in rows]
        return [gone, *({**node, "Alive": True} for node in nodes)]


@pytest.mark.parametrize(
    ("cpus", "status", "message"),
    [
        ({"gpu1": 2.0, "gpu2": 3.0}, 0, ""),
        ({"gpu1": 2.0}, 69, "Ray on gpu2 did not join the Ray head at 10.77.0.2:29500 within 1 s"),
        ({"gpu1": 2.0, "gpu2": 1.0}, 64, "gpu2: the number of CPUs in Ray is 1, but the job requires 3"),
    ],
)
def test_the_driver_waits_for_the_nodes_of_all_hosts(
    rayed: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cpus: dict[str, float],
    status: int,
    message: str,
) -> None:
    ray = Ray(**cpus)
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setattr(rayed, "READY_S", 1.0)
    monkeypatch.setattr(rayed, "LOOK_S", 0.0)
    now = count()
    monkeypatch.setattr(rayed.time, "monotonic", lambda: next(now) / 4)
    with pytest.raises(SystemExit) if status else nullcontext() as ended:
        rayed.wait_for_nodes(JOB)
    assert ray.address == "10.77.0.2:29500" and ray.left
    assert (ended.value.code if ended else 0) == status and message in capsys.readouterr().err


def test_the_node_and_the_driver_have_no_capabilities(rayed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the SSH user is root, sshd of a worker container has capabilities, and Ray runs user code."""
    calls: list[str] = []
    monkeypatch.setattr(sys, "argv", ["job.ray", JOB["id"], "node"])
    monkeypatch.setattr(rayed, "load_job", lambda job_id: JOB)
    monkeypatch.setattr(rayed, "load_host", lambda: host("gpu1"))
    monkeypatch.setattr(rayed, "require", lambda job, name: VARIABLES)
    monkeypatch.setattr(rayed, "token_env", lambda job: {})
    monkeypatch.setattr(rayed, "capability_dropper", lambda: lambda: calls.append("dropped"))
    monkeypatch.setattr(rayed, "serve", lambda *given: calls.append("served") or 0)
    assert rayed.main() == 0 and calls == ["dropped", "served"]
