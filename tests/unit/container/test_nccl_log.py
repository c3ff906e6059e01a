"""nccl_log.py: which network NCCL uses, from its own log, and the line of a rank about it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.container_world import JOB, World, host_entry, python, rank_env
from toolkit.container.job.nccl_log import NcclLog, log_settings, network_text

COMPLETE = (
    "comm 0x55f90cbfd740 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 30 commId 0x795b968d - Init COMPLETE"
)


def log(*lines: str) -> str:
    """Lines as NCCL prints them: host, process, thread, GPU."""
    return "".join(f"gpu1:924:1152 [0] NCCL INFO {line}\n" for line in (*lines, COMPLETE))


# Lines of NCCL 2.19 to 2.30 as published in reports about these versions.
CASES = {
    "no device": (
        ("NET/IB : No device found.", "NET/Socket : Using [0]ens7:10.128.0.31<0>", "Using network Socket"),
        "NCCL uses TCP on ens7, because NCCL found no usable RDMA device",
    ),
    # Recorded on an H200 with NCCL 2.28.9; the other cases are published lines.
    "recorded": (
        (
            "ENV/Plugin: Could not find: libnccl-env.so",
            "NCCL_SOCKET_IFNAME set by environment to =eth0",
            "Bootstrap: Using eth0:10.90.0.11<0>",
            "NCCL version 2.28.9+cuda13.0",
            "NET/Plugin: Could not find: libnccl-net.so",
            "NET/IB : No device found.",
            "NET/IB : Using [RO]; OOB eth0:10.90.0.11<0>",
            "Failed to initialize NET plugin IB",
            "NET/Socket : Using [0]eth0:10.90.0.11<0>",
            "Initialized NET plugin Socket",
            "Assigned NET plugin Socket to comm",
            "Using network Socket",
        ),
        "NCCL uses TCP on eth0, because NCCL found no usable RDMA device",
    ),
    "two interfaces": (
        ("NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1.5:fe80::1%eth1<0>", "Using network Socket"),
        "NCCL uses TCP on eth0, eth1.5",
    ),
    "disabled": (
        (
            "NCCL_IB_DISABLE set by environment to 1.",
            "NET/Socket : Using [0]eth0:10.0.0.1<0>",
            "Using network Socket",
        ),
        "NCCL uses TCP on eth0, because NCCL_IB_DISABLE=1 is set",
    ),
    "no libibverbs": (
        (
            "Failed to open libibverbs.so[.1]",
            "NET/Socket : Using [0]eth0:10.0.0.1<0>",
            "Using network Socket",
        ),
        "NCCL uses TCP on eth0, because the image has no libibverbs.so.1",
    ),
    "InfiniBand": (
        (
            "NET/IB : Using [0]mlx5_0:1/IB/SHARP [1]mlx5_1:1/IB/SHARP [RO]; OOB ib0.0065:10.1.32.3<0>",
            "Using network IBext_v8",
            "NET/IBext_v8 : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
            "NET/IBext_v8 : GPU Direct RDMA Enabled for HCA 1 'mlx5_1'",
        ),
        "NCCL uses InfiniBand on mlx5_0, mlx5_1, with support for GPUDirect RDMA",
    ),
    "RoCE": (
        (
            "NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.10.10.10<0>",
            "Using network IB",
            "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'",
            "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'",
        ),
        "NCCL uses RoCE on mlx5_0, mlx5_1, without GPUDirect RDMA",
    ),
    "one of two": (
        (
            "NET/IB : Using [0]mlx5_0:1:0/IB [1]mlx5_1:1:1/IB ; OOB eth0:10.10.10.10<0>",
            "Using network IB",
            "NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'",
            "NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_1'",
        ),
        "NCCL uses InfiniBand on mlx5_0, mlx5_1, with support for GPUDirect RDMA only on mlx5_0",
    ),
    "EFA": (("Using network AWS Libfabric",), "NCCL uses the network plugin AWS Libfabric"),
    "none": (("cudaDriverVersion 12080",), ""),
}


@pytest.mark.parametrize(("lines", "text"), CASES.values(), ids=CASES)
def test_the_network_is_named_with_its_reason(lines: tuple[str, ...], text: str) -> None:
    assert network_text(log(*lines)) == text


def test_the_log_is_read_until_the_start_is_complete_and_then_removed(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "nccl.log"
    found = NcclLog(path, lambda: now[0])
    lines = log("NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket")
    assert found.poll() == ""
    for number, text in enumerate((lines[: -len(COMPLETE)], lines), 1):
        path.write_text(text)
        now[0] = float(number)
        assert found.poll() == ("NCCL uses TCP on eth0" if text == lines else "")
    assert not path.exists()
    path.write_text(lines)
    now[0] = 9.0
    assert found.poll() == "", "it is reported once"


def test_a_start_that_never_completes_is_reported_as_far_as_it_is_known(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "nccl.log"
    found = NcclLog(path, lambda: now[0])
    path.write_text("gpu1:1:2 [0] NCCL INFO Using network IB\n")
    assert found.poll() == ""
    now[0] = 901.0
    assert found.poll() == "NCCL uses InfiniBand"


def test_a_pipe_in_place_of_the_log_does_not_block(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    os.mkfifo(path)
    assert NcclLog(path).poll() == ""


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_FILE"])
def test_a_log_that_the_user_configures_is_left_alone(tmp_path: Path, name: str) -> None:
    assert log_settings({name: "x"}, tmp_path) == {}


# In place of NCCL: writes the log to NCCL_DEBUG_FILE, and waits until toolkit has removed the file.
WRITES = """
import os, time
path = os.environ.get("NCCL_DEBUG_FILE")
if path:
    assert os.environ["NCCL_DEBUG"] == "INFO"
    open(path, "w").write({log!r})
    for _ in range(600):
        if not os.path.exists(path):
            break
        time.sleep(0.05)
