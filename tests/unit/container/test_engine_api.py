"""The Engine API and the docker command give the same facts, and the command replaces an API of no use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine_here import ENGINES, docker_script, recorded, served
from toolkit.cluster.probe import parse_facts, probe_command, read_probe
from toolkit.core.engines import PODMAN, parse_info
from toolkit.errors import NotReady

NONCE = "0123456789abcdef"
# What the probe gives to other questions.
VARIABLES = ("variables", 'printf "%s\\n" "root $root" "$seen"')
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]
_PATH = re.compile(r"\|/.*\|")
# A program, not a script. It prints its arguments, which shows that the docker command was used.
ECHO = shutil.which("echo")
USED = "info --format {{json .}}\n"
LISTED = "/containers/json?all=1&filters=%7B%22label%22%3A%5B%22toolkit.cluster%22%5D%7D"


def same(text: str) -> str:
    return text


def probed(
    home: Path, docker: str | None, change: Callable[[str], str] = same, shell: str = "sh", **env: str
) -> dict[str, str]:
    """Run the probe here.

    Args:
        docker: the text of a script as docker command, None for a program that prints its arguments.
        change: applied to the script of the probe.
    """
    home.mkdir(exist_ok=True)
    program = home / "docker"
    if docker is None:
        assert ECHO
        shutil.copy(ECHO, program)
    else:
        program.write_text(docker)
    program.chmod(0o755)
    argv = [str(token) for token in probe_command("toolkit:cpu", "probe", "box2", NONCE, [VARIABLES]).argv]
    argv[:3] = [*(["busybox", "sh"] if shell == "busybox" else [shell]), "-c", change(argv[2])]
    done = subprocess.run(
        argv,
        capture_output=True,
        check=True,
        env={"PATH": f"{home}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home), **env},
    )
    assert done.stderr == b""
    return read_probe(done.stdout, NONCE)


def quick(text: str) -> str:
    """Let the program wait for one second."""
    assert "LATE, SECONDS = 124, 20" in text
    return text.replace("LATE, SECONDS = 124, 20", "LATE, SECONDS = 124, 1")


@pytest.mark.parametrize("name", ENGINES)
def test_api_and_command_give_the_same_facts(tmp_path: Path, name: str) -> None:
    answers = recorded(name)
    with served(tmp_path, answers) as engine:
        by_api = probed(tmp_path / "api", None, DOCKER_HOST=engine.address)
    by_command = probed(tmp_path / "command", docker_script(tmp_path, answers))
    assert len(engine.requests) == len(answers["api"]) + 1, "each question was sent once"
    there, here = (parse_facts("box2", "probe", said) for said in (by_api, by_command))
    names = ("docker", "store", "engine", "rootless", "containers", "nvidia_runtime", "cdi")
    assert [getattr(there, each) for each in names] == [getattr(here, each) for each in names]
    assert {image.id: image for image in there.images} == {image.id: image for image in here.images}
    assert len(there.containers) == len(there.images) == 1
    for said in (by_api, by_command):
        assert said["variables"].startswith("root /var/lib/docker\n")
    seen, others = (
        sorted(filter(_PATH.fullmatch, said["variables"].split("\n"))) for said in (by_api, by_command)
    )
    assert seen == others and len(seen) == len(recorded_mounts(answers)) > 5


def recorded_mounts(answers: Mapping[str, Any]) -> list[str]:
    (container,) = answers["commands"]["inspect"]
    return [mount["Source"] for mount in container["Mounts"]]


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("by", ["api", "command"])
def test_every_shell_runs_both(tmp_path: Path, shell: str, by: str) -> None:
    answers = recorded("docker-26.1-containerd")
    docker = docker_script(tmp_path, answers) if by == "command" else None
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, docker, shell=shell, DOCKER_HOST=engine.address)
    facts = parse_facts("box3", "probe", said)
    assert (len(facts.containers), len(facts.images), facts.store) == (1, 1, "containerd")
    assert bool(engine.requests) is (by == "api") and "/conf|" in said["variables"]


@pytest.mark.parametrize(
    ("api_version", "prefix"), [("1.41", "/v1.41"), ("1.45", "/v1.45"), ("1.52", "/v1.45"), ("1.9", "/v1.9")]
)
def test_the_version_of_the_api_is_one_that_the_engine_and_toolkit_know(
    tmp_path: Path, api_version: str, prefix: str
) -> None:
    with served(tmp_path, {**recorded("docker-26.1"), "api_version": api_version}) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    assert parse_facts("box2", "probe", said).docker == "26.1.5+dfsg1"
    assert engine.requests[:2] == ["/_ping", "/info"]
    assert {path.rpartition("/v1")[1] and path.split("/")[1] for path in engine.requests[2:]} == {prefix[1:]}


def test_fields_of_a_newer_api_are_not_lost(tmp_path: Path) -> None:
    """Engines leave fields out of their description for clients of an older API (moby, system_routes.go)."""
    answers = {**recorded("docker-26.1-containerd"), "api_version": "1.52"}
    old = answers["api"]["/info"][1]
    new = {
        "CDISpecDirs": ["/etc/cdi"],
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=GPU-1"}],
        "Containerd": {"Address": "/var/run/docker/containerd/containerd.sock"},
    }
    answers["api"] |= {"/info": [200, old | new], "/v1.45/info": [200, old]}
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    info = parse_info(said["docker"])
    assert info and info.containerd and info.containerd.address.startswith("/var/run/docker/")
    assert parse_facts("box2", "probe", said).cdi == ("GPU-1",)


def test_a_container_that_is_removed_meanwhile_is_left_out(tmp_path: Path) -> None:
    answers = recorded("docker-26.1")
    answers["api"] = {p: a for p, a in answers["api"].items() if not p.startswith("/containers/3")}
    with served(tmp_path, answers) as engine:
        facts = parse_facts("box2", "probe", probed(tmp_path, None, DOCKER_HOST=engine.address))
    assert facts.containers == () and len(facts.images) == 1


def test_an_engine_without_containers_and_images(tmp_path: Path) -> None:
    answers = recorded("docker-20.10")
    images = next(path for path in answers["api"] if path.startswith("/images/json"))
    answers["api"] = {"/info": answers["api"]["/info"], LISTED: [200, []], images: [200, []]}
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    facts = parse_facts("box2", "probe", said)
    assert (facts.containers, facts.images) == ((), ()) and facts.docker == "20.10.24+dfsg1"
    assert said["variables"].strip() == "root /var/lib/docker\n/var/lib/docker|"


def test_only_images_that_the_store_of_containerd_lists_are_whole(tmp_path: Path) -> None:
    answers = recorded("docker-26.1-containerd")
    answers["api"] |= {"/images/json?all=1": [200, []], LISTED: [200, []]}
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    assert "sha256:9d0b071cd4f4" in said["images"] and said["listed"] == ""
    assert parse_facts("box2", "probe", said).images == ()


# Engines and users for whom the docker command is the right one


def changed(**changes: Any) -> dict[str, Any]:
    answers = recorded("docker-26.1")
    return {**answers, **changes, "api": answers["api"] | changes.get("api", {})}


@pytest.mark.parametrize(
    "answers",
    [
        changed(server="Libpod/4.9.3 (linux)"),
        changed(api={"/_ping": [500, "a proxy without permission"]}, server=""),
        changed(api_version="unknown"),
        changed(api={"/info": [400, {"message": "client version 1.45 is too old"}]}),
        changed(api={"/info": [200, '{"ServerVersion": "26.1.5", "Driv']}),
        changed(api={"/info": [404, {"message": "page not found"}]}),
        changed(api={LISTED: [500, {"message": "busy"}]}),
        changed(api={LISTED: [200, '[{"Id": "31de25ca0f']}),
        changed(api={LISTED: [200, [{"Id": "x HTTP/1.0\r\n\r\n"}]]}),
        changed(api={LISTED: [200, {"Id": 1}]}),
        changed(api={LISTED: [200, "[" + " " * (9 << 20) + "]"]}),
        changed(api={"/images/toolkit:cpu/json": [200, "[]]"]}),
    ],
    ids=[
        "podman", "proxy", "version", "refused", "cut", "absent", "busy", "cut-list", "odd-id", "other",
        "large", "image",
    ],
)  # fmt: skip
def test_after_an_unusable_answer_the_command_is_used(tmp_path: Path, answers: Mapping[str, Any]) -> None:
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    assert engine.requests and said["docker"] == USED.strip()


CONTEXT = {"currentContext": "rootless"}


@pytest.mark.parametrize(
    ("config", "env"),
    [
        (CONTEXT, {}),
        ({"HttpHeaders": {"X-Meta-Source": "1"}}, {}),
        (None, {"DOCKER_CONTEXT": "rootless"}),
        (None, {"DOCKER_API_VERSION": "1.40"}),
        (None, {"DOCKER_TLS_VERIFY": "1"}),
        (None, {"DOCKER_HOST": "tcp://127.0.0.1:1"}),
        (None, {"DOCKER_HOST": "ssh://elsewhere"}),
        (None, {"DOCKER_HOST": "unix:///nowhere/docker.sock"}),
    ],
)
def test_another_engine_of_the_user_is_asked_by_the_command(
    tmp_path: Path, config: dict[str, Any] | None, env: dict[str, str]
) -> None:
    if config is not None:
        (tmp_path / ".docker").mkdir()
        (tmp_path / ".docker/config.json").write_text(json.dumps(config))
    with served(tmp_path, recorded("docker-26.1")) as engine:
        said = probed(tmp_path, None, same, "sh", **{"DOCKER_HOST": engine.address, **env})
        assert said["docker"] == USED.strip() and engine.requests == []


@pytest.mark.parametrize("config", [{}, {"currentContext": "default", "auths": {}}, {"currentContext": ""}])
def test_a_configuration_without_another_engine_is_no_reason(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with served(tmp_path, recorded("docker-26.1")) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address, DOCKER_CONFIG=str(tmp_path))
    assert json.loads(said["docker"])["ServerVersion"] == "26.1.5+dfsg1"


def test_a_script_as_docker_is_used_itself(tmp_path: Path) -> None:
    """Such as that of Podman, or one that calls sudo."""
    answers = recorded("docker-26.1")
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, '#!/bin/sh\n[ "$1" != info ] || echo by script\n', DOCKER_HOST=engine.address)
    assert said["docker"] == "by script" and engine.requests == []


def test_a_host_without_python_is_asked_by_commands(tmp_path: Path) -> None:
    def without(text: str) -> str:
        return text.replace("seen=$(python3 ", "seen=$(python3-is-absent ")

    answers = recorded("docker-26.1")
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, docker_script(tmp_path, answers), without, DOCKER_HOST=engine.address)
    assert engine.requests == [] and parse_facts("box2", "probe", said).docker == "26.1.5+dfsg1"


def test_podman_is_asked_by_its_command() -> None:
    asked = probe_command("i:1", "demo", "gpu1", NONCE, engine=PODMAN).argv[2]
    assert "engine_api" not in str(asked) and "engine_api" in str(
        probe_command("i:1", "demo", "g", NONCE).argv[2]
    )


IMAGES = next(path for path in recorded("docker-26.1")["api"] if path.startswith("/images/json"))


@pytest.mark.parametrize(
    ("path", "command", "what"),
    [
        ("/_ping", "info", "does not respond"),
        ("/info", "info", "does not respond"),
        (LISTED, "ps", "is too slow"),
        (IMAGES, "images", "is too slow"),
        ("/images/toolkit:cpu/json", "image inspect", "is too slow"),
    ],
)
@pytest.mark.parametrize("how", ["silent", "slow"])
def test_an_engine_that_hangs_is_not_asked_again(
    tmp_path: Path, path: str, command: str, what: str, how: str
) -> None:
    with served(tmp_path, changed(api={path: [how, ""]})) as engine:
        said = probed(tmp_path, None, quick, DOCKER_HOST=engine.address)
    late = f"no answer within 20 s to docker {command}"
    assert said["docker"] == late and said["containers"] == said["images"] == ""
    with pytest.raises(NotReady, match=f"the docker engine {what}: {late}"):
        parse_facts("box2", "probe", said)


def test_odd_folders_open_no_line(tmp_path: Path) -> None:
    answers = recorded("docker-26.1")
    (path,) = (path for path in answers["api"] if path.startswith("/containers/3"))
    mounts = [{"Source": "/a\n|/b|"}, {"Source": "/\ud800"}, {"Source": "/last"}, {"Name": "without"}]
    answers["api"][path][1]["Mounts"] = mounts
    with served(tmp_path, answers) as engine:
        said = probed(tmp_path, None, DOCKER_HOST=engine.address)
    lines = said["variables"].split("\n")
    assert "|/last|" in lines and "|/b|" not in lines
