"""Throughput of the hosts in a chain, and the time limit for a host that receives nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

# Seconds over which a rate is measured: the minimum, the default and the history that is kept.
_LEAST, LOOK, _KEPT = 0.25, 1.0, 5.0
# Seconds without a chunk after which a host counts as stalled. A host that waits for its own engine, which
# unpacks a large layer, has longer: twice the longest such wait of any other host, and at least _BUSY
# seconds. So if all engines are slow, no host is skipped.
_STALLED, _BUSY, _BUSY_AS = 0.8, 10.0, 2.0
# A host is slow if its rate is below this share of its giver's rate, if the other hosts would wait for it
# longer than _WAIT seconds, and if their total wait is _WORTH times as long as the host's own delay.
SHARE, _WAIT, _WORTH = 0.5, 1.0, 2.0
# Both must hold over this share of the remaining time, bounded by a minimum and a maximum in seconds.
_SURE, _SURE_LEAST, _SURE_MOST = 0.03, 1.0, 5.0
# Additional seconds for two hosts to connect.
_GREETING = 1.5


class Throughput:
    """Observed throughput of each host. Times are in seconds, amounts in chunks."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {host: deque() for host in hosts}
        # Time since which a host has received nothing although chunks were available.
        self._since: dict[str, float] = dict.fromkeys(self._seen, 0.0)
        # Time at which a host last waited for its own engine or had all chunks: its rate is unknown then.
        self._waited: dict[str, float] = {}
        # Time at which a host last waited for other hosts; time and rate when it last did not.
        self._idle: dict[str, float] = {}
        self._free: dict[str, tuple[float, float]] = {}
        # Start of the current wait of hosts for their engines, and the longest such wait of each.
        self._busy: dict[str, float] = {}
        # Hosts that have received nothing from their current giver: until they connect, their rate is
        # unknown.
        self._meeting: set[str] = set()
        self._longest: dict[str, float] = {}

    def begins(self, host: str, at: int, now: float) -> None:
        """Restart the measurement of a host."""
        self._seen[host], self._since[host] = deque([(now, at)]), now
        self._meeting.discard(host)

    def linked(self, host: str, at: int, now: float) -> None:
        """Record that a host receives from a new giver, to which it must connect first."""
        self.begins(host, at, now)
        self._since[host] = now + _GREETING
        self._meeting.add(host)

    def moved(self, host: str, at: int, now: float) -> None:
        """Record the next chunk that a host needs."""
        seen = self._seen[host]
        before = seen[-1][1] if seen else -1
        if at > before:
            self._since[host] = now
            if host in self._meeting:
                self.begins(host, at, now)
                return
        seen.append((now, max(at, before)))
        while len(seen) > 2 and seen[1][0] < now - _KEPT:
            seen.popleft()

    def waits(self, busy: Collection[str], idle: Collection[str], now: float) -> None:
        """Record the hosts that wait for their own engines (busy) or for other hosts (idle)."""
        self._waited.update(dict.fromkeys((*busy, *idle), now))
        self._idle.update(dict.fromkeys(idle, now))
        for host in self._seen:
            # A host that waits for its engine could be faster; its rate is still a valid reference for
            # others.
            free = now - self._idle.get(host, -_BUSY) >= LOOK
            if free and (rate := self.rate(host, now)) is not None:
                self._free[host] = (now, rate)
        self._busy = {host: self._busy.get(host, now) for host in busy}
        for host, since in self._busy.items():
            self._longest[host] = max(self._longest.get(host, 0.0), now - since)

    def had_all(self, host: str, now: float) -> None:
        """Record that a host has all chunks that are available to it."""
        self._since[host] = now

    def still(self, host: str, now: float) -> float:
        """Return the seconds for which a host has received nothing."""
        return now - self._since[host]

    def patience(self, host: str) -> float:
        """Return the seconds after which a host counts as stalled."""
        if host not in self._busy:
            return _STALLED
        others = (length for other, length in self._longest.items() if other != host)
        return max(_BUSY, _BUSY_AS * max(others, default=0.0))

    def seen_for(self, host: str, now: float) -> float:
        """Return the seconds of the current measurement; infinity if there is none."""
        return now - self._seen[host][0][0] if self._seen[host] else float("inf")

    def rate(self, host: str, now: float, over: float = LOOK) -> float | None:
        """Return the recent chunks per second, None if it is too early to measure.

        Args:
            over: seconds to measure, as far as the history reaches.
        """
        seen = self._seen[host]
        if host in self._meeting or not seen or now - seen[0][0] < _LEAST:
            return None
        begin = max(now - over, seen[0][0])
        at = next(at for when, at in reversed(seen) if when <= begin)
        return (seen[-1][1] - at) / (now - begin)

    def free_rate(self, host: str) -> tuple[float, float] | None:
        """Return the time at which it last waited for no other host and its rate then; None if unknown."""
        return self._free.get(host)

    def has_waited(self, host: str, now: float) -> bool:
        """Return whether it recently waited for anything except chunks in transit to it."""
        return now - self._waited.get(host, -_BUSY) < LOOK

    def holds_up(self, giver: str, host: str, left: int, others: int, now: float) -> bool:
        """Return whether a host is so slow that the others should not wait for it.

        Args:
            giver: the host from which it receives.
            left: chunks that it still needs.
            others: number of hosts that wait for it.
        """
        free = self.free_rate(giver)
        if free is None or self.has_waited(host, now):
            return False
        then, before = free
        sure = min(_SURE_MOST, max(_SURE_LEAST, _SURE * left / before)) if before else _SURE_MOST
        if now - then > 2 * sure:
            return False  # the measurement is old: meanwhile all hosts or this machine could be slower
        mine = self.rate(host, now, sure)
        if not mine or mine >= SHARE * before or self.seen_for(host, now) < sure / 2:
            return False  # a stalled host counts only after the minimum duration
        return left / mine - left / before > _WAIT and others * (before / mine - 1) > _WORTH
