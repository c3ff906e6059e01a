"""Keys of hosts.yaml on real engines: limits, labels, secrets, the image's origin, GPUs."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import waiting
from tests.e2e.registry import Registry, serving, tar_of, tiny_image
from tests.e2e.world import Toolkit, logins, on, outer, sh, watched_processes
from toolkit.core.image import image_arch

pytestmark = pytest.mark.lab

STATE = "/home/trainer/.local/state/toolkit"


def cluster(lab: Path, folder: Path, name: str, hosts: tuple[str, ...], **settings: Any) -> Toolkit:
    """A hosts file of its own, with these keys on top of the lab's."""
    data = yaml.safe_load((lab / "hosts.yaml").read_text())
    data |= {"cluster": name, "main": hosts[0], "launcher": "horovodrun", **settings}
    data["hosts"] = {host: data["hosts"][host] for host in hosts}
    made = Toolkit(folder / "hosts.yaml", folder)
    made.hosts.write_text(yaml.safe_dump(data))
    return made


def change(subject: Toolkit, **settings: Any) -> None:
    data = yaml.safe_load(subject.hosts.read_text())
    subject.hosts.write_text(yaml.safe_dump(data | settings))


# Limits, labels and secrets


@pytest.mark.rare
def test_limits_and_labels_reach_containers_and_ranks(lab: Path, tmp_path: Path) -> None:
    limits = {
        "nofile": {"soft": 1024, "hard": 4096},
        "core": 0,
        "stack": {"soft": 8388608, "hard": "unlimited"},
    }
    labels = {"com.example.team": "vision, the 2nd", "purpose": "tests"}
    subject = cluster(lab, tmp_path, "limits", ("box1", "box2"), ulimits=limits, labels=labels)
    try:
        subject.run("up", check=True)
        text = "echo LIMITS $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Hc) $(ulimit -Ss) $(ulimit -Hs)"
        out = subject.run("run", "--launcher", "torchrun", "--", "bash", "-c", text, check=True).out
        rows = re.findall(r"^\[(box\d) \d\] LIMITS (.*)$", out, re.MULTILINE)
        assert dict(rows) == dict.fromkeys(("box1", "box2"), "1024 4096 0 8192 unlimited")
        for host, name in (("box1", "toolkit-limits-main"), ("box2", "toolkit-limits-worker")):
            carried = json.loads(on(host, "docker", "inspect", "-f", "{{json .Config.Labels}}", name))
            assert labels.items() <= carried.items() and carried["toolkit.cluster"] == "limits"
        # More than any Linux gives to any user.
        change(subject, ulimits={"nofile": 4_000_000_000})
        refused = subject.run("up", "--json")
        failed = {o["host"]: o for o in refused.json["outcomes"] if o["status"] == "failed"}
        assert refused.status == 1 and set(failed) == {"box1", "box2"}
        for host, outcome in failed.items():
            assert "the engine cannot set the limit nofile (4000000000)" in outcome["detail"]
            assert f"on {host}: cat /proc/$(pidof dockerd)/limits" in outcome["fix"]
    finally:
        subject.run("down", "--no-save", check=True)


