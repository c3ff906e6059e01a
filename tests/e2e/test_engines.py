"""Clusters that were started by hand, that lost their power, that another version of the toolkit made."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import toolkit as package
from tests.e2e import waiting
from tests.e2e.world import LAB, Toolkit, containers, marked, on, outer, sh
from tests.parity import differences, settings, variants
from tests.unit import cluster_world as world
from toolkit.cluster.probe import parse_facts, probe_command, read_probe
from toolkit.core.container import Container, Mount, Ulimit, docker_run_args
from toolkit.core.facts import Facts
from toolkit.lifecycle.renderings import compose_file
from toolkit.protocol.names import identity_reference

pytestmark = pytest.mark.lab

STATE = "/home/trainer/.local/state/toolkit"
# Engine 26 with Compose 2, engine 20.10 with docker-compose 1.29, engine 26 with the containerd store.
COMPOSE = {"box1": ("docker", "compose"), "box2": ("docker-compose",), "box3": ("docker", "compose")}
AWKWARD = "/srv/a b $HOME ${X} 'q\" ümläut 😀"


def by_hand(host: str, *argv: str, stdin: str = "", folder: str = "/home/trainer") -> str:
    """Run a command on a practice host as a person who is logged in there; return all that it says."""
    done = subprocess.run(
        ["docker", "exec", "-i", "-u", "trainer", "-w", folder, outer(host), *argv],
        input=stdin,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def put(host: str, path: str, text: str) -> None:
    by_hand(host, "sh", "-c", 'mkdir -p "${1%/*}" && cat >"$1"', "sh", path, stdin=text)


def inspect(host: str, name: str) -> dict[str, Any]:
    (found,) = json.loads(by_hand(host, "docker", "inspect", name))
    return dict(found)


def changed(report: Any) -> set[tuple[str, str]]:
    """Host and phase of every step that changed something."""
    return {(o["host"], o["phase"]) for o in report["outcomes"] if o["status"] == "ok"}


def ids(cluster: str, **roles: str) -> dict[str, str]:
    return {h: inspect(h, f"toolkit-{cluster}-{role}")["Id"] for h, role in roles.items()}


@pytest.fixture(params=sorted(COMPOSE))
def host_with_image(request: pytest.FixtureRequest) -> Iterator[str]:
    """A host that has the image toolkit-images:same, whichever clusters were on it before."""
    host = str(request.param)
    on(host, "sh", "-c", "tar -cf - --files-from /dev/null | docker import - toolkit-images:same")
    yield host
    on(host, "docker", "rmi", "toolkit-images:same")


def test_the_api_and_the_docker_command_report_the_same_facts(up: Toolkit, host_with_image: str) -> None:
    """Engine 20.10, engine 26 with both stores."""
    host = host_with_image
    name = yaml.safe_load(up.hosts.read_text())["cluster"]
    seen = [("mounted", 'echo "$seen"')]
    asked = probe_command("toolkit-images:same", name, host, "0123456789abcdef", seen)

    def facts(*env: str) -> tuple[dict[str, str], Facts]:
        said = by_hand(host, "env", *env, *(str(token) for token in asked.argv)).encode()
        sections = read_probe(said, "0123456789abcdef")
        return sections, parse_facts(host, name, sections)

    sections, by_api = facts()
    # The program leaves users with this variable to the command, for which it changes nothing.
    others, by_command = facts("DOCKER_CONTEXT=default")
    assert "ClientInfo" in others["docker"] and "ClientInfo" not in sections["docker"]
    names = ("docker", "store", "engine", "rootless", "containers", "nvidia_runtime", "cdi")
    assert [getattr(by_api, each) for each in names] == [getattr(by_command, each) for each in names]
    assert sorted(map(repr, by_api.images)) == sorted(map(repr, by_command.images)) != []
    folders = (set(re.findall(r"(?m)^\|/.*\|$", each["mounted"])) for each in (sections, others))
    assert len(set(map(frozenset, folders))) == 1


# Started by hand


@pytest.fixture(scope="module")
def hand(two: Toolkit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Toolkit]:
    """A cluster beside the tests' own, prepared and not started, with mounts of awkward names."""
    folder = tmp_path_factory.mktemp("hand")
    data = yaml.safe_load(two.hosts.read_text()) | {"cluster": "hand"}
    data["mounts"] = [{"source": AWKWARD, "target": AWKWARD}]
    for host in ("box1", "box2"):
        on(host, "install", "-d", "-o", "trainer", AWKWARD)
    tool = Toolkit(folder / "hosts.yaml", folder)
    tool.hosts.write_text(yaml.safe_dump(data))
    tool.run("up", "--prepare", check=True)
    try:
        yield tool
    finally:
        tool.run("down", "--no-save", check=True)
        for host in ("box1", "box2"):
            on(host, "rm", "-rf", AWKWARD, "/home/trainer/hand")


