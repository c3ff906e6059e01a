"""Text for other programs: goldens for all of it, and the same container from docker run and compose."""

from __future__ import annotations

import csv
import dataclasses
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.golden import check_golden
from tests.parity import SHOWN, variants
from tests.unit import cluster_world as world
from tests.unit.each import for_each
from toolkit.cluster.containers import group_file, hosts_file, passwd_file, ssh_config, sshd_config
from toolkit.cluster.keys import authorized_keys_line, known_hosts_line
from toolkit.core.container import Container, Mount, docker_run_args, docker_run_script
from toolkit.errors import ToolkitError
from toolkit.lifecycle import renderings
from toolkit.lifecycle.renderings import TARGETS, compose_file, compose_files
from toolkit.network.choose import DataPath

PATH = DataPath("gpu2", "10.77.0.3", "enp3s0", "10.77.0.0/24", "given")
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIExample"


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_has_goldens(target: str) -> None:
    files = TARGETS[target](world.layout())
    assert files
    for name, text in files.items():
        check_golden(f"render/{target}/{name}", text)


def test_lines_that_let_main_in() -> None:
    lines = known_hosts_line(PATH, 12345, KEY) + authorized_keys_line("10.77.0.2", KEY)
    check_golden("render/key-lines.txt", lines)
    assert lines.count("\n") == 2


def test_names_in_the_container() -> None:
    place = world.layout()
    texts = [f"# hosts\n{hosts_file(place.paths)}"]
    for spot in place.places:
        texts.append(f"# {spot.name} passwd\n{passwd_file(spot.facts, place.user)}")
        texts.append(f"# {spot.name} group\n{group_file(spot.facts, place.user)}")
    root = world.facts(user="root", uid=0, gid=0, groups=((0, "root"), (998, "docker")))
    texts.append(f"# root passwd\n{passwd_file(root, 'root')}# root group\n{group_file(root, 'root')}")
    check_golden("render/etc.txt", "\n".join(texts))


def test_every_passwd_names_the_one_user_with_the_hosts_uid() -> None:
    for uid in (0, 1000):
        lines = [line.split(":") for line in passwd_file(world.facts(uid=uid), "alice").splitlines()]
        first = next(cells for cells in lines if cells[0] == "alice")
        assert first[2] == str(uid)
        assert [cells[0] for cells in lines].count("alice") == 1


@pytest.mark.parametrize("bad", ["a b", "a\nb", 'a"b', "a#b", "", "a\\b", "x\x00"])
def test_what_cannot_stand_in_an_ssh_configuration_is_refused(bad: str) -> None:
    with pytest.raises(ToolkitError):
        ssh_config((PATH,), 12345, bad)
    with pytest.raises(ToolkitError):
        sshd_config(bad, 12345, "alice", ())
    with pytest.raises(ToolkitError):
        known_hosts_line(dataclasses.replace(PATH, host=bad), 12345, KEY)


def test_a_second_line_is_refused_where_lines_are_hosts() -> None:
    two = f"{KEY}\ngpu3 {KEY}"
    for render in (
        lambda: known_hosts_line(PATH, 12345, two),
        lambda: authorized_keys_line("10.77.0.2", two),
        lambda: hosts_file((dataclasses.replace(PATH, address="10.77.0.3\n10.77.0.66"),)),
        lambda: hosts_file((dataclasses.replace(PATH, host="gpu2\n10.77.0.66 gpu1"),)),
        lambda: hosts_file((dataclasses.replace(PATH, address="10.77.0.3 gpu1"),)),
    ):
        with pytest.raises(ToolkitError):
            render()


@pytest.mark.parametrize("bad", ['a"b', "a\nb", "a\\b"])
def test_a_variable_that_sshd_cannot_pass_on_is_refused_by_name(bad: str) -> None:
    with pytest.raises(ToolkitError, match="variable ODD"):
        sshd_config("10.0.0.1", 12345, "alice", (("ODD", bad),))