def test_ranks_alone_see_a_secret_and_no_host_keeps_it(lab: Path, tmp_path: Path) -> None:
    secret = f"s3cr3t-{time.time_ns()}"
    (tmp_path / "keys").mkdir()
    key = tmp_path / "keys" / "token"
    key.write_text(f"{secret}\n")
    key.chmod(0o600)
    code = tmp_path / "code"
    code.mkdir()
    subject = cluster(lab, tmp_path, "secrets", ("box1", "box2"), secrets={"TOKEN": "keys/token"})
    # By its beginning: this command line too is seen by who watches.
    places = f"grep -rl s3cr3t- {STATE} /var/log /tmp /run 2>/dev/null"
    try:
        subject.run("up", check=True)
        text = (
            "import os, time; print('LENGTH', len(os.environ['TOKEN']), flush=True)\n"
            "while not os.path.exists('go-on'): time.sleep(0.2)"
        )
        words = ("--launcher", "horovodrun", "--workdir", str(code), "--", "python", "-c", text)
        with watched_processes() as seen:
            job = subject.run("run", "--detach", "--json", *words, check=True).json["job"]
            waiting.job_prints(subject, job, "LENGTH", 2)
            # While it runs: in the container's memory, for its owner alone, in a file without a name.
            for host in ("box1", "box2"):
                assert sh(host, places) == ""
                container = "toolkit-secrets-main" if host == "box1" else "toolkit-secrets-worker"
                inside = "grep -l s3cr3t- /dev/shm/*; stat -Lc '%a %u %h' /dev/shm/toolkit-*.variables; id -u"
                found, about, user = on(host, "docker", "exec", container, "sh", "-c", inside).splitlines()
                assert found.endswith(".variables") and about == f"600 {user} 0"
            for host in ("box1", "box2"):
                sh(host, f"touch {STATE}/secrets/{host}/jobs/{job}/code/go-on")
            done = subject.run("logs", "-f", job, check=True)
        assert done.out.count(f"LENGTH {len(secret)}") == 2
        holders = [line for line in seen if secret in line]
        assert holders and all("TOOLKIT_RANK=" in line for line in holders)
        waiting.job_reaches(subject, job, "succeeded")
        for host in ("box1", "box2"):
            assert sh(host, places) == ""
            container = "toolkit-secrets-main" if host == "box1" else "toolkit-secrets-worker"
            assert ".variables" not in on(host, "docker", "exec", container, "ls", "/dev/shm")
            ids = on(host, "docker", "ps", "-aq").split()
            assert secret not in on(host, "docker", "inspect", *ids)
            assert not any(secret in on(host, "docker", "logs", name) for name in ids)
        dry = subject.run("run", "--dry-run", *words, check=True)
        shown = dry.out + dry.err + subject.run("status", "--json").out + done.err
        assert secret not in shown and "TOKEN" not in dry.out
        # A command that runs nothing needs no secret; `run` reports a missing one before it contacts a host.
        key.rename(tmp_path / "keys" / "moved")
        before = logins("box1")
        refused = subject.run("run", *words)
        assert refused.status == 2 and f"secrets/TOKEN: there is no file {key}" in refused.err
        assert logins("box1") == before
        assert subject.run("status").status == 0 and subject.run("up", check=True)
        subject.run("down", check=True)
        runs = tmp_path / "runs" / "secrets" / job
        assert (runs / "box1" / "record.json").is_file() and (runs / "box2" / "logs" / "rank-1.log").is_file()
        assert not [p for p in runs.rglob("*") if p.is_file() and secret in p.read_text(errors="replace")]
    finally:
        subject.run("down", "--no-save")


# Where the image comes from


HOSTS = ("box1", "box2", "box3")
REGISTRY = "127.0.0.1:5055"


@pytest.fixture
def registry(lab: Path) -> Iterator[Registry]:
    """A registry that the three hosts' engines can pull from; what they pulled goes with it."""

    def references(host: str) -> set[str]:
        return set(on(host, "docker", "images", "--format", "{{.Repository}}:{{.Tag}}").split())

    before = {host: references(host) for host in HOSTS}
    try:
        with serving(lab, HOSTS, 5055) as registry:
            yield registry
    finally:
        for host in HOSTS:
            on(host, "docker", "rmi", *sorted(references(host) - before[host]))
            # What lost its name to a newer one is still known by its digest.
            sh(host, f"docker images -q '{REGISTRY}/*' | xargs -r docker rmi -f")