def with_compose(host: str, role: str, rendered: Path) -> str:
    text = (rendered / host / "compose.yaml").read_text()
    put(host, "/home/trainer/hand/compose.yaml", text)
    return by_hand(host, *COMPOSE[host], "up", "-d", folder="/home/trainer/hand")


def with_docker(host: str, role: str, rendered: Path) -> str:
    return by_hand(host, "sh", stdin=(rendered / host / f"{role}.sh").read_text())


@pytest.mark.parametrize(
    ("target", "start", "launchers"),
    [
        ("compose", with_compose, ("mpirun",)),
        pytest.param("docker", with_docker, (), marks=pytest.mark.rare),
    ],
)
def test_a_cluster_that_was_started_by_hand(
    hand: Toolkit,
    tmp_path: Path,
    target: str,
    start: Callable[[str, str, Path], str],
    launchers: tuple[str, ...],
) -> None:
    networks = {host: on(host, "docker", "network", "ls", "-q") for host in ("box1", "box2")}
    roles = {"box1": "main", "box2": "worker"}
    hand.run("render", target, "-o", str(tmp_path), check=True)
    assert hand.run("status").status == 3
    for host, role in roles.items():
        said = start(host, role, tmp_path)
        assert not re.search("warn|obsolete|orphan|ignored|deprecat", said, re.IGNORECASE), said
    before = ids("hand", **roles)
    try:
        assert hand.run("status", check=True).out.count("running") == 2
        # The containers are as `up` would have made them; the proof and the record are left.
        report = hand.run("up", "--json", check=True).json
        left = {("box2", "sshd"), ("box1", "login"), ("box1", "record"), ("box2", "record")}
        assert changed(report) <= left
        assert hand.run("up", "--json", check=True).json["changes"] == 0
        assert ids("hand", **roles) == before
        assert "all-reduce over 2 ranks: sum 3" in hand.run("smoke", check=True).out
        write = 'for d in /srv/a*; do echo "$RANK of $WORLD_SIZE" >"$d/$1"; done'
        for launcher in launchers:
            words = ("--launcher", launcher, "--", "sh", "-c", write, "sh", launcher)
            hand.run("run", *words, check=True)
        for rank, host in enumerate(roles if launchers else ()):
            text = on(host, "sh", "-c", 'cd "$1" && cat * && rm *', "sh", AWKWARD)
            assert text == f"{rank} of 2\n" * len(launchers)
    finally:
        # As `down` would: containers only, so that the next way finds keys and files prepared.
        for host, role in roles.items():
            on(host, "docker", "rm", "-f", f"toolkit-hand-{role}")
            assert on(host, "docker", "network", "ls", "-q") == networks[host]


def test_down_removes_what_compose_started(hand: Toolkit, tmp_path: Path) -> None:
    hand.run("render", "compose", "-o", str(tmp_path), check=True)
    networks = {host: on(host, "docker", "network", "ls") for host in ("box1", "box2")}
    for host, role in (("box1", "containers"), ("box2", "worker")):
        with_compose(host, role, tmp_path)
    hand.run("down", "--no-save", check=True)
    for host in ("box1", "box2"):
        assert containers(host, "hand") == [] and marked(host, "TOOLKIT_CLUSTER=hand") == []
        assert on(host, "docker", "network", "ls") == networks[host]
        assert on(host, "docker", "volume", "ls", "-q").strip() == ""
        assert not sh(host, f"ls -d {STATE}/hand 2>/dev/null")


