"""Faults made for real on practice hosts, and found: the right host and cause, and nothing besides."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import check_faults as faults
from tests.e2e.check_faults import Fault
from tests.e2e.conftest import hosts_file
from tests.e2e.world import Done, Toolkit, sh
from toolkit.checks import disk, engine, gpu, gpu_setup, image, leftovers, machine, mounts

FAMILIES = (disk, engine, gpu, gpu_setup, image, leftovers, machine, mounts)
pytestmark = pytest.mark.lab


# A fault of a host may show in its network and its containers as well; those checks have their own tests.
_OF_HOSTS = {check.id for module in FAMILIES for check in module.CHECKS}


def alarms(done: Done) -> list[dict[str, Any]]:
    return [f for f in done.json["findings"] if f["verdict"] in ("error", "warning")]


def worst_of(toolkit: Toolkit) -> str:
    return str(toolkit.run("check", "--json").json["verdict"])


def found(toolkit: Toolkit, *expected: tuple[str, str, str, str], besides: str = "") -> Done:
    """Assert that `check` reports these (check, verdict, host, words), each with a fix, and nothing else.

    ``besides`` is a check that may find something as well.
    """
    done = toolkit.run("check", "--json")
    told = alarms(done)
    for check, verdict, host, words in expected:
        own = [f for f in told if (f["check"], f["verdict"], f["host"]) == (check, verdict, host)]
        assert [f for f in own if words in f["what"] and f["fix"]], (check, words, told)
    others = ({f["check"] for f in told} & _OF_HOSTS) - {check for check, *_ in expected} - {besides}
    assert not others, told
    assert done.status == (1 if any(verdict == "error" for _, verdict, *_ in expected) else 0)
    return done


@contextmanager
def made(*several: Fault) -> Iterator[None]:
    """The faults, as long as the block runs."""
    try:
        for fault in several:
            said = sh(fault.host, fault.make)
            assert "NOT MADE" not in said, said
        yield
    finally:
        for fault in reversed(several):
            sh(fault.host, fault.mend)


@pytest.fixture(scope="module")
def checked(lab: Path, folder: Path) -> Toolkit:
    """A cluster that is never up: what is done to its hosts harms no other test's."""
    return Toolkit(hosts_file(lab, folder, "checked", ("box1", "box2")), folder)


@pytest.fixture(scope="module")
def before(checked: Toolkit) -> str:
    """The findings of `check` before anything is done to the hosts."""
    verdict = worst_of(checked)
    assert verdict not in ("error", "warning"), checked.run("check").out
    return verdict


@pytest.mark.parametrize("fault", faults.ENGINE, ids=lambda f: f.words)
def test_an_engine_that_cannot_be_used_is_the_first_thing_said(
    checked: Toolkit, before: str, fault: Fault
) -> None:
    with made(fault):
        done = checked.run("check", "--json")
    first = alarms(done)[0]
    assert (first["check"], first["host"], first["verdict"]) == ("docker", "box2", "error")
    assert fault.words in first["what"] and first["fix"] and done.status == 1


def test_docker_commands_that_go_to_another_machine(checked: Toolkit, before: str) -> None:
    hosts = yaml.safe_load(checked.hosts.read_text())
    key = Path(hosts["hosts"]["box2"]["identity_file"]).read_text()
    known = Path(hosts["known_hosts"]).read_text()
    with made(faults.engine_elsewhere(hosts["hosts"]["box1"]["address"], key, known)):
        found(checked, ("docker-here", "error", "box2", "the engine of host box1 instead of box2"))


@pytest.mark.parametrize("group", faults.TOGETHER, ids=lambda g: g[0].check)
def test_faults_of_a_host_are_found(checked: Toolkit, before: str, group: tuple[Fault, ...]) -> None:
    with made(*group):
        # With another engine or another disk, clusters that are up have lost their containers or their keys.
        found(checked, *((f.check, f.verdict, f.host, f.words) for f in group), besides="left-state")


def test_names_that_would_trouble_others_are_no_fault(checked: Toolkit, before: str) -> None:
    with made(*faults.HARMLESS):
        done = checked.run("check", "--json")
    assert done.json["verdict"] == before, alarms(done)
    said = [f["what"] for f in done.json["findings"] if f["check"] == "host-names"]
    assert any("have the same host name box1" in what for what in said)
    assert any("box1 has the address 127.0.1.1" in what for what in said)


