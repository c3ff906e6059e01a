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
from tests.e2e.world import Toolkit, containers, on

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
_HOROVOD = (
    "import torch, horovod.torch as hvd; hvd.init(); "
    "print('sum', float(hvd.allreduce(torch.ones(1), op=hvd.Sum)), 'of', hvd.size(), flush=True)"
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


def cluster(lab: Path, folder: Path, image: str, **keys: object) -> Toolkit:
    """A cluster of this image, with further keys in its hosts file, and without the key transport."""
    path = hosts_file(lab, folder, "vendor", ("box1", "box2"), "auto")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"image": image} | keys))
    return Toolkit(path, folder)


def runs_jobs(vendor: Toolkit, transport: str) -> None:
    """Assert that `up` selects the transport, and that jobs and the smoke test succeed; then `down`."""
    up = vendor.run("up", check=True)
    try:
        assert ("transport: exec (the image has no ssh or no /usr/sbin/sshd)" in up.err) == (
            transport == "exec"
        )
        assert vendor.run("status", "--json", check=True).json["transport"] == transport
        assert vendor.run("up", "--json", check=True).json["changes"] == 0
        for launcher in ("mpirun", "torchrun"):
            done = vendor.run("run", "--launcher", launcher, "--", "python", "-c", _WORLD)
            ranks = sorted(line.partition("I am ")[2] for line in done.out.splitlines() if "I am" in line)
            assert (done.status, ranks) == (0, ["0 of 2 on box1", "1 of 2 on box2"]), done.out + done.err
        # Every host reports its jobs with exec, which a command learns from the host that it asks first.
        assert len(vendor.run("jobs", "--json", check=True).json) == 2
        done = vendor.run("run", "--launcher", "horovodrun", "--dry-run", "--", "true")
        refused = "horovodrun requires SSH, but transport is exec (the image" in done.err
        assert (done.status == 2 and refused) == (transport == "exec"), done.err
        done = vendor.run("smoke", check=True)
        assert "all-reduce over 2 ranks" in done.out
        assert "Framework, release" not in done.out + done.err
    finally:
        vendor.run("down", "--no-save", check=True)
    names = on("box1", "docker", "ps", "--all", "--format", "{{.Names}}").split()
    assert not [name for name in names if name.startswith("toolkit-vendor-")]


@pytest.mark.parametrize("transport", ["exec", pytest.param("ssh", marks=pytest.mark.rare)])
def test_a_vendor_image_runs_jobs(lab: Path, folder: Path, images: dict[str, str], transport: str) -> None:
    runs_jobs(cluster(lab, folder, images[transport]), transport)


def test_keys_that_need_ssh_are_refused_before_any_change(
    lab: Path, folder: Path, images: dict[str, str]
) -> None:
    done = cluster(lab, folder, images["exec"], launcher="horovodrun", spares=["box2"]).run("up")
    assert done.status == 2
    assert "horovodrun requires SSH, but transport is exec; write mpirun" in done.err
    assert "restarts on spare hosts require SSH" in done.err
    assert f"toolkit image build --onto {images['exec']}" in done.err
    assert not containers("box1", "vendor")


@pytest.mark.rare
def test_sshd_and_horovod_added_to_the_image(lab: Path, folder: Path, images: dict[str, str]) -> None:
    """It installs packages, so it needs the network."""
    without, tag = "toolkit-images:vendor-purged", "toolkit-images:vendor-with-horovod"
    purge = (
        f"FROM {images['ssh']}\nUSER 0\n"
        "RUN dpkg --purge openssh-server openssh-sftp-server && pip uninstall -y horovod cloudpickle\n"
        "USER 1234\n"
    )
    subprocess.run(
        ["docker", "build", "-q", "--network", "none", "-t", without, "-"],
        input=purge.encode(),
        check=True,
        capture_output=True,
    )
    tool = cluster(lab, folder, tag)
    try:
        seen = tool.run("image", "inspect", without, "--json", check=True).json
        assert (seen["transport"], seen["launchers"]["horovodrun"]) == ("exec", False)
        build = ("image", "build", "--onto", without, "--with", "horovod", "--tag", tag)
        tool.run(*build, check=True, timeout=1200)
        seen = tool.run("image", "inspect", "--json", check=True).json
        assert (seen["transport"], seen["user"]) == ("ssh", "1234")
        assert seen["executable"] == "/opt/venv/bin/python3"
        runs_jobs(tool, "ssh")
        tool.run("up", check=True)
        for launcher in ("horovodrun", "horovodrun-gloo"):
            done = tool.run("run", "--launcher", launcher, "--", "python", "-c", _HOROVOD, check=True)
            assert done.out.count("sum 2.0 of 2") == 2
    finally:
        tool.run("down", "--no-save", check=True)
        subprocess.run(["docker", "rmi", "-f", tag, without], check=False, capture_output=True)
