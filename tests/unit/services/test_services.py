"""Services: their containers, the steps of `up`, their status, and refusals before any contact."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import yaml

from tests.golden import check_golden
from tests.unit import cluster_world as world
from tests.unit.conftest import Run
from tests.unit.each import for_each
from tests.unit.hosts_here import execute, hosts
from toolkit.cli import logs
from toolkit.cli.forward import _wanted
from toolkit.cli.line import CommandLine
from toolkit.cluster.layout import Observed, make_layout
from toolkit.cluster.ownership import ours, services_of, with_processes
from toolkit.cluster.session import Session
from toolkit.core.command import Command, Result
from toolkit.core.engines import translate_engine
from toolkit.core.facts import ContainerFacts, Facts, StateFile
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.hostsfile.inventory import Inventory, Service
from toolkit.lifecycle.renderings import TARGETS
from toolkit.lifecycle.up import plan_up
from toolkit.plan.show import plan_text
from toolkit.plan.steps import Phase, Plan
from toolkit.plan.steps import Run as RunStep
from toolkit.protocol.names import LABEL_SERVICE, service_container
from toolkit.services import control, forward
from toolkit.services.control import address_of
from toolkit.services.plan import service_of
from toolkit.services.status import (
    address_command,
    health_command,
    service_states,
    services_text,
    to_ask,
)

HOSTS = (
    world.HOSTS
    + """\
services:
  board:
    command: tensorboard --logdir /out/runs --host 0.0.0.0 --port 6006
    ports: [6006]
    health: /
  triton:
    image: nvcr.io/nvidia/tritonserver:26.10-py3
    command: [tritonserver, --model-repository, /models]
    host: gpu1
    ports: [8000, 8001]
    gpus: 1
    health: /v2/health/ready
    start_within: 600
    mounts: [/srv/models:/models:ro]
  plain:
    command: [sleep, infinity]
    host: gpu2
    env: {COLOUR: it's $5}
"""
)


def inventory() -> Inventory:
    return world.inventory(HOSTS)


def service(name: str, host: str, state: str = "running", **changes: object) -> ContainerFacts:
    found = world.running("demo", host, f"service-{name}", service=name)
    return replace(found, state=state, **changes)  # type: ignore[arg-type]


def facts(**services: ContainerFacts) -> dict[str, Facts]:
    """The cluster as it runs, with these services; by name, on main unless the label says another host."""
    said = world.facts_when_up()
    for found in services.values():
        host = found.labels["toolkit.host"]
        said[host] = replace(said[host], containers=(*said[host].containers, found))
    return said


def test_up_with_services() -> None:
    check_golden("plan/up-services.txt", plan_text(plan_up(world.layout(HOSTS), world.INSIDE)))


@pytest.mark.parametrize("target", ["compose", "docker"])
def test_services_are_rendered_with_their_host(target: str) -> None:
    files = {name: text for name, text in TARGETS[target](world.layout(HOSTS)).items() if "cpu3" not in name}
    assert ("gpu1/service-triton.sh" in files) == (target == "docker")
    for name, text in files.items():
        if target == "compose" or "service" in name:
            check_golden(f"render/services/{target}/{name}", text)


def test_nothing_of_a_service_is_published_and_it_sees_no_key() -> None:
    layout = world.layout(HOSTS)
    for wanted in layout.inventory.services:
        place = layout.place(wanted.host)
        assert place is not None
        container = service_of(layout, place, wanted)
        assert container.network == "bridge" and container.cap_drop == ("ALL",)
        assert container.user == f"{place.facts.uid}:{place.facts.gid}"
        assert not any("/conf" in mount.source or "/jobs" in mount.source for mount in container.mounts)
    for files in (TARGETS["docker"](layout), TARGETS["compose"](layout)):
        assert not any("publish" in text or "ports:" in text for text in files.values())


@pytest.mark.parametrize(
    ("engine", "image", "pulled"),
    [
        ("docker", "ollama/ollama:1", "ollama/ollama:1"),
        ("podman", "ollama/ollama:1", "docker.io/ollama/ollama:1"),
        ("podman", "redis:7", "docker.io/library/redis:7"),
        ("podman", "quay.io/a/b:1", "quay.io/a/b:1"),
    ],
)
def test_podman_pulls_the_image_of_a_service_by_its_name_with_a_registry(
    engine: str, image: str, pulled: str
) -> None:
    text = HOSTS.replace("  plain:\n", f"  plain:\n    image: {image}\n") + f"engine: {engine}\n"
    said = {name: replace(f, engine=engine) for name, f in world.cluster_facts().items()}
    plan = plan_up(make_layout(world.inventory(text), Observed(said)), world.INSIDE)
    (pull,) = (step for step in plan.steps if isinstance(step, RunStep) and step.title == f"pull {image}")
    assert pull.command.argv[-1] == pulled and f"on gpu2: {engine} pull {pulled}  #" in pull.fix
    # An image that was built or loaded on the host is used by the name in the hosts file.
    assert isinstance(pull.unless, Command) and pull.unless.argv[-1] == image


@pytest.mark.parametrize(("engine", "rootless"), [("podman", True), ("podman", False), ("docker", True)])
def test_services_are_refused_with_rootless_podman(engine: str, rootless: bool) -> None:
    """Neither the host nor a container on the host's network reaches the bridge of rootless Podman."""
    said = {n: replace(f, engine=engine, rootless=rootless) for n, f in world.cluster_facts().items()}
    made = make_layout(world.inventory(f"{HOSTS}engine: {engine}\n"), Observed(said))
    if engine == "docker" or not rootless:
        plan_up(made, world.INSIDE)
        return
    with pytest.raises(NotReady, match=r"service .* cannot run with rootless Podman") as caught:
        plan_up(made, world.INSIDE)
    assert caught.value.host and "set engine: docker" in caught.value.fix
    for target in ("docker", "compose"):
        with pytest.raises(NotReady, match="rootless Podman"):
            TARGETS[target](made)
    plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)