# What the hosts file asks for


Change = Callable[[dict[str, Any]], None]


def changed(checked: Toolkit, name: str, change: Change) -> Toolkit:
    """The same hosts with another hosts file."""
    data = yaml.safe_load(checked.hosts.read_text())
    change(data)
    path = checked.hosts.with_name(f"{name}.yaml")
    path.write_text(yaml.safe_dump(data))
    return Toolkit(path, checked.folder)


def test_a_hosts_file_that_asks_for_too_much(checked: Toolkit) -> None:
    def more(data: dict[str, Any]) -> None:
        data["hosts"]["box1"]["slots"], data["hosts"]["box2"]["gpus"] = 999, 8
        data["shm_size"] = "900g"

    found(
        changed(checked, "more", more),
        ("slots", "warning", "box1", "999 slots share"),
        ("gpu-count", "error", "box2", "hosts.yaml declares 8 GPUs"),
        ("memory", "warning", "box1", "/dev/shm"),
        ("memory", "warning", "box2", "/dev/shm"),
    )


def test_two_names_of_one_machine(checked: Toolkit) -> None:
    def twice(data: dict[str, Any]) -> None:
        first = data["hosts"]["box2"]["address"]
        second = f"{first.rpartition('.')[0]}.212"
        data["hosts"]["again"] = {**data["hosts"]["box2"], "address": second}
        known = Path(data["known_hosts"]).read_text()
        also = [line.replace(first, second) for line in known.splitlines() if line.startswith(f"{first} ")]
        data["known_hosts"] = str(checked.hosts.with_name("known_hosts"))
        Path(data["known_hosts"]).write_text("\n".join([*known.splitlines(), *also, ""]))

    toolkit = changed(checked, "twice", twice)
    second = yaml.safe_load(toolkit.hosts.read_text())["hosts"]["again"]["address"]
    device = "dev $(ip -o route get 10.0.0.1 | sed 's/.* dev \\([^ ]*\\).*/\\1/')"
    with made(Fault("", f"ip addr add {second}/24 {device}", f"ip addr del {second}/24 {device}")):
        found(toolkit, ("same-machine", "error", "box2", "again and box2 are the same host"))


def test_faults_of_mounts(checked: Toolkit) -> None:
    def mounts(data: dict[str, Any]) -> None:
        data["mounts"] = [f"{source}:/m{source}{mode}" for source, mode in faults.MOUNTED]

    toolkit = changed(checked, "mounts", mounts)
    with made(Fault("", faults.MAKE_MOUNTS, faults.MEND_MOUNTS, host="box1"), faults.BAD_MOUNTS):
        found(toolkit, *faults.MOUNT_FINDINGS)


# Images


@pytest.fixture
def foreign_image() -> Iterator[str]:
    """An image for another processor, on this machine's engine."""
    name = "toolkit-test-foreign:1"
    subprocess.run(["docker", "load"], input=faults.archive(name, "arm64"), capture_output=True, check=True)
    try:
        yield name
    finally:
        subprocess.run(["docker", "image", "rm", name], capture_output=True, check=True)


def test_an_image_for_another_processor(checked: Toolkit, foreign_image: str) -> None:
    toolkit = changed(checked, "foreign", lambda data: data.update(image=foreign_image))
    words = f"the image {foreign_image} is for arm64"
    found(toolkit, ("arch", "error", "box1", words), ("arch", "error", "box2", words))


def test_images_that_nobody_or_not_everybody_has(checked: Toolkit) -> None:
    toolkit = changed(checked, "tiny", lambda data: data.update(image=faults.TINY))
    found(toolkit, ("image", "error", "", "neither your machine nor any host has the image"))
    # As on a laptop without an engine: what the hosts have counts.
    toolkit.env["DOCKER_HOST"] = "unix:///nowhere"
    with made(faults.tiny_image("box1", "one")):
        found(
            toolkit,
            ("image-there", "error", "box2", "is missing, and the engine of your machine has no copy"),
        )
        with made(faults.tiny_image("box2", "two")):
            found(toolkit, ("image", "error", "", "the hosts have different images"))


# Leftovers


