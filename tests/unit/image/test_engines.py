"""Translation of commands for Podman: commands of toolkit change, words of the user do not."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator

import pytest

from tests.unit import cluster_world as world
from tests.unit.frames_here import NONCE, framed
from toolkit.cluster.probe import docker_info, parse_facts, probe_command
from toolkit.core.command import Command, command, script
from toolkit.core.disk_space import ask_room
from toolkit.core.engines import PODMAN, parse_info, translate_engine
from toolkit.core.image import image_facts
from toolkit.errors import NotReady
from toolkit.image import send as images
from toolkit.image.layers import holdings_command, parse_holdings
from toolkit.plan.steps import Plan
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import EngineInfo, ImageInspect
from toolkit.transfer import host as programs

# As Podman 5.4 prints it, cut to what is read.
INFO = {
    "host": {
        "cgroupManager": "cgroupfs",
        "cgroupVersion": "v1",
        "hostname": "box1",
        "logDriver": "k8s-file",
        "ociRuntime": {"name": "runc"},
        "security": {"rootless": True, "selinuxEnabled": False},
    },
    "store": {"graphDriverName": "overlay", "graphRoot": "/home/trainer/.local/share/containers/storage"},
    "version": {"APIVersion": "5.4.2", "Version": "5.4.2"},
}
# A call of docker that the function has not seen. Words about docker in what a script prints are no calls.
LEFT = re.compile(r"(?:^|[;&|(`{!]|\bthen|\bdo|\bif|\bexec|\$\()\s*docker [a-z]")


def commands_of(plan: Plan) -> Iterator[Command]:
    for step in plan.steps:
        for field in dataclasses.fields(step):
            value = getattr(step, field.name)
            if isinstance(value, Command):
                yield value


def ours() -> Iterator[Command]:
    for plan in world.plans().values():
        yield from commands_of(plan)
    yield probe_command("toolkit:cpu", "demo", "gpu1", "0" * 16)
    yield holdings_command("0" * 16)
    yield ask_room("/x")
    yield programs.relay_program("demo", "0123", "10.0.0.2")
    yield programs.load_program("demo", "0123")
    yield programs.data_program("/x", "/y", "demo", "toolkit:cpu", "1:1", "look")
    yield script(images._NAME, "a", "--")
    yield script(images._LOOK, "a")
    yield script(images._PULL, "a")


def texts(subject: Command) -> Iterator[str]:
    """The words of a command that are its own: a call's first two, and scripts."""
    argv = [str(token) for token in subject.argv]
    for index, token in enumerate(argv):
        if index and argv[index - 1] == "-c":
            yield token
    yield " ".join(argv[:2])


def test_nothing_of_ours_calls_docker_where_podman_is() -> None:
    seen = 0
    for subject in ours():
        for text in texts(translate_engine(subject, PODMAN)):
            found = [line for line in text.splitlines() if LEFT.search(line)]
            assert not found, found
            seen += "podman" in text
    assert seen > 20
    assert any(LEFT.search(line) for each in ours() for text in texts(each) for line in text.splitlines())


@pytest.mark.parametrize(
    ("subject", "line"),
    [
        (command("docker", "ps", "-a"), "podman ps -a"),
        (command("docker", "exec", "x", "docker", "ps"), "podman exec x docker ps"),
        (script('docker rm "$1"', "docker ps"), "sh -c 'podman rm \"$1\"' sh 'docker ps'"),
        (script("docker() { :; }; a=$(docker info)"), "sh -c 'podman() { :; }; a=$(podman info)' sh"),
        (command("env", "A=docker ps", "docker", "load"), "env 'A=docker ps' podman load"),
        (command("timeout", "5", "docker", "version"), "timeout 5 podman version"),
        (command("echo", "docker", "is", "there"), "echo docker is there"),
        (script("cat /etc/docker/daemon.json my-docker ps"), None),
    ],
)
def test_calls_and_nothing_else(subject: Command, line: str | None) -> None:
    assert translate_engine(subject, PODMAN).line() == (line or subject.line())
    assert translate_engine(subject, "docker") is subject
    once = translate_engine(subject, PODMAN)
    assert translate_engine(once, PODMAN) is once