@pytest.mark.rare
def test_hosts_pull_the_image_themselves(lab: Path, tmp_path: Path, registry: Registry) -> None:
    registry.put("1", "one")

    def verified(host: str) -> int:
        return on(host, "docker", "images", "-q", "toolkit.local/verified").count("\n")

    def send(pull: str, tag: str = "1") -> Any:
        image = {"name": f"{REGISTRY}/tiny:{tag}", "pull": pull}
        return cluster(lab, tmp_path, "pulled", HOSTS, image=image).run("image", "send", "--json")

    def steps(done: Any) -> dict[str, list[str]]:
        assert done.status == 0, done.err
        found: dict[str, list[str]] = {}
        for outcome in done.json["outcomes"]:
            found.setdefault(outcome["phase"], []).append(outcome["status"])
        return found

    def failures(done: Any) -> dict[str, tuple[str, str]]:
        assert done.status == 1
        return {o["host"]: (o["detail"], o["fix"]) for o in done.json["outcomes"] if o["status"] == "failed"}

    # Tests before this one can leave images on single hosts.
    before = {host: verified(host) for host in HOSTS}
    # Engines 20.10 and 26.1, both image stores.
    assert steps(send("missing")) == {"pull": ["ok"] * 3, "image": ["ok"] * 3}
    asked = len(registry.pulls)
    assert steps(send("missing")) == {"image": ["skipped"] * 3}
    assert len(registry.pulls) == asked, "who has it does not ask"
    assert steps(send("always")) == {"pull": ["skipped"] * 3, "image": ["skipped"] * 3}
    registry.put("1", "two")
    assert steps(send("missing")) == {"image": ["skipped"] * 3}
    assert steps(send("always")) == {"pull": ["ok"] * 3, "image": ["ok"] * 3}
    names = {verified(host) - before[host] for host in HOSTS}
    assert len(names) == 1
    # One of them is given another image under the same name.
    registry.put("1", "three", host="box2")
    differs = send("always")
    assert (
        differs.status == 1 and "the hosts have different images" in differs.err and "box2 has" in differs.err
    )
    # What goes wrong, by host, with its fix.
    for host, (what, fix) in failures(send("missing", "no-such-tag")).items():
        assert "the registry does not contain the image" in what and "push the image" in fix, (host, what)
    registry.locked = True
    for host, (what, fix) in failures(send("always")).items():
        assert "denies the SSH user access" in what and f"on {host}: docker login {REGISTRY}" in fix, (
            host,
            what,
        )
    gone = cluster(lab, tmp_path, "pulled", HOSTS, image={"name": "127.0.0.1:1/tiny:1", "pull": "missing"})
    assert set(failures(gone.run("image", "send", "--json"))) == set(HOSTS)
    assert "cannot reach the registry" in gone.run("up").err


def test_an_image_for_another_processor_is_not_sent(lab: Path, tmp_path: Path) -> None:
    mine = sh("box1", "uname -m").strip()
    other = "arm64" if image_arch(mine) == "amd64" else "amd64"
    layer, config = tiny_image("foreign", other)
    name = "toolkit-test-foreign:1"
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    archive = tar_of(layer_tar=layer, config_json=config, manifest_json=manifest)
    subprocess.run(["docker", "load"], input=archive, check=True, capture_output=True)
    try:
        foreign = cluster(lab, tmp_path, "foreign", ("box1", "box2"), image=name)
        assert foreign.run("up").status == 3, "told by a check"
        done = foreign.run("up", "--no-check")
        assert done.status == 1 and f"the image {name} is for {other}, but box1 is" in done.err
        assert "box2 is" in done.err and "fix:" in done.err
        assert on("box1", "docker", "images", "-q", name) == ""
    finally:
        subprocess.run(["docker", "rmi", name], check=True, capture_output=True)


# GPUs that a script plays: what the engine and we make of them is real

IDS = ("GPU-c69e290d-9f94-5ffa-4d12-78220ad2cf13", "GPU-37349e45-5d52-613c-2813-c40d2affbb14")
# What it lists are the files that are there: on the host all, in a container those that it was given.
SMI = """#!/bin/sh
for gpu in /etc/lab-gpus/*; do
  case "$1" in
  -L) sed -n 2p "$gpu" ;;
  --query-gpu=index,uuid,name,driver_version,memory.total) sed -n 1p "$gpu" ;;
  *) exit 2 ;;
  esac
done
"""
SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {
        "mounts": [
            {
                "hostPath": "/usr/local/bin/nvidia-smi",
                "containerPath": "/usr/bin/nvidia-smi",
                "options": ["ro", "bind"],
            }
        ]
    },
    "devices": [
        {
            "name": name,
            "containerEdits": {
                "mounts": [
                    {
                        "hostPath": f"/etc/lab-gpus/{index}",
                        "containerPath": f"/etc/lab-gpus/{index}",
                        "options": ["ro", "bind"],
                    }
                    for index in indexes
                ]
            },
        }
        for name, indexes in (("0", [0]), ("1", [1]), ("all", [0, 1]))
    ],
}


def _put(host: str, path: str, text: str) -> None:
    argv = ["docker", "exec", "-i", outer(host), "sh", "-c", f"mkdir -p $(dirname {path}); cat >{path}"]
    subprocess.run(argv, input=text, text=True, check=True)