def odd_container(image: str) -> Container:
    """One in which every field has a value, and text is what shells, YAML and compose could mistake."""
    odd = "a b $HOME ${X} $$ 'q' \"d\" \\ ü😀\u2028 `id` #: {{x}}\nnew line"
    line = odd.replace("\u2028", "").replace("\n", "")
    mounts = (
        Mount("/tmp/toolkit odd/a b,$X", "/m/a b,$X", True),
        Mount("/tmp/toolkit odd/ü😀\"'", "/m/ü😀\"'"),
    )
    return world.container(
        name="toolkit-odd",
        image=image,
        user="1000:1000",
        userns="host",  # the only value that Docker takes; Podman's are tried in test_podman.py
        argv=("sh", "-c", odd, "", "-x"),
        workdir="/w/a b $X ü",
        env=(("EMPTY", ""), ("ODD", odd)),
        labels=(("a$b", "c"), ("note", line), ("toolkit.cluster", "odd"), ("yes", "no")),
        mounts=mounts,
        ulimits=(Ulimit("memlock", -1, -1), Ulimit("nofile", 1024, 2048)),
        stop_seconds=75,
    )


def test_docker_run_and_both_composes_make_one_and_the_same_container(up: Toolkit, three: Toolkit) -> None:
    three.run("image", "send", check=True, timeout=600)
    status = up.run("status", "--json", check=True).json
    odd = odd_container(identity_reference(status["hosts"][0]["image"]))
    folder = "/home/trainer/odd"
    for host, compose in COMPOSE.items():
        # An engine of before CDI takes the name of such a device for a path; no plan gives it one.
        container = dataclasses.replace(odd, cdi=()) if host == "box2" else odd
        image = inspect(host, container.image)
        try:
            for mount in container.mounts:
                by_hand(host, "mkdir", "-p", mount.source)
            # Created and not started: the GPUs and devices that it asks for are not there.
            run = docker_run_args(container)
            assert run[:3] == ("docker", "run", "--detach")
            by_hand(host, "docker", "create", *run[3:])
            by_run = inspect(host, container.name)
            by_hand(host, "docker", "rm", container.name)
            put(host, f"{folder}/compose.yaml", compose_file(container, "worker"))
            by_hand(host, *compose, "up", "--no-start", folder=folder)
            by_compose = inspect(host, container.name)
        finally:
            on(host, "docker", "rm", "-f", container.name)
            on(host, "rm", "-rf", "/tmp/toolkit odd", folder)
        assert differences(container, by_run, image) == {}
        assert differences(container, by_compose, image) == {}
        # Also what no field speaks of: no restart policy, no port, no namespace of another's.
        assert settings(by_compose) == settings(by_run)
        assert by_run["HostConfig"]["RestartPolicy"]["Name"] in ("", "no")
        assert not by_run["HostConfig"]["Privileged"] and not by_run["HostConfig"]["AutoRemove"]
        # The comparison sees every place of a container, one by one.
        for field, value in ((f.name, getattr(container, f.name)) for f in dataclasses.fields(container)):
            for place, other in variants(value, field) if value else ():
                changed_one = dataclasses.replace(container, **{field: other})
                assert set(differences(changed_one, by_compose, image)) == {field}, place


# Without power


def power_off(host: str, hard: bool) -> None:
    words = ("kill",) if hard else ("stop", "--time", "30")
    subprocess.run(["docker", *words, outer(host)], check=True, capture_output=True)


def power_on(*hosts: str) -> None:
    for host in hosts:
        subprocess.run(["docker", "start", outer(host)], check=True, capture_output=True)
    for host in hosts:
        waiting.host_answers(host)


def keys(host: str) -> str:
    return sh(host, f"cd {STATE}/two/{host}/conf && sha256sum id_ed25519 ssh_host_ed25519_key 2>/dev/null")


def start_job(tool: Toolkit) -> str:
    words = ("--", "sh", "-c", "echo begun; sleep 300")
    job = str(tool.run("run", "-d", "--json", *words, check=True).json["job"])
    waiting.job_prints(tool, job, "begun", 2)
    return job


def state_of(tool: Toolkit, job: str) -> str:
    status = tool.run("status", "--json")
    assert "jobs" in status.json, status
    return next(j["state"] for j in status.json["jobs"] if j["id"] == job)


