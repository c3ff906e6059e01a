"""How quickly hosts in line take chunks, and for how long one that takes none is waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

# Seconds over which a rate is taken; less than the first says nothing, and more than the last is not kept.
_LEAST, LOOK, _KEPT = 0.25, 1.0, 5.0
# Seconds without a chunk after which a host holds others up. One that waits for its own engine, which
# unpacks a large layer, has longer: twice what any other host has needed for such a wait, and at least so
# long. Where all engines are slow, nobody is passed over for it.
_STALLED, _BUSY, _BUSY_AS = 0.8, 10.0, 2.0
# A host is slow when it takes less than this share of what the one before it takes, when others would wait
# for it longer than so many seconds, and all of them together so many times longer than it waits for them.
SHARE, _WAIT, _WORTH = 0.5, 1.0, 2.0
# Both must be so over such a share of the time that is left, so many seconds at least and at most.
_SURE, _SURE_LEAST, _SURE_MOST = 0.03, 1.0, 5.0
# Seconds that two hosts may take besides to begin.
_GREETING = 1.5


class Pace:
    """What was seen of each host. Times are seconds, amounts are chunks."""

    def __init__(self, hosts: Iterable[str]) -> None:
        self._seen: dict[str, deque[tuple[float, int]]] = {host: deque() for host in hosts}
        # Since when a host has taken nothing though there was something.
        self._since: dict[str, float] = dict.fromkeys(self._seen, 0.0)
        # When a host last waited for its own engine, or had all there was: its rate says nothing then.
        self._waited: dict[str, float] = {}
        # When a host last waited for other hosts; when it last did not, and chunks per second then.
        self._idle: dict[str, float] = {}
        self._free: dict[str, tuple[float, float]] = {}
        # Since when hosts have been waiting for their engines, and the longest such wait of each.
        self._busy: dict[str, float] = {}
        # Who has got nothing yet from whom it takes now: until they have met, its rate says nothing.
        self._meeting: set[str] = set()
        self._longest: dict[str, float] = {}

    def begins(self, host: str, at: int, now: float) -> None:
        """It is looked at anew."""
        self._seen[host], self._since[host] = deque([(now, at)]), now
        self._meeting.discard(host)

    def linked(self, host: str, at: int, now: float) -> None:
        """It takes from another host than before, and both have to meet first."""
        self.begins(host, at, now)
        self._since[host] = now + _GREETING
        self._meeting.add(host)

    def moved(self, host: str, at: int, now: float) -> None:
        """It says which chunk it needs next."""
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
        """These wait for their own engines, and these for other hosts: for more, or for the next one."""
        self._waited.update(dict.fromkeys((*busy, *idle), now))
        self._idle.update(dict.fromkeys(idle, now))
        for host in self._seen:
            # One that waits for its engine could do more; others may be held to what it does all the same.
            free = now - self._idle.get(host, -_BUSY) >= LOOK
            if free and (rate := self.rate(host, now)) is not None:
                self._free[host] = (now, rate)
        self._busy = {host: self._busy.get(host, now) for host in busy}
        for host, since in self._busy.items():
            self._longest[host] = max(self._longest.get(host, 0.0), now - since)

    def had_all(self, host: str, now: float) -> None:
        """It has all that it could have."""
        self._since[host] = now

    def still(self, host: str, now: float) -> float:
        """Return for how long it has taken nothing."""
        return now - self._since[host]

    def patience(self, host: str) -> float:
        """Return for how long it is waited for."""
        if host not in self._busy:
            return _STALLED
        others = (length for other, length in self._longest.items() if other != host)
        return max(_BUSY, _BUSY_AS * max(others, default=0.0))

    def seen_for(self, host: str, now: float) -> float:
        """Return for how long it has been looked at; infinity when it was not, so far."""
        return now - self._seen[host][0][0] if self._seen[host] else float("inf")

    def rate(self, host: str, now: float, over: float = LOOK) -> float | None:
        """Return chunks per second of late, None when it is too early to say.

        Args:
            over: seconds that it is taken over, as far as there are so many.
        """
        seen = self._seen[host]
        if host in self._meeting or not seen or now - seen[0][0] < _LEAST:
            return None
        begin = max(now - over, seen[0][0])
        at = next(at for when, at in reversed(seen) if when <= begin)
        return (seen[-1][1] - at) / (now - begin)

    def free_rate(self, host: str) -> tuple[float, float] | None:
        """Return when it last waited for no other, and chunks per second then; None when it always did."""
        return self._free.get(host)

    def has_waited(self, host: str, now: float) -> bool:
        """Tell whether it waited of late for something else than chunks on their way to it."""
        return now - self._waited.get(host, -_BUSY) < LOOK

    def holds_up(self, giver: str, host: str, left: int, others: int, now: float) -> bool:
        """Return whether a host is so slow that the others should not wait for it.

        Args:
            giver: the one before it.
            left: how many chunks it needs yet.
            others: how many hosts wait with it.
        """
        free = self.free_rate(giver)
        if free is None or self.has_waited(host, now):
            return False
        then, before = free
        sure = min(_SURE_MOST, max(_SURE_LEAST, _SURE * left / before)) if before else _SURE_MOST
        if now - then > 2 * sure:
            return False  # by now all may be slower, this machine or every engine
        mine = self.rate(host, now, sure)
        if not mine or mine >= SHARE * before or self.seen_for(host, now) < sure / 2:
            return False  # one that stands still counts once it has done so for long enough
        return left / mine - left / before > _WAIT and others * (before / mine - 1) > _WORTH
