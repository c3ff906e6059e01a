"""Simulated transfers along the chain of hosts: duration, postponed hosts, and no host left out."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from toolkit.transfer.feeder import _ROW_LEAST, _wait
from toolkit.transfer.relay import Relay
from toolkit.transfer.schedule import HERE, Drop, Feed, Give, Line, Order, Take, slow_links

TICK = 0.05
RATE = 45.0  # chunks a second: 100 Mb/s
# As in relay.py: a host is never further ahead of the next one.
AHEAD, KEPT = 128, 288


class World:
    """Hosts that follow orders, links with rates, engines that pause for some seconds."""

    def __init__(self, starts: dict[str, int], end: int, pauses: float = 0.0, seed: int = 0) -> None:
        self.line = Line(starts, end)
        self.end, self.now = end, 0.0
        self.at = {host: float(at) for host, at in starts.items()}
        self.starts = starts
        self.givers: dict[str, str | None] = dict.fromkeys(starts)
        self.takers: dict[str, str] = {}
        self.fed: set[str] = set()
        self.rates: dict[str, float] = {}
        self.frozen: set[str] = set()
        # The chance of a pause in each second; until when each host's has one, and what it has taken.
        self.pauses, self.chance = pauses, random.Random(seed)
        self.paused = dict.fromkeys(starts, 0.0)
        self.loaded = dict(self.at)
        self.walls: set[tuple[str, str]] = set()
        self.done: dict[str, float] = {}
        self.given = 0.0  # chunks that left this machine
        self.dropped: dict[str, str] = {}
        self.apply(self.line.begin(0.0))

    def apply(self, orders: Iterable[Order]) -> None:
        for order in orders:
            if isinstance(order, Take):
                self.givers[order.host] = order.giver
            elif isinstance(order, Give):
                self.takers.pop(order.host, None)
                if order.taker:
                    self.takers[order.host] = order.taker
            elif isinstance(order, Feed):
                (self.fed.add if order.wanted else self.fed.discard)(order.host)
            elif isinstance(order, Drop):
                self.dropped[order.host] = order.why
                self.die(order.host)
        self.check()

    def check(self) -> None:
        for host in self.line.at:
            giver = self.line.givers[host]
            if giver:
                assert self.starts[giver] <= self.at[host], f"{giver} never has what {host} needs"
                assert self.line.takers[giver] == host
            seen = {host}
            while giver:
                assert giver not in seen, "round and round"
                seen.add(giver)
                giver = self.line.givers[giver]

    def die(self, host: str) -> None:
        self.at.pop(host)
        self.apply(self.line.gone(host, self.now))

    def _connect(self) -> None:
        for giver, host in list(self.takers.items()):
            if giver not in self.at or host not in self.at or self.givers.get(host) != giver:
                continue
            if (giver, host) in self.walls:
                del self.takers[giver]
                self.apply(self.line.lost(giver, host, False, False, "Connection refused", self.now))
            elif self.at[host] < self.at[giver] - KEPT:
                del self.takers[giver]
                self.apply(self.line.lost(giver, host, True, True, "the host is too slow", self.now))

    def step(self) -> None:
        self.now += TICK
        self._connect()
        before = dict(self.at)
        busy, held = set(), set()
        for host in self.at:
            if host in self.frozen:
                continue
            giver = self.givers[host]
            there = 0.0
            rate = self.rates.get(host, RATE)
            if giver == HERE and host in self.fed:
                there = float(self.end)
                others = [h for h in self.fed if h != host and h in self.at and self.at[h] < self.end]
                used = sum(min(self.rates.get(h, RATE), RATE / 2) for h in others)
                rate = min(rate, max(RATE - used, RATE / (1 + len(others))))
            elif giver and self.takers.get(giver) == host and giver in before and giver not in self.frozen:
                there = before[giver]
            room = self.at[host] + rate * TICK
            taker = self.takers.get(host)
            if taker in before and room >= before[taker] + AHEAD:
                room = before[taker] + AHEAD
                held.add(host)
            if self.engine(host) <= room:
                room = self.loaded[host] + AHEAD
                busy.add(host)
            more = max(0.0, min(room, there, float(self.end)) - self.at[host])
            self.at[host] += more
            self.given += more if giver == HERE else 0.0
        for host, at in list(self.at.items()):
            if at != before[host]:
                self.apply(self.line.moved(host, int(at + 1e-6), self.now))
            if at >= self.end - 1e-6:
                self.done.setdefault(host, self.now)
        sent = {host: min(self.end, int(self.at[host]) + 2) for host in self.fed if host in self.at}
        self.apply(self.line.look(sent, busy, held, self.now))

    def engine(self, host: str) -> float:
        """Let a host's engine take what is there; return the chunk that must not come yet."""
        if self.paused[host] <= self.now and self.chance.random() < self.pauses * TICK:
            self.paused[host] = self.now + self.chance.choice([0.5, 1, 2, 4, 8])
        if self.paused[host] <= self.now:
            self.loaded[host] = self.at[host]
        return self.loaded[host] + AHEAD

    def run(self, until: float = 600.0, then: Callable[[], None] | None = None, after: float = 0.0) -> World:
        while not self.line.finished:
            if then and self.now >= after:
                then()
                then = None
            self.step()
            assert self.now < until, (self.line.givers, self.at)
        return self


