"""Images on their way to engines of both ages and both stores: what travels, what breaks, what stays."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import faults, images, waiting
from tests.e2e.images import Made, is_whole, layer, make, parts_on, readers, received
from tests.e2e.world import Toolkit, interrupt, on, sh
from toolkit.api.connection import Connection
from toolkit.cluster.session import observe_layout
from toolkit.core.command import Command, Result
from toolkit.core.report import Outcome
from toolkit.core.runner import Sink
from toolkit.image.layers import ImageLayers
from toolkit.lifecycle.up import plan_image_send
from toolkit.plan.steps import Phase, Plan, SendImage, Step
from toolkit.protocol.names import identity_reference
from toolkit.remote.ssh import SshRunner

pytestmark = pytest.mark.lab

# Engine 26 with overlay2, engine 20.10 with overlay2, engine 26 with the containerd store.
HOSTS = ("box1", "box2", "box3")
MIB = 2**20
Call = Callable[..., Toolkit]


@pytest.fixture(scope="module")
def base(lab: Path) -> Iterator[ImageLayers]:
    """The layers of toolkit:cpu; the images made of them go when the tests are over."""
    yield images.base_parts()
    for host in HOSTS:
        images.forget(host)
    found = subprocess.run(["docker", "images", "-q", images.NAME], capture_output=True, text=True).stdout
    subprocess.run(["docker", "rmi", "-f", *dict.fromkeys(found.split())], capture_output=True, check=False)
    assert readers() == ""


@pytest.fixture
def tool(lab: Path, tmp_path: Path) -> Call:
    """The toolkit with a hosts file that names an image and hosts."""

    def call(made: Made, *hosts: str) -> Toolkit:
        data = yaml.safe_load((lab / "hosts.yaml").read_text())
        names = hosts or HOSTS
        data |= {"cluster": "images", "main": names[0], "image": made.tag}
        data["hosts"] = {name: data["hosts"][name] for name in names}
        path = tmp_path / f"{'-'.join(names)}-{made.tag.rpartition(':')[2]}.yaml"
        path.write_text(yaml.safe_dump(data))
        return Toolkit(path, tmp_path)

    return call


@pytest.fixture(scope="module")
def first(lab: Path, base: ImageLayers, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """An image of a few unlike layers, on all hosts."""
    small = [layer("small", 1000), b"\0" * 1024, b"", layer("note", 300)]
    made = make(base, "first", [layer("large", 3 * MIB), *small, layer("last", 2 * MIB)])
    data = yaml.safe_load((lab / "hosts.yaml").read_text())
    path = tmp_path_factory.mktemp("first") / "hosts.yaml"
    path.write_text(yaml.safe_dump({**data, "cluster": "images", "image": made.tag}))
    Toolkit(path, path.parent).run("image", "send", check=True, timeout=600)
    return made


def amounts(report: Any) -> dict[str, dict[str, int]]:
    return {o["host"]: o["amounts"] for o in report["outcomes"] if "amounts" in o}


def test_all_hosts_have_it_and_it_is_whole(first: Made, tool: Call) -> None:
    for host in HOSTS:
        assert is_whole(host, first), host
        assert parts_on(host) == []
        named = images.inspect(host, identity_reference(first.identity))
        assert named["Id"] == images.inspect(host, first.tag)["Id"]
    # On overlay2 hosts the config is the sender's own, byte for byte.
    here = json.loads(subprocess.run(["docker", "image", "inspect", first.tag], capture_output=True).stdout)
    assert {images.inspect(host, first.tag)["Id"] for host in ("box1", "box2")} == {here[0]["Id"]}
    again = tool(first).run("image", "send", "--json", check=True)
    assert again.json["changes"] == 0


def test_only_missing_layers_travel_to_both_stores(first: Made, base: ImageLayers, tool: Call) -> None:
    """One layer is shared with another image; the bytes are counted on the interfaces."""
    shared = layer("large", 3 * MIB)
    second = make(base, "second", [shared, layer("more", 2 * MIB, 2), layer("last", 700, 2)])
    before = {host: received(host) for host in HOSTS}
    report = tool(second).run("image", "send", "--json", check=True).json
    after = {host: received(host) for host in HOSTS}
    missing = second.size - len(shared)
    for host in HOSTS:
        assert amounts(report)[host]["layers"] == 2 and amounts(report)[host]["of"] == images.TOOLS + 3
        assert 0.99 * missing <= amounts(report)[host]["bytes"] <= missing + 32 * 1024
        # Besides the layers: the probe with its program for the socket, and the programs of the chain.
        assert after[host] - before[host] <= 1.02 * missing + 96 * 1024
        assert is_whole(host, second) and is_whole(host, first) and parts_on(host) == []
    assert readers() == ""


@pytest.mark.rare
def test_a_hundred_layers(base: ImageLayers, first: Made, tool: Call) -> None:
    layers = [layer(f"n{number}", 500) for number in range(95)]
    made = make(base, "hundred", [*layers, layer("last", 10)])
    report = tool(made).run("image", "send", "--json", check=True).json
    assert {host: one["layers"] for host, one in amounts(report).items()} == dict.fromkeys(HOSTS, 96)
    assert all(is_whole(host, made) for host in HOSTS)


# In this process, so that a stream can be altered and a connection cut at a chosen place


Alter = Callable[[SshRunner, Iterable[bytes]], Iterator[bytes]]


class Altering:
    """A host's runner with something done to what is fed to the n-th `docker load`."""

    def __init__(self, inner: SshRunner, number: int, alter: Alter) -> None:
        self.inner, self.number, self.alter = inner, number, alter

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        if source is not None and "load" in command.argv:
            self.number -= 1
            if self.number == 0:
                source = self.alter(self.inner, source)
        return self.inner.stream(command, sink, source)


