"""A relay's chunks on one host: what it takes in, how long it keeps it, when it waits, and who feeds it."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import subprocess
import sys
import threading
from collections.abc import Generator, Hashable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.container_world import INSIDE, PATIENCE_S
from toolkit.container.transfer import relay as program
from toolkit.core.command import Command, Result, command
from toolkit.core.runner import Sink
from toolkit.errors import ToolkitError, Unreachable
from toolkit.transfer import relay as transfer
from toolkit.transfer.feeder import Supply
from toolkit.transfer.host import Brought, Declined, Member, Obstacle
from toolkit.transfer.payload import Segment
from toolkit.transfer.relay import Relay
from toolkit.transfer.schedule import Drop, Line


@pytest.fixture
def relay() -> object:
    return program


def chunk(number: int) -> bytes:
    return b"chunk %d" % number


def filled(relay, upto: int = 0):  # type: ignore[no-untyped-def]
    made = relay.Relay("127.0.0.1", io.BytesIO())
    made.digests = {number: hashlib.sha256(chunk(number)).digest() for number in range(1000)}
    for number in range(upto):
        made.keep(number, 0, chunk(number))
    return made


def test_chunks_are_kept_in_order(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 3)
    assert made.at == 3 and made.came == sum(len(chunk(number)) for number in range(3))
    assert made.plain == {number: chunk(number) for number in range(3)}
    assert made.wire == {number: (0, chunk(number)) for number in range(3)}
    assert 2 not in made.digests and 3 in made.digests


def test_a_chunk_that_came_before_is_left_out(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 3)
    made.keep(1, 0, b"something else")
    assert made.at == 3 and made.plain[1] == chunk(1)


def test_a_chunk_after_a_gap_is_a_fault(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 3)
    with pytest.raises(relay.Fault, match="chunk 4 arrived before chunk 3"):
        made.keep(4, 0, chunk(4))


def test_a_damaged_chunk_is_a_fault_and_is_not_kept(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 3)
    with pytest.raises(relay.Fault, match="chunk 3 is damaged"):
        made.keep(3, 0, b"something else")
    assert made.at == 3 and 3 not in made.wire and 3 in made.digests


def test_the_last_chunks_are_kept_for_another_host(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, relay.KEPT)
    assert min(made.wire) == made.first == 0
    made = filled(relay, relay.KEPT + 5)
    assert (min(made.wire), max(made.wire), made.first) == (5, relay.KEPT + 4, 5)


def test_a_host_is_not_far_ahead_of_its_engine_or_of_the_next_host(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 10)
    assert made.limit() == relay.AHEAD  # nothing is loaded
    made.loaded = 7
    assert made.limit() == 7 + relay.AHEAD
    made.child = type("Child", (), {"at": 4})()
    assert made.limit() == 4 + relay.AHEAD
    made.child.at = None  # it has not told yet
    assert made.limit() == 7 + relay.AHEAD
    made.loaded = 10
    assert made.limit() == 10 + relay.AHEAD


def test_a_host_is_busy_while_its_engine_or_its_reader_is_behind(relay, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    now = 1000.0
    monkeypatch.setattr(relay.time, "monotonic", lambda: now)
    made = filled(relay, 0)
    assert not made.busy()
    made.at = relay.AHEAD - 1
    assert not made.busy()
    made.at = relay.AHEAD
    assert made.busy()
    made.at = 0
    monkeypatch.setattr(relay, "waiting", lambda _file: relay.LATE)
    made.look_behind(0, relay.LATE + 1)
    assert not made.busy()
    made.look_behind(0, relay.LATE)
    assert made.busy()
    now += relay.LATE_FOR
    assert not made.busy()


def test_only_the_source_of_a_relay_can_send_chunks(relay) -> None:  # type: ignore[no-untyped-def]
    made = filled(relay, 3)
    mine, other = object(), object()
    made.source = mine
    assert made.may_keep(mine)
    assert not made.may_keep(other)


class Lost:
    """A host whose connection breaks while its relay is fed."""

    name = "gpu1"

    def __init__(self) -> None:
        self.feeder: threading.Thread | None = None

    def run(self, command: Command, timeout: float | None = None) -> Result:
        raise AssertionError("nothing is asked of it")

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        self.feeder = threading.Thread(target=list, args=(source,), daemon=True)
        self.feeder.start()
        raise Unreachable("the connection was lost", "again", self.name)


def test_what_feeds_a_relay_ends_with_its_connection() -> None:
    host = Lost()
    member = Member(host, "10.0.0.1", 0, lambda done, whole: None, lambda: None)
    with pytest.raises(Unreachable, match="lost"):
        member.start(command("relay"))
    assert host.feeder is not None
    host.feeder.join(PATIENCE_S)
    assert not host.feeder.is_alive()


class Prints(Lost):
    """A host whose program prints a line, and an error when it ends."""

    def __init__(self, line: bytes, error: str = "") -> None:
        super().__init__()
        self.line, self.error = line, error

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        sink(self.line)
        return Result(1, "", self.error)


@pytest.mark.parametrize(
    ("line", "error", "obstacle", "reason"),
    [
        (b'{"missing": "it is called snake here"}\n', "", Obstacle.NO_PYTHON, "it is called snake here"),
        (b"", "mkdir: no python3 here\n", Obstacle.FAILED, "mkdir: no python3 here"),
        (b"", "", Obstacle.FAILED, "the transfer program of the host exited early: exit status 1"),
    ],
)
def test_what_keeps_a_host_out_is_known_without_its_words(
    line: bytes, error: str, obstacle: Obstacle, reason: str
) -> None:
    member = Member(Prints(line, error), "10.0.0.1", 0, lambda done, whole: None, lambda: None)
    assert member.start(command("relay")) == Declined(obstacle, reason)


def reports(relay, monkeypatch, made, *every) -> list[tuple[float, dict[str, object]]]:  # type: ignore[no-untyped-def]
    """Return the reports of a relay with their times.

    Args:
        every: seconds that pass, chunks that are here then, whether the host is busy.
    """
    now, said, turns = 1000.0, [], iter(every)

    class Ended(Exception):
        pass

    class Turns:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *_: object) -> None:
            pass

        def wait_for(self, _much: object, seconds: float) -> None:
            nonlocal now
            passed, made.at, busy = next(turns, (0, None, False))
            if made.at is None:
                raise Ended
            now += passed
            made.busy = lambda: busy

    monkeypatch.setattr(relay.time, "monotonic", lambda: now)
    made.changed, made.say = Turns(), lambda **what: said.append((now, what))
    with pytest.raises(Ended):
        made.report()
    return said


def test_progress_is_reported_when_it_changes_and_again_while_busy(relay, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """To the sender, a report that a host is busy counts only for some seconds."""
    made, half = filled(relay, 3), relay.BUSY_EACH / 2
    turns = [(0, 3, False), (9, 3, False), (0, 4, False), (0, 4, True), (half, 4, True), (2, 4, True)]
    said = reports(relay, monkeypatch, made, *turns)
    whole = {"limit": relay.AHEAD, "wire": made.came}
    assert said == [
        (1000.0, {"at": 3, "busy": False, **whole}),
        (1009.0, {"at": 4, "busy": False, **whole}),
        (1009.0, {"at": 4, "busy": True, **whole}),
        (1011.0 + half, {"at": 4, "busy": True, **whole}),
    ]


def test_a_host_reports_until_all_is_put_away(relay, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """An engine can take minutes; without reports the host would be given up."""
    made = filled(relay, 3)
    made.unfinished = 1
    turns = [(0, 3, False), (relay.BUSY_EACH / 2, 3, False), (relay.BUSY_EACH, 3, False)]
    assert [moment for moment, _ in reports(relay, monkeypatch, made, *turns)] == [1000.0, 1001.5]
    made.changed, made.say = threading.Condition(), lambda **what: None
    made.put_away(0, 0, "")
    assert [moment for moment, _ in reports(relay, monkeypatch, made, *turns)] == [1000.0]


def test_a_host_that_has_all_and_falls_silent_is_given_up() -> None:
    """Its last message can be unreadable, such as `loadedaded` in place of `loaded`."""
    line = Line({"box1": 0, "box2": 0}, 1, frozenset())
    members = {
        host: SimpleNamespace(reported_at=heard, finished=threading.Event())
        for host, heard in (("box1", 100.0), ("box2", 150.0), ("box3", 0.0))
    }
    relay: Any = Relay.__new__(Relay)
    relay._line, relay._members = line, members
    line.at |= {"box1": 1, "box2": 1}
    assert relay._silent(159.0) == []
    (order,) = relay._silent(161.0)
    assert order == Drop("box1", "the host received all data but has sent no report for 60 s")
    members["box1"].finished.set()
    assert relay._silent(161.0) == []


def frames(relay, *given: tuple[bytes, int, bytes]) -> bytes:  # type: ignore[no-untyped-def]
    return b"".join(relay.HEAD.pack(kind, 0, number, len(data)) + data for kind, number, data in given)


def test_chunks_on_standard_input_need_an_order_and_digests(relay) -> None:  # type: ignore[no-untyped-def]
    """A host accepts them after an order to read from standard input, if their digests arrived earlier."""
    take = (b"J", 0, json.dumps({"do": "take", "host": ""}).encode())
    digests = (b"D", 0, b"".join(hashlib.sha256(chunk(number)).digest() for number in range(3)))

    def fed(*given: tuple[bytes, int, bytes]) -> tuple[list[int], int, str]:
        words = [sys.executable, "-S", str(INSIDE / "run.py"), "transfer.relay", "127.0.0.1"]
        done = subprocess.run(words, input=frames(relay, *given), capture_output=True, check=False)
        said = [json.loads(line) for line in done.stdout.splitlines()]
        return [one["at"] for one in said if "at" in one], done.returncode, done.stderr.decode()

    chunks = [(b"C", number, chunk(number)) for number in range(3)]
    assert fed(digests, *chunks, take) == ([0], 0, "")
    assert fed(digests, take, chunks[0], take, *chunks[1:], take) == ([0, 1, 3], 0, "")
    assert fed(digests, take, (b"C", 0, b"else")) == ([0], 3, "chunk 0 is damaged\n")


NEVER = 10**9


class Stalls(Lost):
    """A host that receives a chunk.

    Args:
        patience: number of checks after which it stores the chunk.
        responds: number of checks to which its engine responds.
    """

    def __init__(self, patience: int, responds: int) -> None:
        super().__init__()
        self.patience, self.most, self.checks, self.store = patience, responds, 0, threading.Event()

    def stream(self, command: Command, sink: Sink, source: Any = None, silence: Any = None) -> Result:
        sink(b'{"ready": true}\n')
        given = iter(source)
        next(given)
        sink(b'{"port": 1000}\n')
        next(data for data in given if b'"take"' in data)
        sink(b'{"takes": "", "at": 0}\n{"at": 0, "limit": 128}\n')
        next(data for data in given if chunk(0) in data)
        sink(b'{"at": 1, "limit": 129, "busy": true}\n')
        if self.patience < NEVER:
            assert self.store.wait(PATIENCE_S)
            sink(b'{"loaded": 0, "status": 0}\n')
        list(given)
        return Result(0)

    def responds(self) -> bool:
        self.checks += 1
        if self.checks >= self.patience:
            self.store.set()
        return self.checks <= self.most


class OneChunk:
    """A payload of one chunk."""

    def prime(self, need: Hashable) -> None:
        pass

    def settle(self) -> None:
        pass

    def lay_out(self, needs: Mapping[str, Hashable]) -> dict[str, tuple[Segment, ...]]:
        segment: Any = SimpleNamespace(first=0, end=1, size=7)
        return dict.fromkeys(needs, (segment,))

    def order(self, need: Hashable, segments: tuple[Segment, ...]) -> dict[str, object]:
        return {}

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        yield 0, chunk(0)


class ManyChunks(OneChunk):
    """A payload of 300 chunks, which can be read from any of them on."""

    def chunks(self, number: int) -> Generator[tuple[int, bytes], None, None]:
        yield from ((each, chunk(each)) for each in range(number, 300))


def receive(relay, member: Member, first: int) -> int:  # type: ignore[no-untyped-def]
    """Feed a program on a host with what a member is sent; return the chunk that it needs next."""
    made = relay.Relay("127.0.0.1", io.BytesIO())
    made.at = first
    for data in member._frames():
        given = io.BytesIO(data)
        while given.tell() < len(data):
            kind, flags, number, content = relay.frame(given.read, relay.ORDER)
            if kind == b"C":
                made.keep(number, flags, content)
            for index in range(len(content) // 32 if kind == b"D" else 0):
                made.digests[number + index] = content[32 * index : 32 * index + 32]
        member._moved(made.at, NEVER, 0)
        if made.at == 300:
            member.close()
    at: int = made.at
    return at


def test_hosts_that_are_fed_from_different_chunks_on_get_the_digest_of_each(relay) -> None:  # type: ignore[no-untyped-def]
    """A fast host that needs little can be fed before a slow one that needs all."""
    firsts, members = (288, 0), []
    for first in firsts:
        member = Member(Lost(), "10.0.0.1", 0, lambda done, whole: None, lambda: None)
        segment: Any = SimpleNamespace(first=first, end=300, size=7)
        member.segments, member.at, member.limit = (segment,), first, NEVER
        members.append(member)
    failed: list[Exception] = []
    supply = Supply(ManyChunks(), failed.append)
    supply.begin(members)
    for first, member in zip(firsts, members, strict=True):
        supply.feed(member, True, lambda: None)
        member.taken("", first)
        with member.changed:
            assert member.changed.wait_for(lambda member=member: member.data, PATIENCE_S)  # type: ignore[misc]
        assert receive(relay, member, first) == 300
    assert not failed


def bring(host: Stalls, monkeypatch: pytest.MonkeyPatch, given_up: float = 1e9) -> Brought | Declined:
    monkeypatch.setattr(transfer, "_CHECK", 0.001)
    monkeypatch.setattr(transfer, "GIVEN_UP_AFTER_S", given_up)
    relay = Relay(OneChunk(), {"gpu1"})
    way = (command("relay"), 0, "10.0.0.1", 0, lambda *_: None, host.responds, "restart it")
    try:
        return relay.bring(host, *way)
    finally:
        relay.close()


def test_a_slow_engine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Stalls(patience=5, responds=NEVER)
    done = bring(host, monkeypatch)
    assert isinstance(done, Brought) and len(done.segments) == 1 and not done.refused


def test_a_host_whose_engine_does_not_respond_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Stalls(patience=NEVER, responds=2)
    with pytest.raises(ToolkitError, match="engine does not respond, and has stored nothing for") as raised:
        bring(host, monkeypatch)
    assert (raised.value.host, raised.value.fix) == ("gpu1", "restart it")


def test_an_engine_that_responds_but_stores_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolkitError, match="the transfer made no progress for 0 minutes"):
        bring(Stalls(patience=NEVER, responds=NEVER), monkeypatch, given_up=0.1)


def reporting() -> tuple[Member, list[int]]:
    """Return a host whose program runs, and one entry for each time that it wakes the conductor."""
    woken: list[int] = []
    member = Member(Lost(), "10.0.0.1", 0, lambda done, whole: None, lambda: woken.append(1))
    segment: Any = SimpleNamespace(first=0, end=100, size=7)
    member.segments = (segment,)
    return member, woken


def test_reports_that_nobody_handles_are_not_kept_without_end() -> None:
    member, _ = reporting()
    with pytest.raises(ToolkitError, match="sends reports faster than") as error:
        for _ in range(100):
            member._hear(b'{"lost": "gpu2", "why": "x"}\n' * 1000)
    assert error.value.host == member.host and len(member.messages) < 10_000


def test_a_host_that_reports_without_end_holds_nobody_up() -> None:
    member, _ = reporting()
    relay, heard = Relay(OneChunk(), {"gpu1"}), 0
    member._hear(b'{"lost": "gpu2"}\n' * 3)

    class Endless:
        def __contains__(self, _: object) -> bool:
            nonlocal heard
            heard += 1
            assert heard < 10, "the conductor hears this host alone"
            member._hear(b'{"lost": "gpu2"}\n')
            return False

    line: Any = SimpleNamespace(at=Endless())
    relay._line = line
    relay._hear(member, 0.0)
    for _ in range(5):
        relay._wake()
    assert relay._events.qsize() == 1


def test_reports_that_go_back_and_forth_are_no_progress() -> None:
    member, _ = reporting()
    member._hear(b'{"at": 5, "limit": 130}\n')
    member.progress = member.moved = 0.0
    for at, limit in ((4, 130), (5, 129), (3, 10), (5, 130)):
        member._hear(b'{"at": %d, "limit": %d}\n' % (at, limit))
    assert member.progress == 0.0 and member.at == 5
    member._hear(b'{"at": 5, "limit": 131}\n')
    assert member.progress > 0.0 == member.moved
    member._hear(b'{"at": 6, "limit": 131}\n')
    assert member.moved > 0.0
    member._hear(b'{"at": 1000000, "limit": 1000000}\n')
    member.progress = 0.0
    for at in range(2_000_000, 2_000_010):  # beyond the end
        member._hear(b'{"at": %d, "limit": %d}\n' % (at, at))
    assert member.progress == 0.0


def test_a_relay_that_is_out_of_descriptors_listens_on(relay, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(relay, "ACCEPT_AGAIN", 0.0)
    made, served = relay.Relay("127.0.0.1", io.BytesIO()), threading.Semaphore(0)
    made.serve = lambda link: served.release()
    made.server = SimpleNamespace(wrap_socket=lambda caller, **options: caller)

    class Caller:
        def settimeout(self, seconds: float) -> None: ...

    closed = OSError(errno.EBADF, "the listener is closed")
    ends = [
        OSError(errno.EMFILE, "too many open files"),
        (Caller(), None),
        OSError(errno.ECONNABORTED, "gone"),
    ]
    calls = iter([*ends, (Caller(), None), closed])

    def accept() -> Any:
        end = next(calls)
        if isinstance(end, OSError):
            raise end
        return end

    with pytest.raises(OSError, match="the listener is closed"):
        made.accept(SimpleNamespace(accept=accept))
    assert all(served.acquire(timeout=PATIENCE_S) for _ in range(2))


def test_a_host_that_is_not_expected_waits_with_one_connection(relay, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """A host of the transfer, with a certificate, could otherwise hold any number of threads of another."""
    monkeypatch.setattr(relay, "GREET", PATIENCE_S)
    monkeypatch.setattr(relay, "tune", lambda link: None)
    made = relay.Relay("127.0.0.1", io.BytesIO())
    made.greet = lambda link: "gpu2"
    closed, ended = threading.Semaphore(0), EOFError("the end")

    class Link:
        greeted = False

        def close(self) -> None:
            closed.release()

        def sendall(self, data: bytes) -> None:
            self.greeted = True
            raise ended

    links = [Link() for _ in range(10)]
    for link in links:
        threading.Thread(target=made.serve, args=(link,), daemon=True).start()
    assert all(closed.acquire(timeout=PATIENCE_S) for _ in links[1:])
    assert len(made.early) == 1
    made.take_from("gpu2")
    assert closed.acquire(timeout=PATIENCE_S) and made.early == {}
    assert [link.greeted for link in links].count(True) == 1