def hosts(count: int, start: int = 0) -> dict[str, int]:
    return {f"box{number}": start for number in range(1, count + 1)}


def test_each_gives_to_the_next_and_all_are_done_at_about_the_same_time() -> None:
    world = World(hosts(8), 256).run()
    assert max(world.done.values()) < 1.05 * 256 / RATE + 8 * TICK
    assert world.given == pytest.approx(256)
    assert not world.line.direct and not world.line.passed


def test_who_lacks_most_comes_first() -> None:
    world = World({"box1": 200, "box2": 0, "box3": 100}, 256)
    assert world.line.givers == {"box2": HERE, "box3": "box2", "box1": "box3"}
    world.run()
    assert world.given == pytest.approx(256)


def test_a_host_known_to_be_slow_is_last_even_if_it_lacks_more() -> None:
    line = Line({"box1": 0, "box2": 50, "box3": 40}, 256, slow=["box1"])
    line.begin(0.0)
    assert line.givers == {"box3": HERE, "box2": "box3", "box1": HERE}


@pytest.mark.parametrize("slow", [1, 2, 5, 8])
def test_a_slow_host_costs_the_others_next_to_nothing(slow: int) -> None:
    world = World(hosts(8), 2560)
    world.rates[f"box{slow}"] = RATE / 10
    world.run(until=1000)
    others = [when for host, when in world.done.items() if host != f"box{slow}"]
    # The first host has no upstream to compare with, so the comparison takes two seconds.
    assert max(others) < 1.03 * 2560 / RATE + (3 if slow == 1 else 1)
    # It had a tenth of the time for nothing at the worst.
    assert world.done[f"box{slow}"] < 12 * 2560 / RATE


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("pauses", [0.02, 0.1])
def test_an_engine_that_pauses_is_waited_for_and_nothing_is_sent_twice(pauses: float, seed: int) -> None:
    world = World(hosts(8), 512, pauses, seed).run()
    assert world.given == pytest.approx(512) and not world.line.passed


@pytest.mark.parametrize("seed", range(6))
def test_nobody_stands_behind_a_slow_host_because_an_engine_paused(seed: int) -> None:
    usual = max(World(hosts(8), 512, 0.1, seed).run().done.values())
    late = {}
    for slow in ("box1", "box3", "box8"):
        world = World(hosts(8), 512, 0.1, seed)
        world.rates[slow] = RATE / 10
        others = hosts(8).keys() - {slow}
        while not others <= world.done.keys():  # the slow one has everything a hundred seconds later
            world.step()
            assert world.now < 1000, world.line.givers
        late[slow] = max(world.done[host] for host in others)
    # The pauses fall elsewhere; taking from the slow one would take more than a hundred seconds.
    assert {slow: when for slow, when in late.items() if when >= usual + 12} == {}


def test_where_this_machine_is_what_is_slow_the_first_host_stays() -> None:
    world = World(hosts(4), 2560)
    world.rates = dict.fromkeys(hosts(4), 10 * RATE)
    world.run()
    assert world.line.givers == {"box1": HERE, "box2": "box1", "box3": "box2", "box4": "box3"}
    assert world.given < 1.05 * 2560 and not world.line.passed


def test_a_host_at_two_thirds_stays_where_it_is() -> None:
    world = World(hosts(4), 512)
    world.rates["box2"] = 0.7 * RATE
    world.run()
    assert not world.line.passed and world.given == pytest.approx(512)


@pytest.mark.parametrize("dead", range(1, 9))
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_host_that_dies_is_left_out(dead: int, share: float) -> None:
    world = World(hosts(8), 512)
    world.run(then=lambda: world.die(f"box{dead}"), after=share * 512 / RATE)
    assert len([h for h in world.done if h != f"box{dead}"]) == 7
    assert max(world.done.values()) < 512 / RATE + 8 * TICK + 0.5
    assert world.given <= 1.05 * 512


@pytest.mark.parametrize("cut", range(2, 9))
def test_a_host_that_says_nothing_any_more_delays_the_others_by_a_second(cut: int) -> None:
    world = World(hosts(8), 512)

    def freeze() -> None:
        world.frozen.add(f"box{cut}")

    while len(world.done) < 7:
        if world.now > 3:
            freeze()
        world.step()
        assert world.now < 60
    assert max(world.done.values()) < 512 / RATE + 8 * TICK + 1.5
    world.run()
    assert list(world.dropped) == [f"box{cut}"] and "received no data" in world.dropped[f"box{cut}"]