def test_a_service_gets_its_gpus_and_no_others() -> None:
    layout = world.layout(HOSTS)
    main = layout.main
    assert main is not None
    triton = service_of(layout, main, layout.inventory.service("triton"))
    board = service_of(layout, main, layout.inventory.service("board"))
    assert (triton.gpus, board.gpus) == ("0", "")
    assert ("NVIDIA_VISIBLE_DEVICES", "void") in board.env
    for changes in ({"gpus": 3}, {"gpus": 2, "gpu_ids": ("0", "7")}):
        with pytest.raises(NotReady) as caught:
            service_of(layout, main, replace(layout.inventory.service("triton"), **changes))  # type: ignore[arg-type]
        assert "services/triton/gpus" in caught.value.fix
    broken = replace(main, facts=replace(main.facts, gpus=(), nvidia_runtime=True))
    board = service_of(layout, broken, layout.inventory.service("board"))
    assert ("NVIDIA_VISIBLE_DEVICES", "void") in board.env
    labeled = replace(main, facts=replace(main.facts, selinux=True))
    triton, board = (service_of(layout, labeled, layout.inventory.service(n)) for n in ("triton", "board"))
    assert triton.security == ("no-new-privileges", "label=disable")
    assert board.security == ("no-new-privileges",)


def test_one_that_the_file_does_not_name_any_more_goes() -> None:
    said = facts(old=service("old", "gpu2"), board=service("board", "gpu1"))
    plan = plan_up(make_layout(inventory(), Observed(said)), world.INSIDE)
    titles = [(step.host, step.title) for step in plan.steps if step.title.startswith("remove ")]
    title = "remove toolkit-demo-service-old, because hosts.yaml does not assign this service to the host"
    assert titles == [("gpu2", title)]


