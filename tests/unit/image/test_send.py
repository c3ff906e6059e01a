"""Images on their way to hosts whose engines a program plays, of both stores: what travels, what stays."""

from __future__ import annotations

import hashlib
import json
import subprocess
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.hosts_here import execute
from tests.unit.images_here import LAYERS, MIB, STORES, Host, Sender, arrived, config, engines, send, use
from toolkit.core.command import TIMED_OUT, Command, Result
from toolkit.core.report import Outcome
from toolkit.image.layer_reader import Unreadable, verified
from toolkit.image.layers import Layer, digest
from toolkit.plan.steps import Phase, Plan, SendImage
from toolkit.protocol.names import PARTIAL_REPOSITORY
from toolkit.transfer.host import load_program, relay_program
from toolkit.transfer.relay import GIVEN_UP_AFTER_S


@pytest.fixture
def sender(monkeypatch: pytest.MonkeyPatch) -> Sender:
    return use(Sender(), monkeypatch)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    with engines(tmp_path) as make:
        yield make


def one(sender: Sender, host: Host) -> Outcome:
    (outcome,) = send(sender, host)
    return outcome


@pytest.mark.parametrize("store", STORES)
def test_a_host_that_has_nothing_gets_every_layer_once(sender: Sender, make: Any, store: str) -> None:
    host = make("a", store)
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    loads = host.loads()
    assert len(loads) == 3 and sender.read == [(0,), (1, 2, 3), (4,)]
    assert dict(outcome.amounts) == {"bytes": sum(loads), "from_here": sum(loads), "layers": 5, "of": 5}
    assert sum(loads) - sum(map(len, LAYERS)) < 64 * 1024
    assert outcome.detail == "5.3 MB, 5 of 5 layers"


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("held", [1, 2, 4, 5])
def test_only_what_comes_after_a_common_beginning_travels(
    sender: Sender, make: Any, store: str, held: int
) -> None:
    host = make("a", store)
    other = Sender((*LAYERS[:held], b"something else"))
    host.put(
        "sha256:other", other.config, "mine:1", blobs=other.parts.diff_ids if store == "containerd" else ()
    )
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert dict(outcome.amounts)["layers"] == 5 - held
    assert abs(sum(host.loads()) - sum(map(len, LAYERS[held:]))) < 32 * 1024
    assert "mine:1" in host.names


def test_hosts_of_both_stores_share_one_reading(sender: Sender, make: Any) -> None:
    hosts = [make(f"h{n}", STORES[n % 2]) for n in range(4)]
    assert [o.status for o in send(sender, *hosts)] == ["ok"] * 4
    assert all(arrived(sender, host) for host in hosts)
    assert sorted(sender.read) == [(0,), (1, 2, 3), (4,)]


@pytest.mark.parametrize("store", STORES)
def test_a_try_that_broke_off_is_taken_up_by_the_next(sender: Sender, make: Any, store: str) -> None:
    host = make("a", store)
    host.breaks_after = 2  # the connection is lost with the second load
    outcome = one(sender, host)
    assert outcome.status == "failed" and "connection was lost" in outcome.detail
    host.breaks_after = None
    (left,) = host.names
    assert left.startswith(f"{PARTIAL_REPOSITORY}:{sender.identity}-") and left.endswith("-1")
    host.loads(), sender.read.clear()
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert sender.read == [(1, 2, 3), (4,)] and dict(outcome.amounts)["layers"] == 4
    assert outcome.detail.endswith("4 of 5 layers; resumed an earlier attempt")


def flipped(data: bytes) -> bytes:
    return data.replace(b"d" * 100, b"e" * 100, 1)