def test_what_podman_says_of_itself() -> None:
    text = json.dumps(INFO)
    info = docker_info("box1", "trainer", f"a banner\n{text}", PODMAN)
    assert (info.engine, info.version, info.driver) == ("podman", "5.4.2", "overlay")
    assert info.security_options == ("name=rootless",) and info.cgroup_version == "1"
    security = {"rootless": True, "selinuxEnabled": True}
    labels = parse_info(json.dumps({**INFO, "host": {**INFO["host"], "security": security}}))
    assert labels is not None and labels.uses_selinux and not info.uses_selinux
    assert parse_info('{"ServerVersion": "26.1"}') == EngineInfo("26.1", engine="docker")
    assert parse_info("nothing") is None
    assert parse_holdings(framed(NONCE, driver="podman overlay"), NONCE).store == "podman"


def test_what_stands_where_another_engine_was_meant() -> None:
    with pytest.raises(NotReady, match="the command `docker` starts Podman on this host"):
        docker_info("box1", "trainer", json.dumps(INFO))
    with pytest.raises(NotReady, match="podman is not installed"):
        docker_info("box1", "trainer", "sh: 12: podman: not found", PODMAN)


def test_the_fix_for_a_podman_that_hangs_restarts_no_daemon() -> None:
    late = "no answer within 20 s to podman info"
    with pytest.raises(NotReady, match=f"the podman engine does not respond: {late}") as caught:
        docker_info("box1", "trainer", late, PODMAN)
    assert caught.value.fix.startswith("on box1: podman info")


def test_names_and_ids_of_podman() -> None:
    facts = image_facts(
        decode(ImageInspect, {"Id": "ab" * 32, "RepoTags": ["localhost/toolkit:cpu", "quay.io/a:b"]})
    )
    assert (facts.id, facts.tags) == ("sha256:" + "ab" * 32, ("toolkit:cpu", "quay.io/a:b"))


def test_rootless_containers_keep_the_user() -> None:
    facts = world.facts(engine="podman", rootless=True)
    assert facts.as_user == ("--user", f"{facts.uid}:{facts.gid}", "--userns", "keep-id")
    assert world.facts(engine="podman", rootless=False).as_user == ("--user", f"{facts.uid}:{facts.gid}")
    assert world.facts(rootless=True).userns == ""


def test_containers_of_single_programs_request_no_gpu_from_a_broken_driver() -> None:
    assert "NVIDIA_VISIBLE_DEVICES=void" in world.facts(nvidia_runtime=True).as_user
    assert "--env" not in world.facts(nvidia_runtime=True, gpus=(world.gpu(0),)).as_user


def test_a_probe_of_a_host_with_podman(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("containers", "images", "interfaces", "routes", "addresses", "tcp", "gpus", "runtime", "cdi")
    more = ("ssh", "state", "cluster", "version", "tuned", "files", "boot", "infiniband", "imex", "disk")
    said = {
        **dict.fromkeys((*names, *more), ""),
        "who": "uid=1000(trainer) gid=1000(trainer) groups=1000(trainer)",
        "home": "/home/trainer",
        "state-home": "/home/trainer/.local/state",
        "machine": "box1\nx86_64",
        "docker": json.dumps(INFO),
    }
    facts = parse_facts("box1", "demo", said, engine=PODMAN)
    assert (facts.engine, facts.docker, facts.rootless, facts.userns) == ("podman", "5.4.2", True, "keep-id")
    said["cdi"] = "  name: all\n- name: '0'\n"
    assert parse_facts("box1", "demo", said, engine=PODMAN).cdi == ("all", "0")