print("trained")
"""


def test_the_first_rank_of_a_host_with_gpus_prints_one_line(world: World) -> None:
    text = log("NET/IB : No device found.", "NET/Socket : Using [0]eth0:10.0.0.1<0>", "Using network Socket")
    host = host_entry(gpus=["GPU-1", "GPU-2"])
    folder = world.job(command=python(WRITES.format(log=text)), hosts=[host], world_size=4)
    outputs = []
    for rank in (0, 1):
        place = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        code, out, err = world.call("job.rank", JOB, **{**rank_env(rank, 4), **place})
        assert code == 0, err
        outputs.append((out + err).decode())
    line = "[gpu1 0] [toolkit] NCCL uses TCP on eth0, because NCCL found no usable RDMA device"
    assert outputs[0].splitlines() == ["[gpu1 0] trained", line]
    assert outputs[1].splitlines() == ["[gpu1 1] trained"]
    assert "[toolkit] NCCL uses TCP" in (folder / "logs" / "rank-0.log").read_text()
    assert not list(folder.glob("nccl*"))


def test_the_log_that_a_killed_rank_has_left_is_not_reported(world: World) -> None:
    """After a restart, which can use another network."""
    looks = "import os; print('left' if os.path.exists(os.environ['NCCL_DEBUG_FILE']) else 'trained')"
    folder = world.job(command=python(looks), hosts=[host_entry(gpus=["GPU-1"])], world_size=2)
    old = folder / "nccl-0.log"
    old.write_text(log("Using network IB"))
    code, out, err = world.call("job.rank", JOB, **rank_env(0, 2))
    assert (code, out, err) == (0, b"[gpu1 0] trained\n", b"") and not old.exists()


@pytest.mark.parametrize(
    ("gpus", "size", "env"),
    [([], 2, {}), (["GPU-1"], 1, {}), (["GPU-1"], 2, {"NCCL_DEBUG": "WARN"})],
    ids=["no GPU", "one host", "own setting"],
)
def test_other_ranks_keep_the_log_settings_of_nccl(
    world: World, gpus: list[str], size: int, env: dict[str, str]
) -> None:
    shows = "import os; print(os.environ.get('NCCL_DEBUG'), os.environ.get('NCCL_DEBUG_FILE'))"
    world.job(command=python(shows), hosts=[host_entry(gpus=gpus)], world_size=size, env=env)
    code, out, err = world.call("job.rank", JOB, **rank_env(0, size))
    assert (code, err) == (0, b"")
    assert out.decode().split()[2:] == [env.get("NCCL_DEBUG", "None"), "None"]