def test_sshd_without_variables_sets_none() -> None:
    assert "SetEnv" not in sshd_config("10.0.0.1", 12345, "alice", ())


# One row per field of Container: how `docker run` says it, how compose says it, what both shall mean.
Flags = dict[str, list[str]]
Reader = tuple[Callable[[Flags], Any], Callable[[dict[str, Any]], Any], Callable[[Container], Any]]


def _reserved(service: dict[str, Any], driver: str = "") -> list[str]:
    devices = service.get("deploy", {"resources": {"reservations": {"devices": []}}})
    (device,) = [d for d in devices["resources"]["reservations"]["devices"] if d.get("driver", "") == driver]
    assert device["capabilities"] == ["gpu"]
    return ["all"] if device.get("count") == "all" else device["device_ids"]


def _mount(text: str) -> tuple[str, str, bool]:
    # Docker reads it as one line of CSV.
    (row,) = csv.reader([text])
    cells = dict(part.partition("=")[::2] for part in row)
    assert cells["type"] == "bind"
    return cells["source"], cells["target"], "readonly" in cells


FIELDS: dict[str, Reader] = {
    "name": (lambda d: d["--name"], lambda c: [c["container_name"]], lambda x: [x.name]),
    "hostname": (lambda d: d["--hostname"], lambda c: [c["hostname"]], lambda x: [x.hostname]),
    "image": (lambda d: d["image"], lambda c: [c["image"]], lambda x: [x.image]),
    "argv": (lambda d: d["argv"], lambda c: c["command"], lambda x: list(x.argv)),
    "entrypoint": (lambda d: d["--entrypoint"], lambda c: c["entrypoint"], lambda x: [x.entrypoint]),
    "user": (lambda d: d["--user"], lambda c: [c["user"]], lambda x: [x.user]),
    "userns": (lambda d: d["--userns"], lambda c: [c["userns_mode"]], lambda x: [x.userns]),
    "groups": (lambda d: d["--group-add"], lambda c: c["group_add"], lambda x: [str(g) for g in x.groups]),
    "workdir": (lambda d: d["--workdir"], lambda c: [c["working_dir"]], lambda x: [x.workdir]),
    "env": (
        lambda d: dict(e.partition("=")[::2] for e in d["--env"]),
        lambda c: dict(e.partition("=")[::2] for e in c["environment"]),
        lambda x: dict(x.env),
    ),
    "mounts": (
        lambda d: [_mount(m) for m in d["--mount"]],
        lambda c: [(v["source"], v["target"], v["read_only"]) for v in c["volumes"] if v["type"] == "bind"],
        lambda x: [(m.source, m.target, m.read_only) for m in x.mounts],
    ),
    "labels": (
        lambda d: dict(e.partition("=")[::2] for e in d["--label"]),
        lambda c: dict(e.partition("=")[::2] for e in c["labels"]),
        lambda x: dict(x.labels),
    ),
    "gpus": (
        lambda d: d["--gpus"][0].strip('"').removeprefix("device=").split(","),
        lambda c: _reserved(c),
        lambda x: x.gpus.split(","),
    ),
    # Docker tells the two apart by the leading slash.
    "devices": (
        lambda d: [name for name in d["--device"] if name.startswith("/")],
        lambda c: c["devices"],
        lambda x: list(x.devices),
    ),
    "cdi": (
        lambda d: [name for name in d["--device"] if not name.startswith("/")],
        lambda c: _reserved(c, "cdi"),
        lambda x: list(x.cdi),
    ),
    "shm_bytes": (
        lambda d: [int(n) for n in d["--shm-size"]],
        lambda c: [c["shm_size"]],
        lambda x: [x.shm_bytes],
    ),
    "ulimits": (
        lambda d: d["--ulimit"],
        lambda c: [f"{n}={u['soft']}:{u['hard']}" for n, u in c["ulimits"].items()],
        lambda x: [f"{u.name}={u.soft}:{u.hard}" for u in x.ulimits],
    ),
    "cap_drop": (lambda d: d["--cap-drop"], lambda c: c["cap_drop"], lambda x: list(x.cap_drop)),
    "cap_add": (lambda d: d["--cap-add"], lambda c: c["cap_add"], lambda x: list(x.cap_add)),
    "security": (lambda d: d["--security-opt"], lambda c: c["security_opt"], lambda x: list(x.security)),
    "pids": (lambda d: [int(n) for n in d["--pids-limit"]], lambda c: [c["pids_limit"]], lambda x: [x.pids]),
    "network": (lambda d: d["--network"], lambda c: [c["network_mode"]], lambda x: [x.network]),
    "init": (lambda d: bool(d["--init"]), lambda c: c["init"], lambda x: x.init),
    "stop_seconds": (
        lambda d: [int(n) for n in d["--stop-timeout"]],
        lambda c: [int(c["stop_grace_period"].removesuffix("s"))],
        lambda x: [x.stop_seconds],
    ),
}