def _restart(host: str) -> None:
    """Boot the practice host again, so that its engine reads its settings; what ran there runs afterwards."""
    running = on(host, "docker", "ps", "-q").split()
    subprocess.run(["docker", "restart", "-t", "10", outer(host)], check=True, capture_output=True)
    waiting.host_answers(host)
    if running:
        on(host, "docker", "start", *running)


@pytest.fixture
def gpus(lab: Path) -> Iterator[None]:
    """Two GPUs on box1, as far as its nvidia-smi goes."""
    for index, uuid in enumerate(IDS):
        name = "NVIDIA GeForce RTX 3090"
        lines = f"{index}, {uuid}, {name}, 535.183.01, 24576\nGPU {index}: {name} (UUID: {uuid})\n"
        _put("box1", f"/etc/lab-gpus/{index}", lines)
    _put("box1", "/usr/local/bin/nvidia-smi", SMI)
    sh("box1", "chmod 755 /usr/local/bin/nvidia-smi")
    cdi = False
    try:
        yield
        cdi = "/etc/cdi" in on("box1", "docker", "info", "--format", "{{json .}}")
    finally:
        sh(
            "box1",
            "rm -rf /etc/lab-gpus /usr/local/bin/nvidia-smi /etc/cdi/nvidia.json /etc/docker/daemon.json",
        )
        if cdi:
            _restart("box1")


@pytest.mark.rare
def test_gpus_from_the_engines_refusal_to_a_container_that_has_them(
    gpus: None, lab: Path, tmp_path: Path
) -> None:
    subject = cluster(lab, tmp_path, "gpus", ("box1",))
    try:
        # No NVIDIA Container Toolkit: a check says so, else the engine says no.
        told = subject.run("up")
        assert told.status == 3 and "Container Toolkit is missing" in told.err
        refused = subject.run("up", "--no-check", "--json")
        (failed,) = [o for o in refused.json["outcomes"] if o["status"] == "failed"]
        assert refused.status == 1 and failed["host"] == "box1"
        assert "the NVIDIA Container Toolkit is missing" in failed["detail"]
        assert "could not select device driver" in failed["detail"]
        assert "nvidia-ctk runtime configure" in failed["fix"]
        # A list that the host cannot fulfil, and a driver in trouble.
        _declare(subject, ["GPU-00000000-0000-0000-0000-000000000000"])
        absent = subject.run("up", "--no-check")
        assert absent.status == 3 and f"nvidia-smi on the host lists 2 GPUs: 0 {IDS[0]}" in absent.err
        # By CDI, one of the two by its UUID.
        _declare(subject, [IDS[1]])
        _put("box1", "/etc/cdi/nvidia.json", json.dumps(SPEC, indent=1))
        _put("box1", "/etc/docker/daemon.json", json.dumps({"features": {"cdi": True}}))
        _restart("box1")
        subject.run("up", check=True)
        asked = json.loads(on("box1", "docker", "inspect", "toolkit-gpus-main"))[0]
        (request,) = asked["HostConfig"]["DeviceRequests"]
        assert (request["Driver"], request["DeviceIDs"]) == ("cdi", ["nvidia.com/gpu=1"])
        assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in asked["Config"]["Env"]
        smoke = subject.run("smoke", "--json", check=True).json
        assert [(g["index"], g["uuid"]) for g in smoke["gpus"]] == [(1, IDS[1])]
        # It vanishes from the container that runs; a fresh one would have it.
        pid = on("box1", "docker", "inspect", "-f", "{{.State.Pid}}", "toolkit-gpus-main").strip()
        sh("box1", f"nsenter -t {pid} -m -p umount /etc/lab-gpus/1")
        lost = subject.run("smoke", "--json")
        (problem,) = lost.json["problems"]
        assert lost.status == 1 and "toolkit-gpus-main should have 1 GPU, but nvidia-smi lists 0" in problem
        assert (
            IDS[1] in problem and "fix: on box1: docker rm -f toolkit-gpus-main  # then toolkit up" in problem
        )
    finally:
        subject.run("down", "--no-save")


def _declare(subject: Toolkit, gpus: list[Any]) -> None:
    hosts = yaml.safe_load(subject.hosts.read_text())["hosts"]
    hosts["box1"]["gpus"] = gpus
    change(subject, hosts=hosts)