def flip(runner: SshRunner, source: Iterable[bytes]) -> Iterator[bytes]:
    done = 0
    for chunk in source:
        at = 100_000 - done
        yield chunk[:at] + bytes([chunk[at] ^ 1]) + chunk[at + 1 :] if 0 <= at < len(chunk) else chunk
        done += len(chunk)


def cut_off(runner: SshRunner, source: Iterable[bytes]) -> Iterator[bytes]:
    done = 0
    for chunk in source:
        done += len(chunk)
        if done > MIB:
            return
        yield chunk


def break_off(runner: SshRunner, source: Iterable[bytes]) -> Iterator[bytes]:
    yield from cut_off(runner, source)
    runner.close()
    yield b"more"


def alone(step: Step) -> Step:
    return replace(step, address="") if isinstance(step, SendImage) else step


def send_altered(tool: Toolkit, alter: Alter, number: int = 1) -> list[Outcome]:
    with Connection(tool.hosts).connect() as session:
        plan = plan_image_send(observe_layout(session))
        # Without an address no other host can give it anything: all of it comes from here.
        plan = Plan(plan.title, tuple(Phase(p.title, tuple(map(alone, p.steps))) for p in plan.phases))
        for name, runner in session.runners.items():
            session.runners[name] = Altering(runner, number, alter)  # type: ignore[assignment]
        return list(session.execute(plan).outcomes)


@pytest.mark.rare
@pytest.mark.parametrize("alter", [flip, pytest.param(cut_off, marks=pytest.mark.rare)])
def test_damage_on_the_way_is_refused(base: ImageLayers, first: Made, tool: Call, alter: Alter) -> None:
    made = make(base, alter.__name__, [layer(alter.__name__, 2 * MIB), layer("last", 2 * MIB, 3)])
    for outcome in send_altered(tool(made), alter, number=2):
        assert outcome.status == "failed", outcome
    for host in HOSTS:
        assert parts_on(host) == [] and on(host, "docker", "images", "-q", made.tag) == ""
        assert gone_from(host, identity_reference(made.identity))
    tool(made).run("image", "send", check=True)
    assert all(is_whole(host, made) for host in HOSTS)


@pytest.mark.rare
def test_a_broken_connection_is_taken_up_where_it_broke(base: ImageLayers, first: Made, tool: Call) -> None:
    layers = [layer(f"large{n}", 2 * MIB) for n in range(3)]
    made = make(base, "broken", [*layers, layer("last", 10)])
    for outcome in send_altered(tool(made), break_off, number=3):
        assert outcome.status == "failed" and "closed the connection" in outcome.detail, outcome
    assert readers() == ""
    listed = tool(made).run("image", "ls", "--json", check=True).json["rows"]
    for host in HOSTS:
        faults.load_ends(host)
        assert len(parts_on(host)) == 2
        kinds = [(row["kind"], row["state"], len(row["missing"])) for row in listed if row["host"] == host]
        assert kinds[0] == ("wanted", "absent", 2) and kinds.count(("part", "whole", 0)) == 2
    report = tool(made).run("image", "send", "--json", check=True).json
    rest = len(layers[2]) + made.parts.layers[-1].size
    for host in HOSTS:
        assert amounts(report)[host]["layers"] == 2
        assert 0.99 * rest <= amounts(report)[host]["bytes"] <= rest + 32 * 1024
        assert is_whole(host, made) and parts_on(host) == []
    assert all("resumed an earlier attempt" in o["detail"] for o in report["outcomes"])


