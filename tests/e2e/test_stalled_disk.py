"""A host whose disk takes nothing for a while: who writes there waits, everything else goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.care import CARE
from tests.e2e.conftest import hosts_file
from tests.e2e.world import LAB, Toolkit, outer, sh

pytestmark = [pytest.mark.lab, pytest.mark.rare]

PLACE = "/srv/toolkit-stall"
HOSTS = ("box1", "box2")


class Disk:
    """A file system of a practice host that can be frozen, as one whose server or controller hangs."""

    def __init__(self, host: str, file: Path) -> None:
        self.host = host
        with file.open("wb") as made:
            made.truncate(200 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(file)], check=True)
        find = ["losetup", "-f", "--show", str(file)]
        self.device = subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()
        try:
            number = Path(self.device).stat().st_rdev
            sh(host, f"mkdir -p {PLACE}; mknod {self.device} b {os.major(number)} {os.minor(number)}")
            self._enter("mount", self.device, PLACE)
            sh(host, f"chmod 1777 {PLACE}")
        except BaseException:
            self.close()
            raise

    def _enter(self, *argv: str) -> None:
        """In the host's tree of files; its control group refuses it devices of its own."""
        inspect = ["docker", "inspect", "-f", "{{.State.Pid}}", outer(self.host)]
        pid = subprocess.run(inspect, check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(["nsenter", "-t", pid, "-m", *argv], check=True, capture_output=True)

    def freeze(self) -> None:
        self._enter("fsfreeze", "-f", PLACE)

    def thaw(self) -> None:
        self._enter("fsfreeze", "-u", PLACE)

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self.thaw()
        with suppress(subprocess.CalledProcessError):
            self._enter("umount", PLACE)
        sh(self.host, f"rm -f {self.device}; rm -rf {PLACE}")
        subprocess.run(["losetup", "-d", self.device], check=True)


@pytest.fixture(scope="module")
def disks(lab: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Disk]]:
    programs = all(map(shutil.which, ("mkfs.ext4", "losetup", "nsenter")))
    if not programs or os.getuid() or not Path("/dev/loop-control").exists():
        pytest.skip("needs root, loop devices, mkfs.ext4, losetup and nsenter")
    folder = tmp_path_factory.mktemp("disks")
    made: dict[str, Disk] = {}
    try:
        for host in HOSTS:
            made[host] = Disk(host, folder / host)
        with CARE.changed(LAB):
            yield made
    finally:
        for disk in made.values():
            disk.close()


@pytest.fixture(scope="module")
def up(lab: Path, folder: Path, disks: dict[str, Disk]) -> Iterator[Toolkit]:
    path = hosts_file(lab, folder, "stall", HOSTS)
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"state_dir": PLACE}))
    toolkit = Toolkit(path, folder)
    toolkit.run("up", check=True)
    yield toolkit
    toolkit.run("down", "--no-save", check=True)


@pytest.mark.parametrize("host", HOSTS)
def test_a_job_waits_for_a_disk(up: Toolkit, disks: dict[str, Disk], host: str) -> None:
    text = (
        "import os, time\n"
        "for step in range(9999):\n"
        "    print('rank', os.environ['RANK'], 'step', step, flush=True); time.sleep(0.5)\n"
    )
    words = ("run", "-d", "--json", "--workdir", "examples", "--launcher", "mpirun")
    job = up.run(*words, "--", "python", "-c", text, check=True).json["job"]

    def steps() -> list[int]:
        said = up.run("logs", "--no-fold", job, check=True).out
        return [len(re.findall(rf"rank {rank} step", said)) for rank in range(2)]

    waiting.until("both ranks make steps", steps, lambda made: min(made) > 2, 120)
    disks[host].freeze()
    try:
        time.sleep(12)  # longer than a host may be silent, and than it waits for main
    finally:
        disks[host].thaw()
    before = steps()
    waiting.until(
        "both ranks make steps again",
        steps,
        lambda made: all(now > then + 4 for now, then in zip(made, before, strict=True)),
        120,
    )
    assert json.loads(up.run("jobs", "--json", check=True).out)[-1]["state"] == "running"
    up.run("stop", job, check=True)