def test_a_service_whose_home_was_deleted_is_recreated() -> None:
    said = {n: replace(f, images=(world.NAMED,)) for n, f in world.facts_when_up().items()}
    made = make_layout(inventory(), Observed(said))
    place = made.places[0]
    wanted = service_of(made, place, made.inventory.service("board"))
    running = replace(service("board", "gpu1"), labels=dict(wanted.labels))
    titles = []
    for files in ((StateFile("services/board", 0o40700),), ()):
        facts = replace(place.facts, containers=(*place.facts.containers, running), state_files=files)
        plan = plan_up(make_layout(inventory(), Observed({**said, "gpu1": facts})), world.INSIDE)
        removed = [step for step in plan.steps if step.title.startswith("remove ")]
        titles += [step.title for step in removed]
        assert not [
            step for step in removed if isinstance(step, RunStep) and "--volumes" in step.command.line()
        ]
    assert titles == [
        "remove toolkit-demo-service-board, because directories or files of its mounts were deleted"
    ]


_ENGINE = """#!/bin/sh
echo "$*" >>{folder}/log
case "$*" in
run*) touch {folder}/runs; echo %s ;;
*toolkit.owner*) echo alice ;;
unpause*) touch {folder}/runs ;;
*toolkit.digest*) [ ! -e {folder}/runs ] || echo "running {digest}" ;;
*) echo %s ;;
esac
""" % (("a" * 64,) * 2)


@pytest.mark.parametrize(
    ("state", "digest", "calls"),
    [
        ("exited", "", ["rm --force toolkit-demo-service-board", "run --detach"]),
        ("paused", "", ["rm --force toolkit-demo-service-board", "run --detach"]),
        ("paused", "as wanted", ["unpause toolkit-demo-service-board"]),
        ("exited", "as wanted", ["rm --force toolkit-demo-service-board", "run --detach"]),
    ],
)
def test_up_removes_no_volume_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, digest: str, calls: list[str]
) -> None:
    """An image can put the data of a database into an anonymous volume."""
    made = make_layout(inventory(), Observed(world.facts_when_up()))
    wanted = service_of(made, made.places[0], made.inventory.service("board"))
    found = replace(
        service("board", "gpu1", state, started=5.0), **({"labels": dict(wanted.labels)} if digest else {})
    )
    plan = plan_up(make_layout(inventory(), Observed(facts(board=found))), world.INSIDE)
    (step,) = (step for step in plan.steps if step.title == f"start container {wanted.name}")
    text = _ENGINE.replace("{folder}", str(tmp_path)).replace("{digest}", wanted.digest())
    (tmp_path / "docker").write_text(text)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (outcome,) = execute(Plan("up demo", (Phase("services", (step,)),)), hosts("gpu1")).outcomes
    assert outcome.status == "ok", outcome
    assert isinstance(step, RunStep) and "docker" not in translate_engine(step.command, "podman").argv
    ran = [line for line in (tmp_path / "log").read_text().splitlines() if "inspect" not in line]
    assert [line[: len(call)] for line, call in zip(ran, calls, strict=True)] == calls


_DOCKER = """#!/bin/sh
case $1 in
container) [ -e {folder}/there ] || exit 1; [ "$3" != --format ] || echo {user} ;;
rm) {rm} ;;
esac
"""


@pytest.mark.parametrize(
    ("rm", "status", "detail"),
    [
        ("rm {folder}/there", "ok", ""),
        ("echo 'cannot kill: device or resource busy' >&2; exit 1", "failed", "device or resource busy"),
        ("rm {folder}/there; echo 'No such container' >&2; exit 1", "ok", ""),  # it ended meanwhile
    ],
)
def test_a_service_that_cannot_be_removed_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rm: str, status: str, detail: str
) -> None:
    said = facts(old=service("old", "gpu2"))
    plan = plan_up(make_layout(inventory(), Observed(said)), world.INSIDE)
    (step,) = (step for step in plan.steps if step.title.startswith("remove "))
    text = _DOCKER.replace("{rm}", rm).replace("{user}", said["gpu2"].user)
    (tmp_path / "docker").write_text(text.replace("{folder}", str(tmp_path)))
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "there").touch()
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert step.fix == "on gpu2: docker rm --force toolkit-demo-service-old"
    assert isinstance(step, RunStep) and "--volumes" not in step.command.line()
    (outcome,) = execute(Plan("up demo", (Phase("services", (step,)),)), hosts("gpu2")).outcomes
    assert outcome.status == status and detail in outcome.detail, outcome
    assert (tmp_path / "there").exists() == (status == "failed")