@pytest.mark.rare
def test_a_tag_that_moves_during_the_send(base: ImageLayers, first: Made, tool: Call) -> None:
    made = make(base, "moving", [layer("moving", 2 * MIB), layer("last", 2 * MIB, 4)])

    def move(runner: SshRunner, source: Iterable[bytes]) -> Iterator[bytes]:
        subprocess.run(["docker", "tag", first.tag, made.tag], check=True)
        yield from source

    assert {outcome.status for outcome in send_altered(tool(made), move)} == {"ok"}
    assert all(is_whole(host, made) for host in HOSTS)


@pytest.mark.rare
def test_a_full_disk_on_one_host(base: ImageLayers, first: Made, tool: Call) -> None:
    made = make(base, "full", [layer("fits", 2 * MIB), layer("last", 4 * MIB, 5)])
    with faults.small_disk("box2", f"{faults.IMAGES}/tmp", "3m"):
        report = tool(made).run("image", "send", "--json")
        rows = {o["host"]: o for o in report.json["outcomes"]}
        assert rows["box2"]["status"] == "failed" and "no space left" in rows["box2"]["detail"]
        assert rows["box1"]["status"] == rows["box3"]["status"] == "ok"
        assert parts_on("box2") == []
    tool(made).run("image", "send", check=True)
    assert is_whole("box2", made)


@pytest.mark.rare
def test_two_sends_at_once(base: ImageLayers, first: Made, tool: Call) -> None:
    made = make(base, "both", [layer("both", 4 * MIB), layer("last", 3 * MIB, 6)])
    one = tool(made)
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda _: one.run("image", "send", "--json", timeout=120), range(2)))
    assert [d.status for d in done] == [0, 0], [d.err for d in done]
    assert all(is_whole(host, made) and parts_on(host) == [] for host in HOSTS)


def test_ctrl_c_leaves_nothing_running_and_the_next_goes_on(
    base: ImageLayers, first: Made, tool: Call
) -> None:
    made = make(base, "pressed", [layer("one", 2 * MIB, 7), layer("two", 90 * MIB), layer("last", 10, 7)])
    process = tool(made, "box1").start("image", "send")
    waiting.until("a part of the image is on box1", lambda: parts_on("box1"))
    interrupt(process)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    # They end with the connection that fed their standard input.
    waiting.until("no reader is left", readers, lambda said: said == "")
    faults.load_ends("box1")
    report = tool(made, "box1").run("image", "send", "--json", check=True).json
    assert amounts(report)["box1"]["layers"] <= 2 and is_whole("box1", made) and parts_on("box1") == []


@pytest.mark.rare
@pytest.mark.parametrize("sender", ["box1", "box3"], ids=["engine 26", "containerd store"])
def test_sent_from_engines_of_other_kinds(
    base: ImageLayers, first: Made, tool: Call, tmp_path: Path, sender: str
) -> None:
    target = "box2"
    made = make(base, f"from-{sender}", [layer(sender, 2 * MIB), b"", layer("last", 2000, 8)])
    tool(made, sender).run("image", "send", check=True)
    one = tool(made, target)
    with images.engine_of(sender, tmp_path) as address:
        one.env |= {"DOCKER_HOST": address}
        report = one.run("image", "send", "--json", check=True, timeout=120).json
        assert amounts(report)[target]["layers"] == 3, report
    assert is_whole(target, made)
    assert on(sender, "docker", "ps", "-aq", "--filter", "label=toolkit.reader") == ""


# From host to host


class Watched:
    """A host's runner that slows down the input of its relay, and acts after a number of bytes."""

    def __init__(self, inner: SshRunner, at: int, act: Callable[[], None], pause: float = 0.02) -> None:
        self.inner, self.at, self.act, self.pause = inner, at, act, pause

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        watched = self._watch(source) if source is not None and "load" not in command.argv else source
        return self.inner.stream(command, sink, watched)

    def _watch(self, source: Iterable[bytes]) -> Iterator[bytes]:
        done, acted = 0, False
        for piece in source:
            yield piece
            done += len(piece)
            if len(piece) > 10_000:
                time.sleep(self.pause)
            if done > self.at and not acted:
                acted = True
                threading.Thread(target=self.act, daemon=True).start()


