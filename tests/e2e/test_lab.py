"""The practice cluster itself, on a real engine; labs of its own, of one host where one is enough."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.care import practice_cluster
from toolkit.errors import LabError, MissingTool
from toolkit.lab import build
from toolkit.lab.engine import LabEngine
from toolkit.lab.lifecycle import lab_down, lab_status, lab_up
from toolkit.lab.spec import LabSpec

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def engine() -> LabEngine:
    try:
        return LabEngine()
    except MissingTool as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def name(engine: LabEngine) -> Iterator[str]:
    # One per test process, so that two checkouts can test at the same time.
    name = f"t{os.getpid()}"
    yield name
    lab_down(name)


def docker(*argv: str) -> str:
    return subprocess.run(["docker", *argv], check=True, capture_output=True, text=True).stdout.strip()


def traces(name: str) -> list[str]:
    """Whatever of a lab is on this machine, looked for without the toolkit."""
    label = f"label=toolkit.lab={name}"
    found = docker("ps", "-aq", "--filter", label).split()
    found += docker("network", "ls", "-q", "--filter", label).split()
    found += docker("volume", "ls", "-q", "--filter", label).split()
    found += [n for n in docker("ps", "-a", "--format", "{{.Names}}").split() if f"-{name}-" in n]
    return found + [
        str(p) for top in ("*/", "") for p in Path("/sys/fs/cgroup").glob(f"{top}toolkit-lab/{name}")
    ]


def test_a_labs_life(name: str, tmp_path: Path) -> None:
    spec = LabSpec(name, str(tmp_path / "lab"), hosts=2)
    lines: list[str] = []
    first = lab_up(spec, lines.append)
    assert first.changes > 0 and any("box2: sshd and engine" in line for line in lines)

    status = lab_status(name)
    assert status.ok and [h.name for h in status.hosts] == ["box1", "box2"]
    assert [h.interface for h in status.hosts] == ["eth0", "enp3s0"]
    assert {(h.user, h.store) for h in status.hosts} == {("trainer", "overlay2")}
    for host in status.hosts:
        inside = docker("exec", f"toolkit-lab-{name}-{host.name}", "ip", "-br", "-4", "address")
        names = {line.split()[0].partition("@")[0]: line.split()[2] for line in inside.splitlines()}
        assert names[host.interface] == f"{host.address}/24"
        # The trap that every cluster of Docker hosts has: one address, on all of them.
        assert names["docker0"] == "172.17.0.1/16"
    # The user who trains can write to the shared folder, and every host sees the same one.
    boxes = [f"toolkit-lab-{name}-{host.name}" for host in status.hosts]
    for box in boxes:
        docker("exec", "--user", "trainer", box, "sh", "-c", "echo $(hostname) >/srv/shared/by-$(hostname)")
    assert docker("exec", "--user", "trainer", boxes[0], "cat", "/srv/shared/by-box2") == "box2"
    assert (tmp_path / "lab" / "id_ed25519").stat().st_mode & 0o777 == 0o600

    again = lab_up(spec)
    assert again.changes == 0, [o for o in again.outcomes if o.status == "ok"]

    # A hosts file that was edited is kept, without another beside it, because no setting has changed.
    file, beside = tmp_path / "lab" / "hosts.yaml", tmp_path / "lab" / "hosts.new.yaml"
    written = file.read_text()
    file.write_text(f"{written}mounts: [/srv/shared:/shared]\n")
    lines.clear()
    assert lab_up(spec, lines.append).changes == 0
    assert file.read_text().endswith("mounts: [/srv/shared:/shared]\n") and not beside.exists()
    assert any("kept your edited hosts.yaml" in line for line in lines)
    file.write_text(written)

    # A reboot: everything restarts automatically, with the same key.
    docker("restart", f"toolkit-lab-{name}-box2")
    assert lab_up(spec).changes == 0
    assert lab_status(name) == status

    # A crash: processes gone, pid files and sockets as they were.
    docker("kill", f"toolkit-lab-{name}-box2")
    assert [h.ok for h in lab_status(name).hosts] == [True, False]
    assert lab_up(spec).changes == 1
    assert lab_status(name) == status

    with pytest.raises(LabError, match="different settings"):
        lab_up(LabSpec(name, spec.folder, hosts=2, user="root"))
    with pytest.raises(LabError, match="requests 1"):
        lab_up(LabSpec(name, spec.folder, hosts=1))
    assert lab_status(name).ok

    lab_down(name)
    assert traces(name) == []
    assert not (tmp_path / "lab").exists()
    assert lab_down(name).changes == 0


def test_a_test_run_replaces_the_cluster_of_a_killed_one_and_no_other(name: str, tmp_path: Path) -> None:
    lab_up(LabSpec(name, str(tmp_path / "of-a-killed-run"), hosts=1))
    spec = LabSpec(name, str(tmp_path / "lab"), hosts=1)
    with practice_cluster(spec):
        assert not (tmp_path / "of-a-killed-run").exists()
        with pytest.raises(LabError, match="another test run uses"), practice_cluster(spec):
            pass
        assert lab_status(name).ok
        _images_of_the_hosts_can_outlive_it(name, spec)
    assert traces(name) == []


def _images_of_the_hosts_can_outlive_it(name: str, spec: LabSpec) -> None:
    box = f"toolkit-lab-{name}-box1"
    docker("exec", box, "sh", "-c", "tar -C /etc -c hostname | docker import - kept:1")
    lab_down(name, keep_images=True)
    assert len(traces(name)) == 1
    lab_up(spec)
    assert docker("exec", box, "docker", "images", "-q", "kept:1")


def test_a_failure_leaves_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A hundredth of a second is left for an answer that takes longer on any machine.
    monkeypatch.setattr(build, "READY_SECONDS", -9.99)
    with pytest.raises(LabError, match="did not start"):
        lab_up(LabSpec(name, str(tmp_path / "lab"), hosts=1))
    assert traces(name) == []
    assert list(tmp_path.iterdir()) == []


def test_other_engines_and_root(name: str, tmp_path: Path) -> None:
    lab_up(
        LabSpec(name, str(tmp_path / "lab"), hosts=1, engines=("containerd",), user="root", rate="100mbit")
    )
    host = lab_status(name).hosts[0]
    assert (host.store, host.user, host.ok) == ("containerd", "root", True)
    assert "rate 100Mbit" in docker("exec", f"toolkit-lab-{name}-box1", "tc", "qdisc", "show", "dev", "eth0")