def test_leftovers_are_found_and_removed_and_nothing_else(checked: Toolkit, before: str) -> None:
    others = set(sh("box2", f"ls {faults.STATE} 2>/dev/null").split()) | {"checked", "kept"}
    with made(*faults.LEFTOVERS):
        found(
            checked,
            ("left-containers", "warning", "box2", "toolkit-gone-worker belongs to a removed cluster"),
            ("left-processes", "warning", "box2", "2 processes of job 20260101-000000-over-aaaa"),
            (
                "left-state",
                "warning",
                "box2",
                "a state directory of cluster gone-too, but no container of this cluster",
            ),
            ("cluster-version", "warning", "box2", "toolkit 0.0.1"),
            ("left-containers", "warning", "box2", "toolkit-checked-worker is not running"),
        )
        dry = checked.run("check", "--fix", "--dry-run")
        assert "stop remaining processes of job 20260101-000000-over-aaaa" in dry.out
        assert faults.left() == faults.LEFT_BEFORE, "a dry run touches nothing"
        fixed = checked.run("check", "--fix", "--json")
        assert {o["status"] for o in fixed.json["fix"]["outcomes"]} == {"ok"}
        assert faults.left() == faults.LEFT_AFTER
        assert checked.run("check", "--fix", "--json").json["fix"]["outcomes"] == [], "nothing left to do"
        # Folders go if they are old enough or asked for.
        kept = {one["what"].split()[5] for one in checked.run("gc", "--json", check=True).json["kept"]}
        assert kept == {"gone-too"} and faults.left() == faults.LEFT_AFTER
        checked.run("gc", "--state", check=True)
        assert set(sh("box2", f"ls {faults.STATE}").split()) == others


# GPUs: the shell of the question is real, the answers come from a program in place of nvidia-smi


def test_the_question_about_gpus_in_the_shell_of_a_host(checked: Toolkit, before: str) -> None:
    with made(faults.FAKE_GPU, faults.CLAIM):
        first, second = checked.run("status", "--json").json["gpus"]
        assert [first["uuid"], second["uuid"]] == ["GPU-a", "GPU-b"]
        ((one,), (two,)) = first["holders"], second["holders"]
        assert (one["user"], one["program"], one["cluster"]) == ("trainer", "sleep", "")
        assert (two["user"], two["owner"], two["job"], two["pid"]) == ("nobody", "mallory", "j1", 0)
        assert abs(two["since"] - time.time()) < 120
        told = alarms(checked.run("check", "--json"))
        by_check = {f["check"]: f["what"] for f in told if f["host"] == "box2"}
        assert "3 uncorrectable memory errors" in by_check["gpu-memory"]
        assert "Container Toolkit is missing" in by_check["gpu-containers"]
        assert "uses 512 MiB" in by_check["gpu-busy"] and "user trainer" in by_check["gpu-busy"]
        assert set(by_check) == {"gpu-memory", "gpu-containers", "gpu-busy"}
        assert {f["check"] for f in told if f["host"] != "box2"} == {"gpu-alike"}


# What `up` and `run` do of it


def test_up_stops_at_faults_before_anything_is_changed(checked: Toolkit, folder: Path) -> None:
    look = "docker ps -aq | xargs -r docker inspect -f '{{.Id}} {{.State.Status}} {{.State.StartedAt}}'"
    containers = sh("box1", look)
    with made(faults.NO_STATE):
        done = checked.run("up")
        assert (done.status, done.out) == (3, "")
        assert "cannot write to" in done.err and "[disk-state]" in done.err and "--no-check" in done.err
        assert done.err.count("ERROR") == 1
        assert checked.run("up", "--dry-run").status == 0, "a dry run shows the plan all the same"
    # A fault that the plan itself refuses is reported once.
    many = changed(checked, "gpus", lambda data: data["hosts"]["box2"].update(gpus=8)).run("up")
    assert many.status == 3 and (many.err + many.out).count("hosts.yaml declares 8 GPUs") == 1
    assert sh("box1", look) == containers


def test_a_healthy_cluster_raises_no_alarm(checked: Toolkit, before: str) -> None:
    """All faults above are taken back; one that is not shows in the test after it, which finds two."""
    for _ in range(int(os.environ.get("TOOLKIT_TEST_ROUNDS", "1"))):
        done = checked.run("check", "--json")
        assert (done.status, alarms(done), done.json["verdict"]) == (0, [], before)
