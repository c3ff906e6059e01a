"""Images in the layout of a vendor, which toolkit did not build: no sshd, ENTRYPOINT, USER, another MPI."""

from __future__ import annotations

import io
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import hosts_file
from tests.e2e.images import base_parts, make
from tests.e2e.world import Toolkit, on

pytestmark = pytest.mark.lab

# It prints what looks like an answer of toolkit's programs, and does not execute its arguments.
_ENTRYPOINT = """#!/bin/sh
echo
echo "== Framework, release 26.10 =="
echo '{"started": "x", "host": "box9"}'
exit 3
"""
_WORLD = (
    "import os; e = os.environ; "
    "print('I am', e['RANK'], 'of', e['WORLD_SIZE'], 'on', e['TOOLKIT_HOST'], flush=True)"
)
_PATH = "/usr/local/mpi/bin:/opt/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def _vendor_layer(removed: tuple[str, ...]) -> bytes:
    """Return a layer that adds the ENTRYPOINT and moves mpirun below /usr/local, without some files."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, text, mode in (
            ("opt/vendor/entrypoint.sh", _ENTRYPOINT, 0o755),
            ("etc/pip-constraint.txt", "numpy==1.26.4\n", 0o644),
            # A layer removes a file of a lower one by an empty file of this name.
            *((str(Path(path).with_name(f".wh.{Path(path).name}")), "", 0o644) for path in removed),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text), mode
            tar.addfile(info, io.BytesIO(text.encode()))
        link = tarfile.TarInfo("usr/local/mpi/bin/mpirun")
        link.type, link.linkname = tarfile.SYMTYPE, "/usr/bin/orterun"
        tar.addfile(link)
    return out.getvalue()


@pytest.fixture(scope="module")
def images() -> Iterator[dict[str, str]]:
    """Two images: one without sshd, one with it."""
    base = base_parts()
    config = {
        "Env": [f"PATH={_PATH}", "PIP_CONSTRAINT=/etc/pip-constraint.txt"],
        "User": "1234",
        "Entrypoint": ["/opt/vendor/entrypoint.sh"],
        "Cmd": ["/bin/bash"],
    }
    made = {}
    for transport, removed in (("exec", ("usr/sbin/sshd",)), ("ssh", ())):
        layer = _vendor_layer(("usr/bin/mpirun", *removed))
        made[transport] = make(base, f"vendor-{transport}", [layer], len(base.layers), config).tag
    yield made
    subprocess.run(["docker", "rmi", "-f", *made.values()], check=True, capture_output=True)


@pytest.mark.parametrize("transport", ["exec", "ssh"])
def test_a_vendor_image_runs_jobs(lab: Path, folder: Path, images: dict[str, str], transport: str) -> None:
    path = hosts_file(lab, folder, "vendor", ("box1", "box2"), "auto")
    data = yaml.safe_load(path.read_text()) | {"image": images[transport], "transport": transport}
    path.write_text(yaml.safe_dump(data))
    vendor = Toolkit(path, folder)
    vendor.run("up", check=True)
    try:
        assert vendor.run("up", "--json", check=True).json["changes"] == 0
        for launcher in ("mpirun", "torchrun"):
            done = vendor.run("run", "--launcher", launcher, "--", "python", "-c", _WORLD)
            ranks = sorted(line.partition("I am ")[2] for line in done.out.splitlines() if "I am" in line)
            assert (done.status, ranks) == (0, ["0 of 2 on box1", "1 of 2 on box2"]), done.out + done.err
        done = vendor.run("smoke", check=True)
        assert "all-reduce over 2 ranks" in done.out
        assert "Framework, release" not in done.out + done.err
    finally:
        vendor.run("down", "--no-save", check=True)
    names = on("box1", "docker", "ps", "--all", "--format", "{{.Names}}").split()
    assert not [name for name in names if name.startswith("toolkit-vendor-")]