def test_services_are_no_places_for_ranks() -> None:
    said = facts(board=service("board", "gpu1"))["gpu1"]
    assert [c.name for c in ours("demo", said)] == ["toolkit-demo-main"]
    assert [c.name for c in services_of("demo", said)] == [service_container("demo", "board")]


def test_a_label_of_the_image_makes_no_service_of_a_container() -> None:
    """The image of a `docker commit` has the labels of the container, here of a service."""
    said = world.facts_when_up()
    for host, found in said.items():
        containers = tuple(replace(c, labels={LABEL_SERVICE: "board", **c.labels}) for c in found.containers)
        said[host] = replace(found, containers=containers)
    assert [c.name for c in with_processes("demo", said["gpu1"])] == ["toolkit-demo-main"]
    assert not any(services_of("demo", one) for one in said.values())
    plan = plan_up(make_layout(world.inventory(), Observed(said)), world.INSIDE)
    assert not [step.title for step in plan.steps if step.title.startswith("remove ")]


def test_the_status_of_services() -> None:
    said = facts(
        board=service("board", "gpu1"), triton=service("triton", "gpu1"), plain=service("plain", "gpu2")
    )
    assert [one.name for one in to_ask(inventory(), said)] == ["board", "triton"]
    states = service_states(inventory(), said, {}, {"triton": "the service returned HTTP status 503"})
    assert [(s.service, s.state, s.ok) for s in states] == [
        ("board", "healthy", True),
        ("triton", "not healthy", False),
        ("plain", "running", True),
    ]
    assert "fix for triton: toolkit logs --service triton" in services_text(states)


def test_services_that_do_not_run() -> None:
    ended = service("board", "gpu1", "exited", exit_code=3, started=5.0, ended=9.0)
    said = facts(board=ended)
    gone = Unreachable("no route", "look at it", "gpu2")
    errors = {"gpu2": gone}
    del said["gpu2"]
    states = {s.service: s for s in service_states(inventory(), said, errors, {})}
    assert states["board"].state == "exited (3)" and "exit code 3" in states["board"].note
    assert states["triton"].state == "no container" and states["triton"].fix == "toolkit up"
    assert (states["plain"].state, states["plain"].note) == ("unreachable", "no route")


def address(status: int, output: str) -> str:
    """Return the address of a service whose host answers so about its container."""
    session = Session(inventory())
    answer = Result(status, output, "", 0.0)
    session.runners = {"gpu1": SimpleNamespace(run=lambda *_: answer)}  # type: ignore[dict-item]
    return address_of(session, session.inventory.service("board"))


def test_the_address_of_a_service_that_runs() -> None:
    assert address(0, "running 172.17.0.5 \n") == "172.17.0.5"
    assert address(0, "running 172.17.0.5 10.77.4.2 \n") == "172.17.0.5", "a user can connect more networks"


def test_the_health_check_of_a_service_in_two_networks_uses_one_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = '#!/bin/sh\n[ "$1" = exec ] && echo "$@" || echo "172.17.0.5 10.77.4.2 "\n'
    (tmp_path / "docker").write_text(docker)
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asking = health_command(inventory(), inventory().service("board"))
    found = subprocess.run([str(word) for word in asking.argv], capture_output=True, text=True, check=True)
    assert found.stdout.endswith(" http://172.17.0.5:6006/\n")
    for each in (asking, address_command(inventory(), inventory().service("board"))):
        text = each.line()
        assert "{{with .IPAddress}}{{.}} {{end}}" in text
        places = [text.index(f'index .NetworkSettings.Networks "{name}"') for name in ("bridge", "podman")]
        assert max(places) < text.index("range"), "the range is sorted by name: a-macvlan before bridge"


@pytest.mark.parametrize(
    ("status", "output", "message"),
    [
        (0, "running \n", "the container of service board has no IP address"),
        (0, "exited 172.17.0.5\n", "the container of service board is not running: its state is exited"),
        (1, "", "the container of service board does not exist or cannot be inspected"),
    ],
)
def test_a_service_that_does_not_run_has_no_address(status: int, output: str, message: str) -> None:
    with pytest.raises(NotReady, match=message):
        address(status, output)


