"""Schedule of a host-to-host transfer: which host sends to which, also if a host fails or is slow.

The chain starts at this machine, and each host forwards to one other host. Every change is an order to one
host. This module neither waits nor sends: it receives timestamped events and returns orders.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from toolkit.transfer.throughput import LOOK, SHARE, Throughput

# Empty host name: this machine.
HERE = ""

# The first host has no upstream to compare with. Once for each first host, if enough chunks are left, this
# machine feeds the second host directly for _PROBE seconds; if it is _PROBE_MORE times faster, the first host
# counts as slow.
_PROBE, _PROBE_LEFT, _PROBE_MORE = 1.0, 30.0, 1.5

# Chunks of 256 KiB. A host that is fewer than this many chunks behind its giver is not examined: the buffers
# between them account for that difference.
_BEHIND = 16
# Seconds without a chunk after which a host is dropped.
DROPPED_AFTER_S = 60.0
# Number of times that a straggler, or a host with a broken connection, is moved to the end of the chain.
_TRIES = 1
# Chunks that a host keeps for others; fewer than in relay.py, because this machine's view lags behind.
_KEPT = 256


@dataclass(frozen=True)
class Take:
    """Order to receive chunks from another host or from this machine."""

    host: str
    giver: str | None


@dataclass(frozen=True)
class Give:
    """Order to send chunks to another host, or to no host if empty."""

    host: str
    taker: str


@dataclass(frozen=True)
class Feed:
    """Order to start or stop sending chunks from this machine to a host."""

    host: str
    wanted: bool = True


@dataclass(frozen=True)
class Drop:
    """Order to drop a host."""

    host: str
    why: str


Order = Take | Give | Feed | Drop


def slow_links(mbit: Mapping[str, float]) -> set[str]:
    """Return the hosts whose links are much slower than the fastest one.

    Args:
        mbit: maximum rate of each link; 0 if unknown.
    """
    best = max(mbit.values(), default=0.0)
    return {host for host, rate in mbit.items() if 0 < rate < SHARE * best}


class Line:
    """Chain of hosts, their progress, and the giver and taker of each.

    Args:
        starts: the first chunk that each host needs.
        end: the number of chunks.
        slow: hosts that are known to be slow; they come last.
    """

    def __init__(self, starts: Mapping[str, int], end: int, slow: Iterable[str] = ()) -> None:
        self.starts, self.at, self.end = dict(starts), dict(starts), end
        self.slow = set(slow)
        # The host from which a host receives; None while it waits for its turn.
        self.givers: dict[str, str | None] = dict.fromkeys(starts)
        self.takers: dict[str, str] = {}
        # Reason why a host receives from this machine instead of another host, and hosts that were passed
        # over.
        self.direct: dict[str, str] = {}
        self.passed: dict[str, str] = {}
        self._barred: set[tuple[str, str]] = set()
        self._tried: dict[str, int] = {}
        self._throughput = Throughput(starts)
        # Probe: the first host, the second, the start time, and the first host's own rate.
        self._probe: tuple[str, str, float, float] | None = None
        self._probed: set[str] = set()

    @property
    def finished(self) -> bool:
        """True if every remaining host has all chunks."""
        return all(at >= self.end for at in self.at.values())

    def begin(self, now: float) -> list[Order]:
        """Return the orders that form the chain: most missing chunks first, slow hosts last."""
        return list(self._line_up(sorted(self.at), now))

    def moved(self, host: str, at: int, now: float) -> list[Order]:
        """Record the next chunk that a host needs, and return the resulting orders."""
        if host not in self.at:
            return []
        self._throughput.moved(host, at, now)
        self.at[host] = max(at, self.at[host])
        return list(self._next_round(now))

    def look(
        self, sent: Mapping[str, int], busy: Collection[str], held: Collection[str], now: float
    ) -> list[Order]:
        """Return orders that move stragglers out of the way of other hosts.

        Args:
            sent: for hosts that this machine feeds, the first chunk that was not sent yet.
            busy: hosts that receive less than they could, because their own engine has not stored the
                received chunks yet or because their processors are busy.
            held: hosts that receive no more because their taker has not received what they have.
        """
        takes = {host: giver for host, giver in self.givers.items() if giver is not None and host in self.at}
        idle = {h for h, giver in takes.items() if giver == HERE and sent.get(h, 0) <= self.at[h]}
        self._throughput.waits(set(busy) & takes.keys(), idle | set(held), now)
        orders: list[Order] = [*self._look_at_first(now)]
        for host in list(self.at):
            giver = self.givers.get(host)
            if giver is None or self.at[host] >= self.end:
                continue
            lacks = (self.at[giver] if giver else sent.get(host, 0)) - self.at[host]
            if lacks <= 0 or (host in held and host not in busy):
                self._throughput.had_all(host, now)
            still, patience = self._throughput.still(host, now), self._throughput.patience(host)
            if still > DROPPED_AFTER_S and giver == HERE and host not in busy:
                orders.append(Drop(host, f"the host received no data for {DROPPED_AFTER_S:.0f} s"))
            elif still > patience and self._is_waited_for(host):
                orders += self._make_way(host, "the host stalled", now)
            elif still > 3 * patience and giver:
                # No host waits for it, but its giver could be the stalled one.
                self.direct[host] = f"{giver} sent no data"
                orders += [*self._unlink(host, now), *self._link(HERE, host, now)]
            elif giver and lacks >= _BEHIND and self._throughput.holds_up(*self._needs(giver, host), now):
                self.slow.add(host)
                orders += self._make_way(host, "the host was slower than the other hosts", now)
        return orders

    def has_all(self, host: str) -> bool:
        """Return whether a host has every chunk; it might not have stored all of them yet."""
        return self.at.get(host, 0) >= self.end

    def lost(self, giver: str, host: str, begun: bool, gone: bool, why: str, now: float) -> list[Order]:
        """Handle a host's report that it cannot send to its taker.

        Args:
            begun: whether the two hosts had connected.
            gone: whether it no longer has the chunks that its taker needs.
        """
        if self.givers.get(host) != giver or self.at.get(host, self.end) >= self.end:
            return []  # outdated, or the taker has all chunks and has closed the connection
        if gone:
            return list(self._pass_over(host, why, now))
        if not begun:
            # No route between the two, for example because of a firewall; hosts behind it might reach each
            # other.
            self._barred.add((giver, host))
            self.takers.pop(giver, None)
            self.direct[host] = why
            return list(self._link(HERE, host, now))
        # Usually the taker has died, so the others do not wait for it.
        return list(self._make_way(host, why, now))

    def gone(self, host: str, now: float) -> list[Order]:
        """Remove a host from the transfer, and return the resulting orders."""
        if host not in self.at:
            return []
        orders = [*self._unlink(host, now)]
        del self.at[host], self.givers[host]
        return [order for order in (*orders, *self._next_round(now)) if order.host != host]

    # Changes of the chain

    def _line_up(self, hosts: Iterable[str], now: float) -> Iterator[Order]:
        giver = HERE
        for host in sorted(hosts, key=lambda name: (name in self.slow, self.at[name], name)):
            # A host that needs fewer chunks than its giver can receive all of them from it later.
            ahead = self.at[host] - self.at[giver] if giver else 0
            waits_long = giver in self.slow and ahead > self.end - self.at[host]
            yield from self._link(giver if giver and ahead >= 0 and not waits_long else HERE, host, now)
            giver = host

    def _link(self, giver: str, host: str, now: float) -> Iterator[Order]:
        if (giver, host) in self._barred:
            giver = HERE
        self.givers[host] = giver
        self._throughput.linked(host, self.at[host], now)
        yield Take(host, giver)
        if giver:
            self.takers[giver] = host
            yield Give(giver, host)
        else:
            yield Feed(host)

    def _unlink(self, host: str, now: float) -> Iterator[Order]:
        """Remove a host from the chain; its taker receives from its giver."""
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
            self.givers[taker] = HERE  # it has all chunks and needs no giver

    def _make_way(self, host: str, why: str, now: float) -> Iterator[Order]:
        """Move a host to the end of the chain; the second time, it waits until the others are done."""
        self._tried[host] = self._tried.get(host, 0) + 1
        tail = self._tail(host)
        last = self.givers[host] == tail and host not in self.takers
        if self._tried[host] > _TRIES or not tail or (last and host in self.slow):
            yield from self._pass_over(host, why, now)
        elif last:
            self._throughput.begins(host, self.at[host], now)  # it is connected already
        else:
            yield from self._unlink(host, now)
            yield from self._link(tail, host, now)

    def _pass_over(self, host: str, why: str, now: float) -> Iterator[Order]:
        """Let a host wait until the others are done."""
        self.passed[host] = why
        yield from self._unlink(host, now)
        yield Take(host, None)
        yield from self._next_round(now)

    def _next_round(self, now: float) -> Iterator[Order]:
        left = [host for host, at in self.at.items() if at < self.end]
        if left and all(self.givers[host] is None for host in left):
            yield from self._line_up(left, now)

    def _tail(self, host: str) -> str:
        """Return the last host of a chain that can send to this one, empty if there is none."""
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

    # Throughput

    def _look_at_first(self, now: float) -> Iterator[Order]:
        if self._probe is None:
            first = next((h for h in self.takers if self.givers[h] == HERE and h not in self._probed), "")
            rate = self.rate(first, now) if first and not self._throughput.has_waited(first, now) else None
            if (
                rate
                and self._throughput.seen_for(first, now) > LOOK
                and (self.end - self.at[first]) / rate > _PROBE_LEFT
                # A second host that is even slower is no reference for the first.
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
            yield from self._make_way(first, "the host was slower than the other hosts", now)
        elif first not in self.takers:
            yield Feed(second, False)
            yield from self._link(first, second, now)

    def _needs(self, giver: str, host: str) -> tuple[str, str, int, int]:
        """Return a host's giver, the host, the chunks that it still needs, and the number of other hosts."""
        others = sum(at < self.end for at in self.at.values()) - 1
        return giver, host, self.end - self.at[host], others

    def _is_waited_for(self, host: str) -> bool:
        return any(self.at[h] < self.end and self.givers[h] is not None for h in self.at if h != host)

    def rate(self, host: str, now: float, over: float = LOOK) -> float | None:
        """Return the recent chunks per second, None if it is too early to measure."""
        return self._throughput.rate(host, now, over) if host in self.at else None