def send_watched(tool: Toolkit, at: int, act: Callable[[], None]) -> dict[str, Outcome]:
    with Connection(tool.hosts).connect() as session:
        plan = plan_image_send(observe_layout(session))
        for name, runner in session.runners.items():
            session.runners[name] = Watched(runner, at, act)  # type: ignore[arg-type,assignment]
        return {outcome.host: outcome for outcome in session.execute(plan).outcomes}


def relays(host: str) -> str:
    return sh(host, "pgrep -x python3 || true")


def test_this_machine_sends_once_and_every_host_at_most_once(
    base: ImageLayers, first: Made, tool: Call
) -> None:
    """Three engines: 26 and 20.10 with overlay2, 26 with the containerd store; counted on the interfaces."""
    made = make(base, "once", [layer(f"once{n}", 6 * MIB) for n in range(3)] + [layer("last", 10, 11)])
    before = {(host, way): received(host, way) for host in HOSTS for way in ("rx", "tx")}
    report = tool(made).run("image", "send", "--json", check=True).json
    went = {key: received(*key) - count for key, count in before.items()}
    # What came in nowhere else came from here; answers of 40 bytes for each 1,500 are in both sums.
    from_here = sum(went[host, "rx"] - went[host, "tx"] for host in HOSTS)
    assert 0.99 * made.size < from_here < 1.06 * made.size + 256 * 1024
    for host in HOSTS:
        assert 0.99 * made.size < went[host, "rx"] < 1.06 * made.size + 256 * 1024, host
        assert went[host, "tx"] < 1.06 * made.size + 256 * 1024, host
        assert is_whole(host, made) and parts_on(host) == [] and relays(host) == ""
    givers = [o["detail"].partition(", from ")[2].partition(",")[0] for o in report["outcomes"]]
    assert len(set(givers)) == 3 and "" in givers, "each gives to one other"


@pytest.mark.rare
@pytest.mark.parametrize(
    "share", [pytest.param(0.1, marks=pytest.mark.rare), 0.5, pytest.param(0.9, marks=pytest.mark.rare)]
)
def test_a_host_that_loses_power_does_not_stop_the_others(
    base: ImageLayers, first: Made, tool: Call, share: float
) -> None:
    layers = [layer(f"power{n} {share}", 4 * MIB) for n in range(4)]
    made = make(base, f"power{share}", [*layers, layer("last", 10, 12)])
    try:
        found = send_watched(tool(made), int(share * made.size), lambda: faults.power_off("box2"))
    finally:
        faults.power_on("box2")
    assert found["box2"].status == "failed" and found["box2"].fix, found
    for host in ("box1", "box3"):
        assert found[host].status == "ok" and is_whole(host, made) and relays(host) == "", found
    report = tool(made).run("image", "send", "--json", check=True).json
    assert amounts(report)["box2"]["layers"] <= len(layers) + 1
    assert is_whole("box2", made) and parts_on("box2") == [] and relays("box2") == ""


@pytest.mark.rare
def test_where_hosts_do_not_reach_each_other_all_take_from_here(
    base: ImageLayers, first: Made, tool: Call
) -> None:
    made = make(base, "walls", [layer("walls", 3 * MIB), layer("last", 10, 13)])
    here = "-s $(ip route show default | awk '{print $3; exit}')"
    rules = [
        f"INPUT -i $card {here} -j ACCEPT",
        "INPUT -i $card -p tcp --syn -j REJECT --reject-with tcp-reset",
    ]
    try:
        for host in HOSTS:
            assert sh(host, f"{images.CARD}; iptables -A {rules[0]} && iptables -A {rules[1]}") == ""
        report = tool(made).run("image", "send", "--json", check=True).json
    finally:
        for host in HOSTS:
            sh(host, f"{images.CARD}; iptables -D {rules[0]}; iptables -D {rules[1]}")
    assert all(is_whole(host, made) for host in HOSTS)
    direct = [o for o in report["outcomes"] if "not from another host: Connection refused" in o["detail"]]
    assert len(direct) == len(HOSTS) - 1, report