@pytest.mark.rare
def test_a_worker_that_rebooted(up: Toolkit) -> None:
    job = start_job(up)
    before = {host: keys(host) for host in ("box1", "box2")}
    main = ids("two", box1="main")
    power_off("box2", hard=False)
    power_on("box2")
    assert inspect("box2", "toolkit-two-worker")["State"]["Running"] is False
    status = up.run("status")
    row = next(line for line in status.out.splitlines() if line.startswith("box2"))
    assert status.status == 3 and "exited" in row and "the host rebooted at 2" in row
    assert "fix for box2: toolkit up" in status.out
    refused = up.run("run", "--", "true")
    assert refused.status == 3 and "box2 (the host rebooted at" in refused.err
    assert "fix: toolkit up" in refused.err
    healed = up.run("up", "--json", check=True).json
    assert changed(healed) - {("box2", "sshd")} == {("box2", "containers"), ("box1", "login")}
    (start,) = (o for o in healed["outcomes"] if (o["phase"], o["host"]) == ("containers", "box2"))
    assert start["detail"].startswith("the host rebooted at")
    assert {host: keys(host) for host in before} == before and ids("two", box1="main") == main
    waiting.job_reaches(up, job, "failed")
    up.run("run", "--", "true", check=True)


@pytest.mark.rare
def test_a_power_cut_of_all_hosts_while_a_job_runs(up: Toolkit) -> None:
    job = start_job(up)
    before = {host: keys(host) for host in ("box1", "box2")}
    power_off("box1", hard=True)
    power_off("box2", hard=True)
    power_on("box1", "box2")
    status = up.run("status", "--json")
    assert status.status == 3
    assert [h["state"] for h in status.json["hosts"]] == ["exited (255)"] * 2
    assert all(h["note"].startswith("the host rebooted at") for h in status.json["hosts"])
    refused = up.run("logs", job)
    assert refused.status == 3 and "rebooted" in refused.err and "toolkit up" in refused.err
    healed = up.run("up", "--json", check=True).json
    assert changed(healed) <= {
        ("box2", "containers"),
        ("box2", "sshd"),
        ("box1", "containers"),
        ("box1", "login"),
    }
    assert {host: keys(host) for host in before} == before
    assert state_of(up, job) == "lost"
    # What it had said is there, as far as it had reached the disk.
    logs = up.run("logs", job, check=True)
    assert logs.out.count("begun") == 2 and f"job {job}: lost" in logs.err
    assert "all-reduce over 2 ranks" in up.run("smoke", check=True).out


def move(host: str, address: str) -> None:
    """Let a practice host come back from a power cut with another address."""
    network = f"toolkit-lab-{LAB}"
    power_off(host, hard=True)
    for words in (("disconnect",), ("connect", "--ip", address)):
        subprocess.run(["docker", "network", *words, network, outer(host)], check=True, capture_output=True)
    power_on(host)


@pytest.mark.rare
def test_hosts_that_come_back_with_other_addresses(up: Toolkit, tmp_path: Path) -> None:
    before = {h: keys(h) for h in ("box1", "box2")}
    data = yaml.safe_load(up.hosts.read_text())
    own = {host: data["hosts"][host]["address"] for host in before}
    subnet = own["box1"].rpartition(".")[0]
    data["known_hosts"] = str(tmp_path / "known_hosts")
    shutil.copy(yaml.safe_load(up.hosts.read_text())["known_hosts"], data["known_hosts"])
    moved = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    try:
        # Main first, then the worker while main gets its own back.
        for addresses in ({"box1": f"{subnet}.77"}, {"box1": own["box1"], "box2": f"{subnet}.78"}):
            for host, address in addresses.items():
                move(host, address)
                data["hosts"][host]["address"] = address
            moved.hosts.write_text(yaml.safe_dump(data))
            if "box2" not in addresses:
                refused = moved.run("up")
                assert refused.status == 1 and "toolkit trust box1" in refused.err
            moved.run("trust", "--yes", check=True)
            for row in moved.run("status", "--json").json["hosts"]:
                assert row["address"] == data["hosts"][row["host"]]["address"]
                assert ("rebooted" in row["note"]) == (row["host"] in addresses)
            moved.run("up", check=True)
            assert moved.run("up", "--json", check=True).json["changes"] == 0
            assert {h: keys(h) for h in before} == before
            launcher = "torchrun" if "box2" in addresses else "mpirun"
            assert "over 2 ranks: sum 3" in moved.run("smoke", "--launcher", launcher, check=True).out
            for host in before:
                folder = f"{STATE}/two/{host}"
                files = sh(host, f"cat {folder}/etc/hosts {folder}/conf/known_hosts {folder}/conf/*_keys")
                named = {f"{subnet}.{n}" for n in re.findall(rf"{re.escape(subnet)}\.(\d+)", files)}
                assert named == {h["address"] for h in data["hosts"].values()}
    finally:
        for host, address in own.items():
            if data["hosts"][host]["address"] != address:
                move(host, address)
    up.run("up", check=True)
    assert up.run("up", "--json", check=True).json["changes"] == 0