def cut_off(data: bytes) -> bytes:
    return data[: len(data) * 3 // 4]


@pytest.mark.parametrize("store", STORES)
def test_a_refusal_leaves_nothing_and_is_told(sender: Sender, make: Any, store: str) -> None:
    host = make("a", store)
    host.put("sha256:other", config([b"x"]), "mine:1", blobs=[digest(b"x")])
    before = host.images
    for alters in (
        lambda data: data.replace(b"d" * 100, b"e" * 100, 1),
        lambda data: data[: len(data) * 3 // 4],
    ):
        host.alters = alters
        outcome = one(sender, host)
        assert outcome.status == "failed", outcome
        assert host.images == before, "nothing of it stays, and what was there does"
    host.alters = lambda data: data
    assert one(sender, host).status == "ok" and arrived(sender, host)


def test_what_an_engine_claims_and_does_not_have_is_sent_after_all(sender: Sender, make: Any) -> None:
    """Another user removes the image with the common first layers during the transfer."""
    host = make("a", "overlay2")
    host.put("sha256:other", config(LAYERS[:2]), "mine:1")
    asked = host.run

    def run(command: Command, timeout: float | None = None) -> Result:
        result = asked(command, timeout)
        if "DriverStatus" in command.line():
            state = json.loads(host.state.read_text())
            host.state.write_text(json.dumps({**state, "images": {}}))
        return result

    host.run = run
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert sender.read == [(2, 3), (0,), (1,), (4,)]


def test_layers_that_came_compressed_are_sent_as_the_store_wants_them(sender: Sender, make: Any) -> None:
    """A base that was pulled: its snapshots are there, and blobs of other digests."""
    host = make("a", "containerd")
    host.put("sha256:base", config(LAYERS[:2]), "debian:1", blobs=["sha256:zipped1", "sha256:zipped2"])
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert sender.read == [(2, 3), (4,), (0,), (1,)]
    assert dict(outcome.amounts)["layers"] == 5


@pytest.mark.parametrize("store", STORES)
def test_an_image_without_a_missing_layer_is_its_config_alone(sender: Sender, make: Any, store: str) -> None:
    host = make("a", store)
    more = Sender((*LAYERS, b"more"))
    host.put("sha256:more", more.config, "mine:1", blobs=more.parts.diff_ids)
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert sender.read == [] and sum(host.loads()) < 20_000


@pytest.mark.parametrize("store", STORES)
def test_one_layer_twice_and_a_hundred_small_ones(
    monkeypatch: pytest.MonkeyPatch, make: Any, store: str
) -> None:
    for layers in ([b"x", b"", b"x", b"", b"y" * 2 * MIB, b"x"], [f"layer {n}".encode() for n in range(100)]):
        sender = use(Sender(layers), monkeypatch)
        host = make(f"h{len(layers)}", store)
        outcome = one(sender, host)
        assert outcome.status == "ok" and arrived(sender, host), outcome
        assert len(host.loads()) == (3 if len(layers) == 6 else 1)


@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("store", STORES)
def test_an_image_that_must_not_or_cannot_read_itself_is_exported_once(
    monkeypatch: pytest.MonkeyPatch, make: Any, store: str, built: bool
) -> None:
    """Only what hosts lack leaves this machine."""
    layers = [b"base" * 1000, b"", b"x" * 2 * MIB, b"y" * 3 * MIB, b"base" * 1000]
    sender = use(Sender(layers), monkeypatch)
    sender.unreadable = built
    sender.built = sender.built if built else ()
    hosts = [make(f"h{n}", store) for n in range(3)]
    other = Sender([*layers[:3], b"another"])
    hosts[1].put("sha256:other", other.config, "mine:1", blobs=[digest(each) for each in layers[:3]])
    found = {outcome.host: outcome for outcome in send(sender, *hosts)}
    for host in hosts:
        outcome = found[host.name]
        assert outcome.status == "ok" and arrived(sender, host), outcome
        lacks = layers[3:] if host is hosts[1] else layers
        assert sum(map(len, lacks)) <= dict(outcome.amounts)["bytes"] < sum(map(len, lacks)) + 40_000
    assert sender.saved == 1 and sender.read == []


@pytest.mark.parametrize("store", STORES)
def test_where_layers_cannot_be_read_the_image_is_saved_whole(sender: Sender, make: Any, store: str) -> None:
    sender.unreadable = sender.odd = True
    hosts = [make(f"h{n}", store) for n in range(3)]
    for outcome, host in zip(send(sender, *hosts), hosts, strict=True):
        assert outcome.status == "ok" and arrived(sender, host), outcome
        why = "because toolkit cannot read the layers of the image one by one: the image export of the"
        assert f"as a single archive, {why} container engine on your machine is" in outcome.detail
    assert sender.saved == 2 and sender.read == []


@pytest.mark.parametrize("store", STORES)
def test_wrong_bytes_of_the_reader_are_noticed_before_a_host_has_them(
    sender: Sender, make: Any, store: str
) -> None:
    sender.flips = True
    host = make("a", store)
    outcome = one(sender, host)
    assert outcome.status == "ok" and arrived(sender, host), outcome
    assert "bytes that do not match layer" in outcome.detail and sender.saved == 1


def test_a_tag_that_moves_meanwhile_changes_nothing(sender: Sender, make: Any) -> None:
    host = make("a", "overlay2")
    step = SendImage("a", "send", "toolkit:gone", sender.identity, digest(sender.config))
    report = execute(Plan("p", (Phase("image", (step,)),)), {"a": host})
    assert report.ok and "toolkit:gone" in host.names
    (outcome,) = execute(
        Plan("p", (Phase("image", (replace(step, image=""),)),)), {"a": make("b", "overlay2")}
    ).outcomes
    assert outcome.detail == "your machine no longer has the image toolkit:gone that toolkit planned to send"


def test_no_room_is_said_before_anything_travels(
    sender: Sender, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store, needed in (("overlay2", "8.4 MB"), ("containerd", "10 MB")):
        host = make(store, store)
        df = host.state.parent / "bin" / "df"
        df.write_text("#!/bin/sh\necho 'x 9000 1000 7000 80% /small'\n")
        df.chmod(0o755)
        outcome = one(sender, host)
        assert outcome.status == "failed" and f"loading needs {needed}" in outcome.detail
        assert "free space on /small" in outcome.fix and host.loads() == []


def test_programs_that_receive_an_image_have_its_digest_as_a_variable(tmp_path: Path) -> None:
    for name in ("docker", "python3"):
        program = tmp_path / name
        program.write_text(f'#!/bin/sh\necho "{name} $1 $TOOLKIT_CLUSTER $TOOLKIT_RELAY"\n')
        program.chmod(0o755)
    for subject, words in (
        (load_program("demo", "0123"), "docker load demo 0123"),
        (relay_program("demo", "0123", "10.0.0.2"), "python3 -I demo 0123"),
    ):
        path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        done = subprocess.run(subject.argv, capture_output=True, text=True, check=True, env=path)
        assert done.stdout.splitlines()[-1] == words


def test_a_sum_is_checked_before_the_last_bytes_come() -> None:
    data = bytes(range(256)) * 40
    layer = Layer(f"sha256:{hashlib.sha256(data).hexdigest()}", len(data))
    pieces = [data[i : i + 1000] for i in range(0, len(data), 1000)]
    assert b"".join(verified(iter(pieces), [layer])) == data
    assert b"".join(verified(iter([data + data]), [layer, layer])) == data * 2
    for wrong in ([*pieces[:-1], pieces[-1][:-1] + b"!"], pieces[:-1], [*pieces[:-1], pieces[-1] + b"more"]):
        got = []
        with pytest.raises(Unreadable):
            got += verified(iter(wrong), [layer])
    passed: list[bytes] = []
    with pytest.raises(Unreadable, match="bytes that do not match"):
        for piece in verified(iter([b"!" * 1000, *pieces[1:]]), [layer]):
            passed.append(piece)
    assert len(b"".join(passed)) < len(data)


def test_an_archive_that_the_engine_does_not_take_is_given_up(sender: Sender, make: Any) -> None:
    class Hangs(Host):
        def stream(self, command: Command, *rest: Any) -> Result:
            assert rest[-1] == GIVEN_UP_AFTER_S
            return Result(TIMED_OUT, "", "the command printed nothing for 1800 s")

    for engine, fix in (("docker", "sudo systemctl restart docker"), ("podman", "podman info")):
        (outcome,) = send(sender, make(engine, "overlay2", Hangs), engine=engine)
        assert "the container engine has stored nothing for 30 minutes" in outcome.detail
        assert outcome.fix.startswith(f"on {engine}: {fix}  #")


@pytest.mark.parametrize("store", STORES)
def test_output_of_a_load_without_end_is_not_kept(sender: Sender, make: Any, store: str) -> None:
    class Prints(Host):
        def stream(self, command: Command, sink: Any, *rest: Any) -> Result:
            before = tracemalloc.get_traced_memory()[0]
            for _ in range(100):
                sink(b"x" * MIB)
            assert tracemalloc.get_traced_memory()[0] - before < 10 * MIB
            return Result(1)

    tracemalloc.start()
    try:
        assert one(sender, make("a", store, Prints)).status == "failed"
    finally:
        tracemalloc.stop()