def test_a_host_without_python_takes_from_here(base: ImageLayers, first: Made, tool: Call) -> None:
    made = make(base, "bare-host", [layer("bare", 3 * MIB), layer("last", 10, 14)])
    python = sh("box2", "readlink -f /usr/bin/python3").strip()
    try:
        assert sh("box2", f"chmod a-x {python}") == ""
        report = tool(made).run("image", "send", "--json", check=True).json
    finally:
        sh("box2", f"chmod a+x {python}")
    rows = {o["host"]: o["detail"] for o in report["outcomes"]}
    assert "not from other hosts: the host has no python3" in rows["box2"], rows
    assert all(is_whole(host, made) for host in HOSTS)


@pytest.mark.rare
def test_nothing_of_a_transfer_stays_when_it_is_interrupted(
    base: ImageLayers, first: Made, tool: Call
) -> None:
    layers = [layer(f"stop{n}", 24 * MIB) for n in range(4)]
    made = make(base, "stop", [*layers, layer("last", 10, 15)])
    one = tool(made)
    process = one.start("image", "send")
    waiting.until(
        "a relay runs", lambda: {host: relays(host) for host in HOSTS}, lambda said: any(said.values())
    )
    interrupt(process)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130, said
    for host in HOSTS:
        waiting.until(f"no relay is left on {host}", lambda host=host: relays(host), lambda said: said == "")
        faults.load_ends(host)
    waiting.until("no reader is left", readers, lambda said: said == "")
    one.run("image", "send", check=True)
    for host in HOSTS:
        assert is_whole(host, made), host
        assert parts_on(host) == [], host


def gone_from(host: str, name: str) -> bool:
    return "o such image" in on(host, "docker", "image", "inspect", name)


@pytest.mark.rare
def test_who_has_what_and_what_may_go(base: ImageLayers, first: Made, tool: Call) -> None:
    mine, builds = "users-own:1", []
    for number in range(4):
        builds.append(make(base, "line", [layer("last", 100 + number)], **{"toolkit.flavor": "line"}))
        tool(builds[-1]).run("image", "send", check=True)
    oldest, used, _, newest = builds
    one = tool(newest)
    try:
        for host in HOSTS:
            on(host, "docker", "tag", identity_reference(oldest.identity), mine)
            on(host, "docker", "create", "--name", "users-own", identity_reference(used.identity), "true")
        rows = one.run("image", "ls", "--json", check=True).json["rows"]
        for host in HOSTS:
            found = {row["identity"]: row for row in rows if row["host"] == host}
            assert found[newest.identity]["kind"] == "wanted"
            assert found[used.identity]["users"] == ["users-own"]
            assert newest.tag in found[newest.identity]["names"] and mine in found[oldest.identity]["names"]
            assert all(row["state"] == "whole" and row["since"] and row["size"] for row in found.values())
        # One is named by the user, one has a container, two are the newest: nothing of this line goes.
        plan = one.run("image", "prune", "--dry-run", check=True).out
        assert not any(build.identity in plan for build in builds), plan
        for host in HOSTS:
            on(host, "docker", "rm", "users-own")
        plan = one.run("image", "prune", "--dry-run", check=True).out
        assert plan.count(f"remove image {identity_reference(used.identity)}") == len(HOSTS)
        report = one.run("image", "prune", "--json", check=True).json
        assert report["ok"] and one.run("image", "prune", "--json", check=True).json["changes"] == 0
        for host in HOSTS:
            left = [not gone_from(host, identity_reference(build.identity)) for build in builds]
            assert left == [True, False, True, True] and not gone_from(host, mine)
    finally:
        for host in HOSTS:
            on(host, "docker", "rm", "users-own")
            on(host, "docker", "rmi", mine, identity_reference(oldest.identity))


def test_an_image_that_toolkit_did_not_build_is_exported(base: ImageLayers, lab: Path, tool: Call) -> None:
    tag = f"{images.NAME}:bare"
    given = layer("last", 2 * MIB, 9)
    subprocess.run(["docker", "import", "-", tag], input=given, check=True, capture_output=True)
    identity = images.Engine.connect().image(tag)
    assert identity is not None
    report = tool(Made(tag, identity.identity, base)).run("image", "send", "--json", check=True).json
    for row in report["outcomes"]:
        assert row["status"] == "ok" and "1 of 1 layer" in row["detail"]
    assert all(on(host, "docker", "images", "-q", tag) and parts_on(host) == [] for host in HOSTS)