def flags(container: Container) -> Flags:
    """`docker run` read as docker reads it: flags with one value each, then the image and its argv."""
    argv = list(docker_run_args(container))
    assert argv[:3] == ["docker", "run", "--detach"]
    found: Flags = defaultdict(list)
    rest = argv[3:]
    while rest[0].startswith("--"):
        flag = rest.pop(0)
        found[flag].append("true" if flag == "--init" else rest.pop(0))
    found["image"], found["argv"] = [rest[0]], rest[1:]
    return found


def service(container: Container) -> dict[str, Any]:
    (found,) = yaml.safe_load(compose_file(container, "worker"))["services"].values()
    value: dict[str, Any] = _undollar(found)
    return value


def _undollar(value: Any) -> Any:
    """Compose takes ``$$`` for one ``$``; a single one would be a variable of its own."""
    if isinstance(value, dict):
        return {_undollar(k): _undollar(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_undollar(v) for v in value]
    if isinstance(value, str):
        assert "$" not in value.replace("$$", "")
        return value.replace("$$", "$")
    return value


@for_each("field", [f.name for f in dataclasses.fields(Container)])
def test_docker_run_and_compose_say_the_same(field: str) -> None:
    assert field in FIELDS, f"Container.{field} has no rendering: add it to both, and to this table"
    in_docker, in_compose, meant = FIELDS[field]
    subject = world.container()
    assert in_docker(flags(subject)) == meant(subject)
    assert in_compose(service(subject)) == meant(subject)


# Those that render no container; any other target must express all of it.
WITHOUT = {"ssh"}


@pytest.mark.parametrize("target", [t for t in TARGETS if t not in WITHOUT])
def test_a_target_expresses_every_place_of_a_container(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rendered(container: Container) -> object:
        monkeypatch.setattr(renderings, "cluster_container", lambda layout, place: container)
        try:
            return TARGETS[target](world.layout())
        except ToolkitError as error:
            return str(error)  # refused is not dropped

    plain = rendered(world.container())
    assert isinstance(plain, dict)
    others = dict(variants(world.container()))
    assert {"shm_bytes", "mounts[0].read_only", "ulimits[0].hard", "labels[1][0]", "argv[3]"} <= set(others)
    assert [name for name, other in others.items() if rendered(other) == plain] == []


@pytest.mark.parametrize("target", sorted(WITHOUT))
def test_the_targets_without_a_container_have_none(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renderings, "cluster_container", None)
    assert TARGETS[target](world.layout())


def test_docker_inspect_has_a_reader_for_every_field() -> None:
    assert set(SHOWN) == {f.name for f in dataclasses.fields(Container)}, "see tests/parity.py"


@for_each("field", [f.name for f in dataclasses.fields(Container)])
def test_no_field_is_left_at_its_default_in_the_parity_test(field: str) -> None:
    (spec,) = (f for f in dataclasses.fields(Container) if f.name == field)
    value = getattr(world.container(), field)
    if field in ("cap_drop", "security", "network", "init"):
        value = getattr(world.container(cap_drop=(), security=(), network="none", init=False), field)
    assert value != spec.default


@pytest.mark.parametrize(
    ("field", "value"),
    [("init", False), ("network", "none"), ("cap_drop", ("NET_RAW",)), ("security", ("seccomp=unconfined",))],
)
def test_other_values_than_the_defaults(field: str, value: object) -> None:
    in_docker, in_compose, meant = FIELDS[field]
    subject = world.container(**{field: value})
    assert in_docker(flags(subject)) == in_compose(service(subject)) == meant(subject)


@pytest.mark.parametrize(
    "path", ["/a,b", '/a"b', "/a b", '/a",b=c', "/a$b", "/\u00fc", "/\U0001f600", "/a\u2028b"]
)
def test_mounts_of_awkward_paths(path: str) -> None:
    in_docker, in_compose, meant = FIELDS["mounts"]
    subject = world.container(mounts=(Mount(path, f"/target{path}", True),))
    assert in_docker(flags(subject)) == in_compose(service(subject)) == meant(subject)


def test_the_script_has_one_option_a_line_and_the_command_last() -> None:
    lines = docker_run_script(world.container()).splitlines()
    assert lines[-1].split()[0] == world.container().image
    first = lines.index("exec docker run \\") + 1
    assert all(line.count(" --") == 1 for line in lines[first:-1])


def test_a_dollar_in_a_labels_name_is_doubled_too() -> None:
    # Compose replaces in values alone; as the key of a mapping it would arrive as "$$".
    text = compose_file(world.container(labels=(("a$b", "c"),)), "worker")
    assert '- "a$$b=c"' in text


def test_a_compose_file_is_always_ascii() -> None:
    assert compose_file(world.container(env=(("A", "\u00fc\U0001f600\x85"),)), "worker").isascii()


def test_two_clusters_files_never_name_the_same_service() -> None:
    names = {
        name
        for cluster in ("one", "two")
        for text in compose_files(
            world.layout(world.HOSTS.replace("cluster: demo", f"cluster: {cluster}"))
        ).values()
        for name in yaml.safe_load(text)["services"]
    }
    assert names == {"toolkit-one-main", "toolkit-one-worker", "toolkit-two-main", "toolkit-two-worker"}


def test_gpus_by_cdi_have_goldens() -> None:
    subject = world.container(gpus="", cdi=("nvidia.com/gpu=all",))
    check_golden("render/cdi/docker.sh", docker_run_script(subject))
    check_golden("render/cdi/compose.yaml", compose_file(subject, "worker"))


def test_gpus_all_and_none() -> None:
    every, none = world.container(gpus="all"), world.container(gpus="", cdi=())
    assert flags(every)["--gpus"] == ["all"]
    assert _reserved(service(every)) == ["all"]
    assert "--gpus" not in flags(none)
    assert "deploy" not in service(none)


def test_a_bare_container_has_no_empty_keys() -> None:
    bare = Container("n", "h", "i", ("true",), "0:0", cap_drop=(), security=(), init=False)
    assert set(flags(bare)) == {
        *("--name", "--hostname", "--network", "--user", "--workdir"),
        *("--stop-timeout", "image", "argv"),
    }
    assert all(v not in (None, [], {}) for v in service(bare).values())


def test_a_shell_makes_the_same_argv_of_the_script(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\nprintf '%s\\0' docker \"$@\"\n")
    docker.chmod(0o755)
    odd = world.container(env=(("GREETING", 'it\'s $5\n`x` \\ "q"'),), argv=("sh", "-c", "a; b"))
    done = subprocess.run(
        ["sh", "-s"],
        input=docker_run_script(odd),
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert tuple(done.stdout.split("\0")[:-1]) == docker_run_args(odd)