def test_where_hosts_do_not_reach_each_other_all_take_from_here() -> None:
    world = World(hosts(4), 256)
    world.walls = {(a, b) for a in hosts(4) for b in hosts(4)}
    world.run()
    assert world.given == pytest.approx(4 * 256)
    assert world.line.direct == dict.fromkeys(("box2", "box3", "box4"), "Connection refused")


def test_links_much_slower_than_the_best_are_slow() -> None:
    assert slow_links({"a": 1000, "b": 100, "c": 0, "d": 700}) == {"b"}
    assert slow_links({"a": 0, "b": 0}) == set() == slow_links({})


def test_one_wall_costs_one_more_stream() -> None:
    world = World(hosts(6), 256)
    world.walls = {("box2", "box3")}
    world.run()
    assert world.given == pytest.approx(512)
    assert list(world.line.direct) == ["box3"]


def test_a_host_that_waits_for_its_engine_has_time() -> None:
    line = Line(hosts(3), 120)
    line.begin(0.0)
    for now in range(1, 50):
        for host in ("box1", "box3"):
            line.moved(host, min(100, now * 10), now / 10)
        line.moved("box2", min(100, now * 10), now / 10)
    # All are at chunk 100; box2 because its engine unpacks.
    line.moved("box1", 105, 5.0)
    assert not line.look({"box1": 105}, {"box2"}, (), 9.0)
    assert line.look({"box1": 105}, (), (), 9.0)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_every_host_that_lives_gets_all(seed: int) -> None:
    chance = random.Random(seed)
    count, end = chance.randint(2, 9), chance.randint(1, 600)
    names = list(hosts(count))
    world = World({name: chance.choice([0, 0, chance.randrange(end)]) for name in names}, end)
    for name in names:
        if chance.random() < 0.3:
            world.rates[name] = RATE * chance.choice([0.05, 0.1, 0.4, 0.8, 3])
    world.walls = {(a, b) for a in names for b in names if chance.random() < 0.1}
    mortal = [name for name in names if chance.random() < 0.2]
    frozen = [name for name in names if chance.random() < 0.1]
    while not world.line.finished:
        for name in [n for n in mortal if n in world.at]:
            if chance.random() < 0.01:
                world.die(name)
        for name in frozen:
            if chance.random() < 0.01:
                world.frozen.add(name)
        world.step()
        assert world.now < 3000, (world.line.givers, world.at)
    assert set(world.dropped) <= world.frozen
    for name in world.at:
        assert world.done[name]


# From here


def test_hosts_that_listen_or_have_ended_are_not_waited_for() -> None:
    def member(host: str, port: int) -> Any:
        ended = threading.Event()
        orders: list[str] = []
        errors: list[str] = []
        if not port:
            ended.set()
        one = SimpleNamespace(
            host=host, need=0, port=port, ended=ended, address=host, orders=orders, errors=errors
        )
        one.begin = lambda keys, order: None
        one.order = lambda **order: orders.append(order["do"])
        one.fail = lambda error: errors.append(error.what)
        return one

    def waited(timeout: float) -> None:
        raise AssertionError("it waits for a host")

    members = [member("gpu1", 4000), member("gpu2", 0), member("gpu3", 4001)]
    segments = (SimpleNamespace(first=0, end=10),)
    payload = SimpleNamespace(lay_out=lambda needs: dict.fromkeys(needs, segments), order=lambda *_: {})
    relay: Any = Relay(payload, ())  # type: ignore[arg-type]
    relay._members = {one.host: one for one in members}
    relay._mbit = dict.fromkeys(relay._members, 0.0)
    relay._supply = SimpleNamespace(begin=lambda members: None, feed=lambda *_: None)
    relay._events = SimpleNamespace(get=waited)
    relay._begin()
    assert set(relay._line.at) == {"gpu1", "gpu3"}
    assert [one.errors for one in members] == [
        [],
        ["the transfer program of the host did not listen on a port"],
        [],
    ]
    assert "give" in members[0].orders and "take" in members[2].orders


def test_a_chunk_waits_until_the_host_is_near_and_takes_more() -> None:
    class Waits(Exception):
        pass

    class Changed(contextlib.nullcontext[None]):
        def wait(self, seconds: float) -> None:
            raise Waits

    def goes(number: int, limit: int, *data: bytes, rate: float | None = None) -> bool:
        member: Any = SimpleNamespace(data=data, at=10, limit=limit, feeding=1, changed=Changed())
        with contextlib.suppress(Waits):
            assert not _wait(member, 1, number, lambda: rate)
            return True
        return False

    assert goes(10, 100) and goes(10 + _ROW_LEAST - 1, 100, b"one", rate=0.0)
    assert not goes(10 + _ROW_LEAST, 100, rate=0.0), "too many are on their way"
    assert goes(10 + _ROW_LEAST, 100, rate=1e9)
    assert not goes(10, 100, b"one", b"two"), "too many wait here"
    assert not goes(10, 10), "the host has no room"
