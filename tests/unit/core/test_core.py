"""Identities, digests and names: equal for what is equal, different for what is not."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.core.answers import json_list
from toolkit.core.command import Result, command
from toolkit.core.container import Container, Mount, Ulimit
from toolkit.core.engines import PODMAN
from toolkit.core.facts import Interface
from toolkit.core.image import config_identity, image_facts, image_identity
from toolkit.core.report import FailureCause, Outcome, Report
from toolkit.errors import CommandFailed, Unreachable
from toolkit.plan.context import KnownFailure
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.names import LABEL_DIGEST, container_user, job_id

CONFIG: dict[str, Any] = {
    "Env": ["PATH=/opt/venv/bin:/usr/bin", "EQ=a=b"],
    "Cmd": ["bash"],
    "Entrypoint": None,
    "WorkingDir": "",
    "User": "",
    "Labels": None,
    "Volumes": None,
}
CHECK = {"Test": ["CMD", "true"], "Interval": 7, "Timeout": 3, "StartPeriod": 5, "Retries": 4}
OTHER_CHECKS: tuple[tuple[str, Any], ...] = (
    ("Test", ["CMD-SHELL", "true"]),
    *(("Interval", 8), ("Timeout", 8), ("StartPeriod", 8), ("Retries", 8)),
)
IMAGE: dict[str, Any] = {
    "Id": "sha256:" + "1" * 64,
    "RepoTags": ["toolkit:cpu"],
    "Os": "linux",
    "Architecture": "amd64",
    "Size": 5,
    "Config": CONFIG,
    "RootFS": {"Type": "layers", "Layers": ["sha256:a", "sha256:b"]},
}


def identity(inspect: dict[str, Any]) -> str:
    return image_identity(decode(ImageInspect, inspect))


def changed(**config: Any) -> dict[str, Any]:
    return {**IMAGE, "Config": {**CONFIG, **config}}


@for_each("empty", [None, [], {}, ""])
@for_each(
    "key",
    ["Entrypoint", "Labels", "Volumes", "WorkingDir", "User", "StopSignal", "ExposedPorts", "Healthcheck"],
)
def test_engines_of_all_ages_agree_on_what_is_empty(key: str, empty: object) -> None:
    absent = {k: v for k, v in CONFIG.items() if k != key}
    assert identity(changed(**{key: empty})) == identity({**IMAGE, "Config": absent}) == identity(IMAGE)


def test_what_engines_add_of_their_own_does_not_count() -> None:
    old = changed(Hostname="ab12", Image="sha256:x", OnBuild=None, AttachStdin=False)
    old |= {"DockerVersion": "20.10.24", "Container": "c", "GraphDriver": {"Name": "overlay2"}, "Parent": "p"}
    new = {**IMAGE, "Id": "sha256:" + "2" * 64, "Size": 99, "Descriptor": {}, "RepoTags": []}
    assert identity(old) == identity(new) == identity(IMAGE)


@for_each(
    "other",
    [
        {**IMAGE, "Architecture": "arm64"},
        {**IMAGE, "Os": "windows"},
        {**IMAGE, "RootFS": {"Layers": ["sha256:b", "sha256:a"]}},
        {**IMAGE, "RootFS": {"Layers": ["sha256:a"]}},
        changed(Env=["PATH=/opt/venv/bin:/usr/bin"]),
        changed(Cmd=["sh"]),
        changed(Entrypoint=["sh"]),
        changed(User="1000"),
        changed(Labels={"a": "b"}),
        changed(WorkingDir="/x"),
        changed(StopSignal="SIGINT"),
        changed(Volumes={"/data": {}}),
        changed(ExposedPorts={"80/tcp": {}}),
        *(changed(Healthcheck={**CHECK, key: value}) for key, value in OTHER_CHECKS),
        changed(Healthcheck={"Test": ["NONE"]}),
    ],
)
def test_what_a_container_would_notice_counts(other: dict[str, Any]) -> None:
    assert identity(other) not in (identity(IMAGE), identity(changed(Healthcheck=CHECK)))


def test_an_image_without_ports_and_health_check_keeps_its_digest() -> None:
    """Earlier digests did not include ports and health checks; a running cluster keeps its containers."""
    assert identity(changed(Volumes={"/data": {}})) == "39c88bc5c3d61d34"


def test_a_port_is_the_same_port_with_its_protocol_written_out() -> None:
    assert identity(changed(ExposedPorts={"80": {}})) == identity(changed(ExposedPorts={"80/tcp": {}}))
    assert identity(changed(ExposedPorts={"80": {}})) != identity(changed(ExposedPorts={"80/udp": {}}))


# One image with every field that a Dockerfile sets, as engines inspect it, and its config file. Podman had it
# in the OCI format, and in Docker's.
RECORDED = Path(__file__).parents[1] / "image_inspect"
DOCKERS = ("docker-20.10", "docker-26.1", "docker-26.1-containerd")
PODMANS = ("podman-5.4", "podman-5.4-docker-format")
# Fields of the config that do not count; ``toolkit.core.image`` gives the reason for each.
NOT_COUNTED = {
    *("Hostname", "Domainname", "AttachStdin", "AttachStdout", "AttachStderr", "Tty", "OpenStdin"),
    *("StdinOnce", "Image", "Shell", "OnBuild"),
}


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"{name}.json").read_text())


def test_an_image_has_one_identity_on_all_engines_and_in_its_config_file() -> None:
    config = recorded("config")
    inspected = {name: decode(ImageInspect, recorded(name)[0]) for name in (*DOCKERS, *PODMANS)}
    docker = {name: image_identity(inspected[name]) for name in DOCKERS}
    assert set(docker.values()) == {config_identity(config)}, docker
    # The identity for hosts with Podman, which reports a health check in one of the two formats alone.
    podman = {name: image_identity(inspected[name], PODMAN) for name in (*DOCKERS, *PODMANS)}
    assert set(podman.values()) == {config_identity(config, PODMAN)}, podman
    assert {image_identity(inspected[name]) for name in PODMANS} == set(podman.values())
    assert config_identity(config) != config_identity(config, PODMAN)


@for_each("name", (*DOCKERS, *PODMANS))
def test_every_field_that_an_engine_reports_counts_or_is_left_out_for_a_reason(name: str) -> None:
    image = recorded(name)[0]
    for key in image["Config"]:
        without = {**image, "Config": {k: v for k, v in image["Config"].items() if k != key}}
        assert (identity(without) == identity(image)) == (key in NOT_COUNTED), key


def test_image_facts() -> None:
    facts = image_facts(decode(ImageInspect, IMAGE))
    assert facts.env == (("PATH", "/opt/venv/bin:/usr/bin"), ("EQ", "a=b"))
    assert (facts.diff_ids, facts.tags, facts.size) == (("sha256:a", "sha256:b"), ("toolkit:cpu",), 5)
    bare = image_facts(decode(ImageInspect, {"Id": "x", "Config": None, "RootFS": None, "RepoTags": None}))
    assert (bare.env, bare.diff_ids, bare.tags) == ((), (), ())
    assert len(facts.identity) == 16


# Containers

OTHER_VALUES: dict[str, Any] = {
    "name": "x",
    "hostname": "x",
    "image": "x",
    "argv": ("x",),
    "entrypoint": "sh",
    "user": "5:5",
    "userns": "host",
    "groups": (5,),
    "workdir": "/x",
    "env": (("X", "1"),),
    "mounts": (Mount("/x", "/x"),),
    "labels": (("toolkit.x", "1"),),
    "gpus": "all",
    "cdi": ("x.com/y=0",),
    "devices": ("/dev/x",),
    "shm_bytes": 1,
    "ulimits": (Ulimit("nofile", 1, 1),),
    "cap_drop": (),
    "cap_add": ("NET_ADMIN",),
    "security": (),
    "pids": 1,
    "network": "none",
    "init": False,
    "stop_seconds": 1,
}


@for_each("field", [f.name for f in fields(Container)])
def test_the_digest_changes_with_every_field(field: str) -> None:
    base = world.container()
    assert replace(base, **{field: OTHER_VALUES[field]}).digest() != base.digest()


def test_the_digest_is_the_same_whether_it_is_on_the_label_or_not() -> None:
    base = world.container()
    marked = base.labelled()
    assert marked.digest() == base.digest() == dict(marked.labels)[LABEL_DIGEST]
    assert marked.labelled() == marked
    assert marked.labels == tuple(sorted(marked.labels))
    stale = replace(base, labels=(*base.labels, (LABEL_DIGEST, "0" * 16)))
    assert stale.labelled() == marked


def test_a_mount_that_becomes_read_only_is_another_container() -> None:
    base = world.container(mounts=(Mount("/x", "/x"),))
    assert replace(base, mounts=(Mount("/x", "/x", True),)).digest() != base.digest()


def test_the_digest_is_the_same_in_every_process() -> None:
    code = "from tests.unit import cluster_world as w; print(w.container().digest())"
    root = Path(__file__).resolve().parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert done.stdout.strip() == world.container().digest()


# Small things


@for_each(
    ("program", "word"),
    [
        ("examples/train_ddp.py", "train-ddp"),
        ("python", "python"),
        ("/usr/bin/env", "env"),
        ("./My Script.v2.py", "my-script-v2"),
        ("日本.py", "job"),
        ("", "job"),
        ("...", "job"),
        ("-" * 40, "job"),
        ("a" * 40, "a" * 24),
        ("a" * 23 + "-b", "a" * 23),
        ("x;rm -rf $HOME", "x-rm-rf-home"),
    ],
)
def test_job_ids_are_plain_words(program: str, word: str) -> None:
    made = job_id(datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc), program, "a1b2")
    assert made == f"20260102-030405-{word}-a1b2"


def test_job_ids_sort_by_time() -> None:
    early, late = datetime(2026, 9, 30, 23, 59, 59), datetime(2026, 10, 1)
    assert job_id(early, "z", "ffff") < job_id(late, "a", "0000")


def test_networks_of_interfaces() -> None:
    assert Interface("eth0", "10.0.3.7", 20).network == "10.0.0.0/20"
    assert Interface("tun0", "10.8.0.1", 32).network == "10.8.0.1/32"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("nothing", []),
        ("[]", []),
        ("motd\n[1, 2] and more", [1, 2]),
        ('  [{"a": [1]}]\n[2]', [{"a": [1]}]),
    ],
)
def test_json_behind_other_text(text: str, found: list[Any]) -> None:
    assert json_list(object, text) == tuple(found)


def test_a_result_shows_errors_last() -> None:
    assert Result(1, "out\n", " err\n").output == "out\nerr"
    assert Result(0).output == "" and Result(0).ok and not Result(124).ok


def test_a_report_counts_and_is_json() -> None:
    report = Report(
        "up demo",
        (
            Outcome("p", "one", "b", "ok", 0.5),
            Outcome("p", "one", "a", "skipped"),
            Outcome("q", "two", "b", "failed", detail="why", fix="do"),
        ),
        1.23456,
    )
    assert (report.ok, report.changes, report.hosts()) == (False, 1, ("b", "a"))
    told = json.loads(json.dumps(report.as_json()))
    assert (told["ok"], told["changes"], told["seconds"]) == (False, 1, 1.235)
    assert told["outcomes"][2]["fix"] == "do"
    assert not Report("r", (Outcome("p", "s", "a", "not run"),)).ok
    assert Report("r", ()).ok


@for_each(
    ("login", "inside"),
    [
        ("alice", "alice"),
        ("alice.smith-2_x", "alice.smith-2_x"),
        ("alice@corp.example.com", "alice"),
        ("CORP\\alice", "alice"),
        ("CORP\\alice@corp", "alice"),
        ("al ice+x", "al_ice_x"),
        ("gpu01$", "gpu01_"),
        ("-alice", "_alice"),
        (".alice", "_alice"),
        ("@corp", "user"),
        ("root@corp", "root_"),
        ("sshd", "sshd_"),
        ("jürgen", "j_rgen"),
    ],
)
def test_names_inside_containers_are_plain(login: str, inside: str) -> None:
    assert container_user(login) == inside


@pytest.mark.parametrize("word", ["plain", "it's", "a\nb", "\udcff\udcfe", "ü", "$HOME", ""])
def test_a_packed_command_is_ascii_and_means_the_same(word: str) -> None:
    packed = command("printf", "%s", word).packed()
    assert all(str(token).isascii() for token in packed.argv)
    done = subprocess.run([str(token) for token in packed.argv], capture_output=True, check=True)
    assert done.stdout == word.encode(errors="surrogateescape")


def test_an_error_of_every_kind_can_be_copied() -> None:
    """`run` adds a fix to the error of a host that did not answer."""
    errors = (
        CommandFailed("docker info", 3, "no\nengine", "gpu1", "restart it"),
        KnownFailure("taken", "free it", "gpu1", FailureCause.PORT_TAKEN),
        Unreachable("no route", "try again", "gpu1"),
    )
    for error in errors:
        made = copy.copy(error)
        assert type(made) is type(error) and made.__dict__ == error.__dict__ and str(made) == str(error)
        made.fix += "\nmore"
        assert "more" not in error.fix