# Other versions of the toolkit


@pytest.fixture
def later(up: Toolkit, tmp_path: Path) -> Toolkit:
    """The toolkit as a later version with another program inside, on the same hosts file."""
    root = Path(package.__file__).resolve().parent
    shutil.copytree(root, tmp_path / "toolkit", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("compose", "ssh"):
        if (root.parent / name).is_dir():
            shutil.copytree(root.parent / name, tmp_path / name)
    init = tmp_path / "toolkit" / "__init__.py"
    text = init.read_text()
    assert f'"{package.__version__}"' in text
    init.write_text(text.replace(f'"{package.__version__}"', '"99.0.0"'))
    with (tmp_path / "toolkit" / "container" / "job" / "orphans.py").open("a") as program:
        program.write("\n# As a later version has it.\n")
    tool = Toolkit(up.hosts, up.folder)
    tool.env |= {"PYTHONPATH": str(tmp_path)}
    return tool


@pytest.mark.rare
def test_clusters_of_earlier_and_later_versions(up: Toolkit, later: Toolkit) -> None:
    roles = {"box1": "main", "box2": "worker"}
    before, own = ids("two", **roles), package.__version__
    try:
        # A cluster of an earlier version is reported and usable after `up`, which recreates no container.
        status = later.run("status", check=True).out
        assert (
            f"toolkit {own} set up this host, but your version is 99.0.0" in status
            and "fix for box1, box2: toolkit up" in status
        )
        refused = later.run("run", "--", "true")
        assert refused.status == 3 and "differ from those of version 99.0.0" in refused.err
        job = start_job(up)
        refused = later.run("up")
        assert (
            refused.status == 3
            and job in refused.err
            and "would replace the toolkit programs on box1, box2" in refused.err
        )
        assert later.run("up", "--prepare").status == 3
        up.run("stop", job, check=True)
        assert changed(later.run("up", "--json", check=True).json) == {("box1", "files"), ("box2", "files")}
        assert ids("two", **roles) == before
        later.run("run", "--", "true", check=True)
        # The other way round: a cluster of a later version.
        status = up.run("status", check=True).out
        assert f"toolkit 99.0.0 set up this host, but your version {own} is older" in status
        assert "fix for box1, box2: use toolkit 99.0.0 or later" in status
        assert state_of(up, job) == "stopped"
        for words in (("run", "--", "true"), ("up",)):
            refused = up.run(*words)
            assert refused.status == 3 and "toolkit 99.0.0 created the cluster" in refused.err, words
        planned = up.run("down", "--no-save", "--dry-run", check=True)
        assert "box2: toolkit 99.0.0 created the cluster and is newer" in planned.err
        assert changed(up.run("up", "--force", "--json", check=True).json) == {
            ("box1", "files"),
            ("box2", "files"),
        }
        assert ids("two", **roles) == before
        assert "set up this host" not in up.run("status", check=True).out
    finally:
        up.run("up", "--force", check=True)
    assert up.run("up", "--json", check=True).json["changes"] == 0


# Image stores


@pytest.mark.parametrize("host", ["box2", pytest.param("box3", marks=pytest.mark.rare)])
def test_an_image_that_lost_its_names_does_not_travel_again(
    lab: Path, tmp_path: Path, up: Toolkit, host: str
) -> None:
    data = yaml.safe_load((lab / "hosts.yaml").read_text()) | {"cluster": "nameless", "main": host}
    data["hosts"] = {host: data["hosts"][host]}
    tool = Toolkit(tmp_path / "hosts.yaml", tmp_path)
    tool.hosts.write_text(yaml.safe_dump(data))
    tool.run("up", check=True, timeout=600)
    try:
        before = tool.run("status", "--json", check=True).json["hosts"][0]["image"]
        # Neither takes the image away, as a container is made from it; the second takes its names.
        on(host, "docker", "image", "prune", "--all", "--force")
        on(host, "docker", "rmi", "--force", "toolkit:cpu", identity_reference(before))
        assert tool.run("status", "--json", check=True).json["hosts"][0]["image"] == before
        rows = [o for o in tool.run("up", "--json", check=True).json["outcomes"] if o["status"] == "ok"]
        assert [o["step"] for o in rows] == ["tag the image with its content digest"]
        assert "<none>" not in on(host, "docker", "images", "--all")
    finally:
        tool.run("down", "--no-save", check=True)