def test_the_log_of_a_service_is_followed_until_the_connection_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho "$@"; echo error >&2; exec sleep 30\n')
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    seen: list[bytes] = []

    def stream(command: Command, sink: Callable[[bytes], None], source: Iterable[bytes]) -> Result:
        with subprocess.Popen(command.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(next(iter(source)))
            sink(process.stdout.readline() + process.stdout.readline())
            process.stdin.close()
            seen.append(str(process.wait(5)).encode())
        return Result(0)

    session = Session(inventory())
    session.facts = facts(board=service("board", "gpu1"))
    session.runners = {"gpu1": SimpleNamespace(stream=stream)}  # type: ignore[dict-item]
    monkeypatch.setattr(control, "_BEAT_S", 0.01)
    control.show_log(session, session.inventory.service("board"), seen.append, ["--follow"])
    assert seen == [b"logs --follow toolkit-demo-service-board\nerror\n", b"143"]


@pytest.mark.parametrize(
    ("printed", "error", "reason"),
    [
        (b"step 1\nError response from daemon: no logs for driver none\n", "", "no logs for driver none"),
        (b"step 1\n", "Connection reset", "Connection reset"),
    ],
)
def test_a_log_that_docker_does_not_print_is_reported_with_the_reason(
    printed: bytes, error: str, reason: str
) -> None:
    def stream(command: Command, sink: Callable[[bytes], None], source: object) -> Result:
        sink(printed[:9])
        sink(printed[9:])
        return Result(1, "", error, 0.0)

    seen: list[bytes] = []
    session = Session(inventory())
    session.facts = facts(board=service("board", "gpu1"))
    session.runners = {"gpu1": SimpleNamespace(stream=stream)}  # type: ignore[dict-item]
    with pytest.raises(ToolkitError) as caught:
        control.show_log(session, session.inventory.service("board"), seen.append, [])
    assert caught.value.what == f"cannot read the log of service board: {reason}"
    assert b"".join(seen) == printed


class _Forward:
    """A port of this machine without a socket."""

    open: ClassVar[list[int]] = []

    def __init__(self, port: int, dial: object) -> None:
        self.port = port
        self.open.append(port)


@pytest.mark.parametrize(("refused", "opened"), [([8001], [8000]), ([8000], [8001]), ([8000, 8001], [])])
def test_a_port_that_does_not_listen_hides_no_other_port(
    monkeypatch: pytest.MonkeyPatch, refused: list[int], opened: list[int]
) -> None:
    def dial(place: tuple[str, int]) -> Any:
        if place[1] in refused:
            raise NotReady(f"the host cannot connect to {place[0]}:{place[1]}", "toolkit status", "gpu1")
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(forward, "Forward", _Forward)
    monkeypatch.setattr(forward, "address_of", lambda session, wanted: "172.17.0.5")
    monkeypatch.setattr(_Forward, "open", [])
    session = Session(inventory())
    session.runners = {"gpu1": SimpleNamespace(dial=dial, is_open=True)}  # type: ignore[dict-item]
    told: list[str] = []
    doors = forward.Doors(session, told.append)
    triton = inventory().service("triton")
    if opened:
        assert [door.leads_to for door in doors.open(triton)] == opened
    else:
        with pytest.raises(NotReady, match=r"172\.17\.0\.5:8000"):
            doors.open(triton)
    assert _Forward.open == opened, "a port that is not in the result must not listen"
    assert len(told) == len(refused) and all(line.startswith("triton: gpu1: the host") for line in told)
    monkeypatch.setattr(_Forward, "open", [])
    if 8000 in refused:
        with pytest.raises(NotReady, match=r"172\.17\.0\.5:8000"):
            doors.open(triton, wanted=18000)
        assert _Forward.open == [], "the wanted port is the reason for the command"
    else:
        assert [door.port for door in doors.open(triton, wanted=18000)] == [18000]


@pytest.mark.parametrize(("ports", "pages"), [([8001], []), ([8000, 8001], ["http://127.0.0.1:8000/"])])
def test_only_the_first_port_of_a_service_is_opened_in_the_browser(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ports: list[int], pages: list[str]
) -> None:
    class Doors:
        def __init__(self, *args: object) -> None: ...

        def open(self, service: Service, wanted: int) -> list[forward.Door]:
            return [forward.Door(service.name, service.host, port, port) for port in ports]

        def close(self) -> None: ...

    class Event:
        def wait(self) -> None:
            raise KeyboardInterrupt

    opened: list[str] = []
    command = importlib.import_module("toolkit.cli.forward")
    monkeypatch.setattr(command, "connect", lambda *args: contextlib.nullcontext())
    monkeypatch.setattr(command, "Doors", Doors)
    monkeypatch.setattr(command, "threading", SimpleNamespace(Event=Event))
    monkeypatch.setattr(command, "webbrowser", SimpleNamespace(open=opened.append))
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    assert run("forward", "triton", "--open")[0] == 0
    assert opened == pages


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("forward", "bord"), "bord: is not a service in hosts.yaml; the services are board, triton, plain"),
        (("forward", "plain"), "plain: has no ports; set services/plain/ports in hosts.yaml"),
        (("forward", "--port", "7000"), "--port: requires the name of one service"),
        (("forward", "board", "--port", "0"), "--port: should be a whole number from 1 to 65535"),
        (("logs", "--service", "bord"), "--service: bord is not a service in hosts.yaml"),
        (("logs", "x", "--service", "board"), "JOB: cannot be combined with --service"),
        (("logs", "--service", "board", "--rank", "0"), "--rank: cannot be combined with --service"),
    ],
)
def test_refused_before_any_contact(run: Run, tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    status, out, err = run(*words)
    assert (status, out) == (2, "") and message in err


def test_forward_opens_the_services_that_have_ports() -> None:
    for names, opened in (([], ["board", "triton"]), (["triton"], ["triton"])):
        line = CommandLine()
        wanted = _wanted(line, inventory(), names)
        line.end()
        assert [one.name for one in wanted] == opened


@for_each(
    ("since", "words"),
    [
        (("--since", "0s"), ["--since", "0s"]),
        (("--since", "1m"), ["--since", "60s"]),
        (("--since", "1970-01-01T00:00:00Z"), ["--since", "0.000"]),
        ((), []),
    ],
)
def test_the_output_of_a_service_since_a_moment(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, since: tuple[str, ...], words: list[str]
) -> None:
    (tmp_path / "hosts.yaml").write_text(HOSTS)
    shown: list[list[str]] = []
    monkeypatch.setattr(logs, "_service_log", lambda inventory, name, words, *more: shown.append(words))
    assert run("logs", "--service", "board", *since)[0] == 0
    assert shown == [words]


def test_forward_without_services_says_so(run: Run, tmp_path: Path) -> None:
    (tmp_path / "hosts.yaml").write_text(world.HOSTS)
    status, _, err = run("forward")
    assert status == 2 and "hosts.yaml has no services" in err
    (tmp_path / "hosts.yaml").write_text(f"{world.HOSTS}services:\n  web: {{image: 'nginx:1'}}\n")
    status, _, err = run("forward")
    assert status == 2 and "no service in hosts.yaml has ports" in err
    (tmp_path / "hosts.yaml").write_text(world.HOSTS)
    status, _, err = run("logs", "--service", "board")
    assert status == 2 and "board is not a service in hosts.yaml; the file has no services" in err


def test_compose_leaves_the_images_own_command_alone() -> None:
    data = yaml.safe_load(HOSTS)
    data["services"] = {"web": {"image": "nginx:1", "ports": [80]}}
    text = TARGETS["compose"](world.layout(json.dumps(data)))["gpu1/compose.yaml"]
    services = yaml.safe_load(text)["services"]
    assert "command" not in services["toolkit-demo-service-web"]
    assert services["toolkit-demo-service-web"]["image"] == "nginx:1"
