"""Schedule of a host-to-host transfer: who gives chunks to whom, also when a host dies, is slow or cut off.

The line begins here and each host gives to one other. Every change of it is an order that one host is told.
Nothing here waits or sends: what happened goes in with its time, and orders come out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from toolkit.transfer.pace import LOOK, SHARE, Pace

# In place of a host: this machine.
HERE = ""

# Nobody stands before the first host, so whether it is slow shows when the second takes from here as well:
# done once, for so many seconds, where so many are left, and believed when the second takes that much more.
_PROBE, _PROBE_LEFT, _PROBE_MORE = 1.0, 30.0, 1.5

# Chunks of 256 KiB. A host that is fewer than so many behind the one before it is not looked at: by so
# much the buffers between them differ.
_BEHIND = 16
# Seconds without a chunk after which a host is given up.
GIVEN_UP = 60.0
# How often a host that holds others up, or to which a connection broke, goes on at the end of the line.
_TRIES = 1
# How many chunks a host keeps for others; fewer than relay.py does, since what is known here is a little old.
_KEPT = 256


@dataclass(frozen=True)
class Take:
    """Tell a host to take chunks from another, or from here."""

    host: str
    giver: str | None


@dataclass(frozen=True)
class Give:
    """Tell a host to give chunks to another; to nobody when that is empty."""

    host: str
    taker: str


@dataclass(frozen=True)
class Feed:
    """Send chunks from here to a host, or no longer."""

    host: str
    wanted: bool = True


@dataclass(frozen=True)
class Drop:
    """Give a host up."""

    host: str
    why: str


Order = Take | Give | Feed | Drop


def slow_links(mbit: Mapping[str, float]) -> set[str]:
    """Return the hosts whose links carry much less than the best does.

    Args:
        mbit: what they carry at most; 0 for unknown.
    """
    best = max(mbit.values(), default=0.0)
    return {host for host, rate in mbit.items() if 0 < rate < SHARE * best}


class Line:
    """The hosts in line, how far each is, and who gives to whom.

    Args:
        starts: the first chunk that each host needs.
        end: the number of chunks.
        slow: hosts that are known to be slow; they come last.
    """

    def __init__(self, starts: Mapping[str, int], end: int, slow: Iterable[str] = ()) -> None:
        self.starts, self.at, self.end = dict(starts), dict(starts), end
        self.slow = set(slow)
        # From whom a host takes; None while it waits for its turn.
        self.givers: dict[str, str | None] = dict.fromkeys(starts)
        self.takers: dict[str, str] = {}
        # Why a host takes from here that should have taken from another, and who was passed over.
        self.direct: dict[str, str] = {}
        self.passed: dict[str, str] = {}
        self._barred: set[tuple[str, str]] = set()
        self._tried: dict[str, int] = {}
        self._pace = Pace(starts)
        # The first host that is looked at, the second, since when, and the first one's rate alone.
        self._probe: tuple[str, str, float, float] | None = None
        self._probed: set[str] = set()

    @property
    def finished(self) -> bool:
        """Whether every host that is left has all chunks."""
        return all(at >= self.end for at in self.at.values())

    def begin(self, now: float) -> list[Order]:
        """Return the orders that form the line: who lacks most first, slow hosts last."""
        return list(self._line_up(sorted(self.at), now))

    def moved(self, host: str, at: int, now: float) -> list[Order]:
        """A host says which chunk it needs next."""
        if host not in self.at:
            return []
        self._pace.moved(host, at, now)
        self.at[host] = max(at, self.at[host])
        return list(self._next_round(now))

    def look(
        self, sent: Mapping[str, int], busy: Collection[str], held: Collection[str], now: float
    ) -> list[Order]:
        """Return orders that move hosts out of the way which hold others up.

        Args:
            sent: of hosts that are fed from here, the first chunk that was not sent yet.
            busy: hosts that take no more because their own engine has not yet taken what they have, or less
                than comes because their processors are busy.
            held: hosts that take no more because the next one has not yet taken what they have.
        """
        takes = {host: giver for host, giver in self.givers.items() if giver is not None and host in self.at}
        idle = {h for h, giver in takes.items() if giver == HERE and sent.get(h, 0) <= self.at[h]}
        self._pace.waits(set(busy) & takes.keys(), idle | set(held), now)
        orders: list[Order] = [*self._look_at_first(now)]
        for host in list(self.at):
            giver = self.givers.get(host)
            if giver is None or self.at[host] >= self.end:
                continue
            lacks = (self.at[giver] if giver else sent.get(host, 0)) - self.at[host]
            if lacks <= 0 or (host in held and host not in busy):
                self._pace.had_all(host, now)
            still, patience = self._pace.still(host, now), self._pace.patience(host)
            if still > GIVEN_UP and giver == HERE and host not in busy:
                orders.append(Drop(host, f"took nothing for {GIVEN_UP:.0f} s"))
            elif still > patience and self._is_waited_for(host):
                orders += self._make_way(host, "stood still", now)
            elif still > 3 * patience and giver:
                # Nobody waits for it, but it may be the other that stands still.
                self.direct[host] = f"{giver} gave nothing"
                orders += [*self._unlink(host, now), *self._link(HERE, host, now)]
            elif giver and lacks >= _BEHIND and self._pace.holds_up(*self._needs(giver, host), now):
                self.slow.add(host)
                orders += self._make_way(host, "was slower than the others", now)
        return orders

    def has_all(self, host: str) -> bool:
        """Return whether a host has every chunk; it may not have put them away yet."""
        return self.at.get(host, 0) >= self.end

    def lost(self, giver: str, host: str, begun: bool, gone: bool, why: str, now: float) -> list[Order]:
        """A host says that it cannot give to the next one.

        Args:
            begun: whether they had spoken with each other.
            gone: whether it no longer has what the next one needs.
        """
        if self.givers.get(host) != giver or self.at.get(host, self.end) >= self.end:
            return []  # of old, or of a host that has all and has hung up
        if gone:
            return list(self._pass_over(host, why, now))
        if not begun:
            # No way from one to the other, a firewall say: those behind it may well reach each other.
            self._barred.add((giver, host))
            self.takers.pop(giver, None)
            self.direct[host] = why
            return list(self._link(HERE, host, now))
        # Most often it has died, so the others do not wait for it.
        return list(self._make_way(host, why, now))

    def gone(self, host: str, now: float) -> list[Order]:
        """A host takes no further part."""
        if host not in self.at:
            return []
        orders = [*self._unlink(host, now)]
        del self.at[host], self.givers[host]
        return [order for order in (*orders, *self._next_round(now)) if order.host != host]

    # How the line changes

    def _line_up(self, hosts: Iterable[str], now: float) -> Iterator[Order]:
        giver = HERE
        for host in sorted(hosts, key=lambda name: (name in self.slow, self.at[name], name)):
            # Whoever needs less than the one before it can have all from that one, once it has come so far.
            ahead = self.at[host] - self.at[giver] if giver else 0
            waits_long = giver in self.slow and ahead > self.end - self.at[host]
            yield from self._link(giver if giver and ahead >= 0 and not waits_long else HERE, host, now)
            giver = host

    def _link(self, giver: str, host: str, now: float) -> Iterator[Order]:
        if (giver, host) in self._barred:
            giver = HERE
        self.givers[host] = giver
        self._pace.linked(host, self.at[host], now)
        yield Take(host, giver)
        if giver:
            self.takers[giver] = host
            yield Give(giver, host)
        else:
            yield Feed(host)

    def _unlink(self, host: str, now: float) -> Iterator[Order]:
        """Take a host out; the one behind it takes from the one before it."""
        giver, taker = self.givers.get(host), self.takers.pop(host, "")
        self.givers[host] = None
        if taker:
            yield Give(host, "")
        if giver:
            self.takers.pop(giver, None)
        elif giver == HERE:
            yield Feed(host, False)
        follows = bool(taker) and self.at[taker] < self.end
        if giver and (not follows or (giver, taker) in self._barred):
            yield Give(giver, "")
        if follows:
            yield from self._link(giver if giver is not None else HERE, taker, now)
        elif taker:
            self.givers[taker] = HERE  # it has all, and needs nobody

    def _make_way(self, host: str, why: str, now: float) -> Iterator[Order]:
        """A host goes to the end of the line; the second time it waits until the others are done."""
        self._tried[host] = self._tried.get(host, 0) + 1
        tail = self._tail(host)
        last = self.givers[host] == tail and host not in self.takers
        if self._tried[host] > _TRIES or not tail or (last and host in self.slow):
            yield from self._pass_over(host, why, now)
        elif last:
            self._pace.begins(host, self.at[host], now)  # it is there already
        else:
            yield from self._unlink(host, now)
            yield from self._link(tail, host, now)

    def _pass_over(self, host: str, why: str, now: float) -> Iterator[Order]:
        """A host waits until the others are done."""
        self.passed[host] = why
        yield from self._unlink(host, now)
        yield Take(host, None)
        yield from self._next_round(now)

    def _next_round(self, now: float) -> Iterator[Order]:
        left = [host for host, at in self.at.items() if at < self.end]
        if left and all(self.givers[host] is None for host in left):
            yield from self._line_up(left, now)

    def _tail(self, host: str) -> str:
        """The last host of a line that can give to this one, empty when there is none."""
        needs = self.at[host]
        ends = (
            other
            for other, at in self.at.items()
            if other != host
            and self.givers[other] is not None
            and (other not in self.takers or (self.takers[other] == host and host not in self.takers))
            and (other, host) not in self._barred
            and (other not in self.slow or host in self.slow)
            and self.starts[other] <= needs
            and at - needs < _KEPT
        )
        return max(ends, key=lambda name: (self.givers[name] != HERE, -self.at[name], name), default="")

    # How quick they are

    def _look_at_first(self, now: float) -> Iterator[Order]:
        if self._probe is None:
            first = next((h for h in self.takers if self.givers[h] == HERE and h not in self._probed), "")
            rate = self.rate(first, now) if first and not self._pace.has_waited(first, now) else None
            if (
                rate
                and self._pace.seen_for(first, now) > LOOK
                and (self.end - self.at[first]) / rate > _PROBE_LEFT
                # A second one that is slower yet has nothing to say about the first.
                and (self.rate(second := self.takers[first], now) or 0) >= SHARE * rate
            ):
                self._probed.add(first)
                del self.takers[first]
                self._probe = (first, second, now, rate)
                yield Give(first, "")
                yield from self._link(HERE, second, now)
            return
        first, second, since, alone = self._probe
        if now - since < _PROBE:
            return
        self._probe = None
        if self.givers.get(first) != HERE or self.givers.get(second) != HERE:
            return
        rate = self.rate(second, now)
        if rate and rate > _PROBE_MORE * alone:
            self.slow.add(first)
            yield from self._make_way(first, "was slower than the others", now)
        elif first not in self.takers:
            yield Feed(second, False)
            yield from self._link(first, second, now)

    def _needs(self, giver: str, host: str) -> tuple[str, str, int, int]:
        """A host and the one before it, how many chunks it needs yet, and how many others go on."""
        others = sum(at < self.end for at in self.at.values()) - 1
        return giver, host, self.end - self.at[host], others

    def _is_waited_for(self, host: str) -> bool:
        return any(self.at[h] < self.end and self.givers[h] is not None for h in self.at if h != host)

    def rate(self, host: str, now: float, over: float = LOOK) -> float | None:
        """Chunks per second of late, None when it is too early to say."""
        return self._pace.rate(host, now, over) if host in self.at else None
