"""The parts of container_probe.py that need no other host and no network."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.unit.container_world import unkillable_smi, wait_for
from toolkit.container.check import container_probe
from toolkit.container.check import container_probe as look

TOKEN = "ab" * 16


def test_hosts_that_share_a_folder_see_each_others_files_and_nothing_stays(tmp_path: Path) -> None:
    one, two = (look.Mounts([str(tmp_path)], host, TOKEN) for host in ("gpu1", "gpu2"))
    for mounts in (one, two):
        mounts.write()
        assert mounts.faults == {}
    assert one.seen() == two.seen() == {str(tmp_path): ["gpu1", "gpu2"]}
    assert TOKEN not in "".join(path.name for path in tmp_path.iterdir())
    # Another look at the same time has other names.
    assert look.Mounts([str(tmp_path)], "gpu3", "cd" * 16).seen() == {str(tmp_path): []}
    one.remove()
    two.remove()
    two.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_done_on_a_mount_is_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    mounts = look.Mounts([str(absent)], "gpu1", TOKEN)
    mounts.write()
    assert mounts.faults == {str(absent): "write: No such file or directory"}
    taken = look.Mounts([str(tmp_path)], "gpu1", TOKEN)
    (tmp_path / f"{taken.stem}gpu1").mkdir()
    taken.write()
    assert taken.faults[str(tmp_path)].startswith("rename: ")
    taken.remove()
    assert not list(tmp_path.glob("*.new"))


def test_a_mounted_file_is_not_tried(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    file.write_text("{}")
    mounts = look.Mounts([str(file)], "gpu1", TOKEN)
    mounts.write()
    assert mounts.faults == {} and mounts.seen() == {}
    mounts.remove()


def test_what_an_image_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mpirun"
    program.write_text("#!/bin/sh\n")
    (tmp_path / "ssh").write_text("not executable")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    names = ["mpirun", "ssh", "torchrun", str(program), f"{tmp_path}/sshd", "python:json", "python:no_such"]
    assert look.lacking(names) == ["ssh", "torchrun", f"{tmp_path}/sshd", "python:no_such"]


def test_limits_versions_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(look.limits()) == {"memlock", "nofile"}
    assert look.versions()["python"] == sys.version.split()[0]
    found = [(2, 1, 6, "", ("10.0.0.2", 0)), (2, 2, 17, "", ("10.0.0.2", 0))]
    monkeypatch.setattr(look.socket, "getaddrinfo", lambda *_: found)
    assert look.addresses("gpu2") == ["10.0.0.2"]

    def nowhere(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(look.socket, "getaddrinfo", nowhere)
    assert look.addresses("gpu2") == []
    monkeypatch.setattr(look.shutil, "which", lambda _: None)
    assert look.GpuList().report() == {"gpus": None, "gpu_error": ""}


def test_an_unkillable_nvidia_smi_does_not_hold_up_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = unkillable_smi(tmp_path, monkeypatch)
    monkeypatch.setattr(look, "SMI_S", 0.2)
    start = time.monotonic()
    listed = look.GpuList()
    assert listed.report() == {"gpus": None, "gpu_error": "no answer within 0 s"}
    assert time.monotonic() - start < 20
    wait_for(lambda: bool(killed))
    killed[0].terminate()
    listed.join()
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)'\n")
    monkeypatch.setattr(look, "SMI_S", 8.0)
    assert look.GpuList().report() == {
        "gpus": ["GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1a)"],
        "gpu_error": "",
    }


def test_the_list_of_gpus_has_mig_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    lines = (
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-d94e5efa-f89f-c43c-5fa5-2f8b2b19b8f8)",
        "  MIG 1g.5gb      Device  0: (UUID: MIG-9a50f8a8-e9bb-8bdb-5eba-456bf92d5d98)",
    )
    smi.write_text(f"#!/bin/sh\ncat <<'END'\n{lines[0]}\n{lines[1]}\nEND\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert look.GpuList().report() == {"gpus": [lines[0], lines[1].strip()], "gpu_error": ""}


@pytest.mark.parametrize(
    ("out", "err", "status", "result"),
    [
        ("64\n1024\n", "", 0, {"memlock": 65536, "nofile": 1024}),
        ("unlimited\n1048576\n", "", 0, {"memlock": -1, "nofile": 1048576}),
        ("", "banner\nssh: connect to host: Connection refused\n", 255,
         {"error": "ssh: connect to host: Connection refused"}),
        ("hello\n", "", 0, {"error": "ssh exited with status 0"}),
    ],
)  # fmt: skip
def test_limits_by_the_way_that_ranks_come(
    monkeypatch: pytest.MonkeyPatch, out: str, err: str, status: int, result: dict[str, Any]
) -> None:
    def run(argv: list[str], **_: object) -> Any:
        assert argv[:3] == ["ssh", "-F", look.SSH_CONFIG] and argv[-2] == "gpu2"
        return look.subprocess.CompletedProcess(argv, status, out, err)

    monkeypatch.setattr(look.subprocess, "run", run)
    assert look.login("gpu2") == result


def test_everything_that_is_done_at_once_ends_with_every_result() -> None:
    assert container_probe.all_at_once({n: (lambda n=n: n * n) for n in range(20)}) == {
        n: n * n for n in range(20)
    }
    assert container_probe.all_at_once({}) == {}
