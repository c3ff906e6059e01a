"""Tests of the probe of an image, and of the transport that `up` chooses from its report."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit import cluster_world as world
from toolkit.cluster.applied import applied_text, parse_applied, with_recorded_transport
from toolkit.cluster.image_probe import choose_transport, image_here, image_report
from toolkit.cluster.layout import Layout, Observed, make_layout
from toolkit.core.command import Command, Result
from toolkit.errors import BadInput, ImageError, MissingTool, ToolkitError, Unreachable
from toolkit.hostsfile.inventory import Inventory
from toolkit.remote.local_image import note_built

REPORT = {"executable": "/usr/bin/python3", "python": [3, 12, 1]}


def settings_of(command: Command) -> tuple[str, Any]:
    """Return the program and the settings in the standard input of a probe."""
    length = int(str(command.argv[-1]))
    assert command.stdin is not None
    return command.stdin[:length].decode(), json.loads(command.stdin[length:])


# Of an engine on Debian 12 without the package apparmor.
_NO_APPARMOR = (
    "docker: Error response from daemon: AppArmor enabled on system but the docker-default profile could not"
    " be loaded: running `apparmor_parser apparmor_parser --version` failed with output: \nerror: exec:"
    ' "apparmor_parser": executable file not found in $PATH.'
)


class Image:
    """A host that runs the probe: an engine with an image of these properties."""

    name = "gpu1"

    def __init__(
        self,
        lacks: tuple[str, ...] = (),
        banner: str = "",
        status: int = 0,
        said: str = "docker: the runtime failed.",
        **report: Any,
    ) -> None:
        self.report, self.banner, self.status = {**REPORT, "lacks": lacks, **report}, banner, status
        self.said = said
        self.commands: list[Command] = []

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.commands.append(command)
        if self.status:
            return Result(self.status, "", self.said)
        nonce, text = settings_of(command)[1]["nonce"], json.dumps(self.report)
        raw = f"{self.banner}\n{nonce} image {len(text)}\n{text}\n{nonce} end 0\n".encode()
        return Result(0, raw.decode(), raw=raw)


def made(keys: str = "", env: Mapping[str, str] | None = None, **facts: Any) -> tuple[Inventory, Layout]:
    inventory = world.inventory(world.HOSTS + keys)
    image = replace(world.IMAGE, env=tuple((env or {}).items()))
    there = {name: replace(found, images=(image,), **facts) for name, found in world.cluster_facts().items()}
    return inventory, make_layout(inventory, Observed(there, image))


def test_auto_uses_ssh_only_with_both_programs() -> None:
    inventory, layout = made()
    for lacks, transport in (
        ((), "ssh"),
        (("ssh",), "exec"),
        (("/usr/sbin/sshd",), "exec"),
        (("mpirun", "horovodrun"), "ssh"),
    ):
        hosts: Any = dict.fromkeys(inventory.names, Image(lacks))
        chosen = choose_transport(inventory, layout, False, hosts)
        assert (chosen.used_transport, chosen.in_parts) == (transport, transport == "exec")
        assert chosen.transport == "auto"


def test_an_explicit_transport_needs_no_probe() -> None:
    for keys in ("transport: exec\n", "transport: ssh\n"):
        inventory, layout = made(keys)
        assert choose_transport(inventory, layout, False, {}).used_transport == keys.split()[1]


def test_an_image_made_from_one_of_toolkit_can_be_without_sshd() -> None:
    """Images made FROM an image of toolkit inherit its variables, but not necessarily its programs."""
    inventory, layout = made(env={"TOOLKIT_OPENMPI": "4.1"})
    hosts: Any = dict.fromkeys(inventory.names, Image(("/usr/sbin/sshd",)))
    assert choose_transport(inventory, layout, False, hosts).used_transport == "exec"
    # The image is nowhere: toolkit cannot probe it.
    nowhere = replace(layout, image=replace(layout.image, identity="0" * 16))
    assert choose_transport(inventory, nowhere, False, hosts).used_transport == "ssh"


def test_an_image_that_was_built_here_needs_no_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    inventory, layout = made(env={"TOOLKIT_OPENMPI": "4.1"})
    host = Image()
    hosts: Any = dict.fromkeys(inventory.names, host)
    assert choose_transport(inventory, layout, False, hosts).used_transport == "ssh"
    assert len(host.commands) == 1
    note_built(layout.image.id)
    assert choose_transport(inventory, layout, False, hosts).used_transport == "ssh"
    assert len(host.commands) == 1


def test_no_docker_command_for_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    inventory, layout = made()
    nowhere = replace(layout, image=replace(layout.image, identity="0" * 16))
    with pytest.raises(ImageError, match="your machine has no docker command"):
        choose_transport(inventory, nowhere, True, {})


def test_the_recorded_choice_stays_until_the_image_changes() -> None:
    inventory, layout = made()
    chosen = replace(inventory, chosen_transport="exec")
    record = parse_applied(applied_text(chosen, "gpu1", layout.image.identity))
    again, running = made(applied=record)
    assert with_recorded_transport(again, {p.name: p.facts for p in running.places}).in_parts
    assert choose_transport(again, running, False, {}).chosen_transport == "exec"
    hosts: Any = dict.fromkeys(inventory.names, Image())
    other = replace(running, image=replace(running.image, identity="0" * 16))
    with pytest.raises(ImageError, match="no usable host has the image"):
        choose_transport(again, other, False, hosts)
    # An explicit transport of an earlier `up` is no choice of auto.
    explicit = parse_applied(applied_text(made("transport: exec\n")[0], "gpu1", layout.image.identity))
    changed, layout = made(applied=explicit)
    assert choose_transport(changed, layout, False, hosts).chosen_transport == "ssh"


def test_keys_that_need_ssh_are_refused_with_their_fix() -> None:
    inventory, layout = made("launcher: horovodrun\nworker_port: 2345\n")
    hosts: Any = dict.fromkeys(inventory.names, Image(("ssh",)))
    with pytest.raises(BadInput) as refused:
        choose_transport(inventory, layout, False, hosts)
    problems = {problem.path: problem.message for problem in refused.value.problems}
    assert set(problems) == {"launcher", "worker_port"}
    assert "write mpirun" in problems["launcher"] and "remove the key" in problems["worker_port"]
    assert all(f"toolkit image build --onto {inventory.image}" in what for what in problems.values())


@pytest.mark.parametrize(
    ("image", "usable", "error", "what", "fix"),
    [
        ("lab:1", True, ImageError, "your machine does not have the image lab:1: No", "docker pull lab:1"),
        ("toolkit:gpu", True, ImageError, "your machine does not", "toolkit image build --flavor gpu"),
        ("lab:1", False, MissingTool, "toolkit cannot use docker on your machine: ", "sudo systemctl start"),
    ],
)
def test_an_image_without_a_description(
    image: str,
    usable: bool,
    error: type[ToolkitError],
    what: str,
    fix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A docker command that cannot reach an engine is no missing image, which a pull would bring."""
    said = f"No such image: {image}" if usable else "Cannot connect to the Docker daemon at unix:///x."
    text = f'#!/bin/sh\ncase $1 in image) echo "[]" ;; ps) {"exit 0" if usable else ":"} ;; esac\n'
    docker = tmp_path / "docker"
    docker.write_text(f'{text}echo "{said}" >&2\nexit 1\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(error) as raised:
        image_here(image)
    assert raised.value.what.startswith(what) and raised.value.fix.startswith(fix)
    assert "\n" not in raised.value.what


def test_a_banner_is_not_an_answer() -> None:
    image = Image(banner='{"executable": "/evil", "python": [3, 99, 0]}\n\ndeadbeef image 2\n{}\n')
    report = image_report("lab:1", "sha256:1", ("--user", "7:7"), image.run)
    assert report.executable == "/usr/bin/python3"
    argv = [str(token) for token in image.commands[0].argv]
    options = argv[: argv.index("sha256:1")]
    assert options[options.index("--entrypoint") + 1] == "env" and "--user" in options


@pytest.mark.parametrize(
    ("image", "words"),
    [
        (Image(status=127, said="env: 'python3': No such file or directory"), "has no python3 on its PATH"),
        (
            Image(status=127, said=_NO_APPARMOR),
            "probe of the image lab:1 failed: .*AppArmor enabled on system",
        ),
        (Image(status=125), "the runtime failed"),
        (Image(python=[3, 9, 2]), "is version 3.9.2, but toolkit requires 3.10"),
        (Image(python="3.12"), "no valid report"),
        (Image(lacks=("a\0b",)), "no valid report"),
    ],
)
def test_an_image_that_cannot_run_jobs_is_refused(image: Image, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        image_report("lab:1", "sha256:1", (), image.run)
    runs = [command for command in image.commands if command.argv[1] == "run"]
    assert len(runs) == (2 if image.status == 125 else 1)


def test_a_probe_that_fails_on_a_host_names_the_host_and_its_engine() -> None:
    with pytest.raises(ImageError, match="the runtime failed") as caught:
        image_report("lab:1", "sha256:1", (), Image(status=125).run, "box1", "podman")
    assert caught.value.host == "box1"
    assert (
        caught.value.fix
        == "on box1: podman run -it --rm --entrypoint sh lab:1  # then run: python3 --version"
    )
    with pytest.raises(ImageError, match="AppArmor is enabled on the host") as caught:
        image_report("lab:1", "sha256:1", (), Image(status=127, said=_NO_APPARMOR).run, "box1")
    assert caught.value.fix == "on box1: sudo apt-get install apparmor && sudo systemctl restart docker"


@pytest.mark.parametrize("end", [Result(124), KeyboardInterrupt(), Unreachable("gone", "", "gpu1")])
def test_the_container_of_a_probe_that_does_not_end_is_removed(end: Result | BaseException) -> None:
    """Its program can ignore the signals that the end of `docker run` sends, and print without end."""
    commands: list[str] = []

    def run(command: Command, seconds: float) -> Result:
        commands.append(command.line())
        if isinstance(end, Result):
            return end
        raise end

    with pytest.raises((ToolkitError, KeyboardInterrupt)):
        image_report("lab:1", "sha256:1", (), run)
    started, removed = commands
    name = removed.removeprefix("docker rm --force ")
    assert f" --name {name} " in started and " --log-driver none " in started


def test_the_program_reports_this_python() -> None:
    def run(command: Command, seconds: float) -> Result:
        assert "py-spy" in settings_of(command)[1]["programs"]
        argv = [str(token) for token in command.argv]
        done = subprocess.run(
            argv[argv.index("python3") :],
            input=command.stdin,
            capture_output=True,
            timeout=seconds,
            check=False,
        )
        return Result(done.returncode, "", done.stderr.decode(), raw=done.stdout)

    report = image_report("lab:1", "sha256:1", (), run)
    assert report.python[:2] >= (3, 10) and report.executable
    assert set(report.lacks) <= {
        "/usr/sbin/sshd",
        "horovodrun",
        "mpirun",
        "py-spy",
        "python:accelerate",
        "python:deepspeed",
        "python:ray",
        "ssh",
        "torchrun",
    }
