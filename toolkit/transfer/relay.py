"""Transfer of an image or a data set to many hosts: each forwards it, so this machine sends it only once.

On every host, container/transfer/relay.py runs during the transfer. This module decides which host sends to
which (``toolkit.transfer.schedule``), and sends the digests without which a chunk is not accepted.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
import time
from collections.abc import Callable, Collection, Hashable

from toolkit.core.command import Command
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError
from toolkit.transfer.feeder import Supply
from toolkit.transfer.host import LISTENS, Advance, Brought, Declined, Member, Obstacle
from toolkit.transfer.keys import RelayKeys
from toolkit.transfer.payload import Payload
from toolkit.transfer.schedule import DROPPED_AFTER_S, Drop, Feed, Give, Line, Order, Take, slow_links

# Below this size in bytes, this machine sends directly to each host: connecting the hosts would take longer.
LEAST = 2**20

# Seconds: wait for further hosts after the last one that joined, interval of the chain inspection, and window
# of the rate that bounds the chunks in transit to a host.
_MEET, _LOOK, _JUST_NOW = 5.0, 0.1, 0.3
# Seconds for which a busy report is valid; a busy host repeats it every second.
_SAYS = 5.0
# Seconds after which a host without progress is checked, and interval of these checks. Seconds without
# progress of any host after which a transfer fails: an engine can need minutes to unpack a large layer.
_CHECK, GIVEN_UP_AFTER_S = 60.0, 1800.0
_AGAIN = "run the same command again"


class Relay:
    """Transfer of one payload to several hosts.

    Args:
        hosts: possible members; the chain forms when each of them has joined or declined.
    """

    def __init__(self, payload: Payload, hosts: Collection[str]) -> None:
        self._payload = payload
        self._lock = threading.Lock()
        self._waiting = set(hosts)
        self._members: dict[str, Member] = {}
        self._mbit: dict[str, float] = {}
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._begun = threading.Event()
        self._closed = False
        self._line = Line({}, 0)
        self._supply = Supply(payload, self.failed)
        self._started = self._joined = 0.0

    def absent(self, host: str) -> None:
        """Record that this host does not take part, so that the others do not wait for it."""
        with self._lock:
            self._waiting.discard(host)
            complete = not self._waiting
        if complete:
            self._events.put(lambda: None)

    def bring(
        self,
        runner: Runner,
        program: Command,
        need: Hashable,
        address: str,
        mbit: float,
        advance: Advance,
        responds: Callable[[], bool] = lambda: True,
        fix: str = _AGAIN,
    ) -> Brought | Declined:
        """Transfer what a host needs, from other hosts or from this machine, and store it.

        Args:
            program: command that starts container/transfer/relay.py on the host.
            need: see ``toolkit.transfer.payload``.
            address: reachable from other hosts.
            mbit: maximum rate of its link in Mbit/s; 0 if unknown.
            responds: returns whether the engine that stores the data on the host responds.
            fix: printed if the host stores no data.

        Returns:
            The result, or the reason why the host cannot take part.

        Raises:
            Unreachable: the connection to the host broke.
            Unreadable, ToolkitError: the payload cannot be read.
            ToolkitError: the host stores no data.
        """
        self._payload.prime(need)
        member = Member(runner, address, need, advance, self._wake)
        declined = member.start(program)
        if declined or not self._join(member, mbit):
            member.close()
            self.absent(member.host)
            return declined or Declined(Obstacle.LATE, Obstacle.LATE.value)
        while not member.finished.wait(_CHECK):
            if why := self._stalled(member, responds):
                self._tell(functools.partial(self._drop, member, ToolkitError(why, fix, member.host)))
        if member.error is not None:
            raise member.error
        return member.brought(self._line, self._started)

    def _stalled(self, member: Member, responds: Callable[[], bool]) -> str:
        """Return the reason why the transfer to a host is given up, empty if it goes on."""
        still = time.monotonic() - member.progress
        if still < _CHECK:
            return ""
        if not responds():
            return f"the container engine does not respond, and has stored nothing for {still:.0f} s"
        # A host that waits for its turn makes no progress while other hosts do.
        if time.monotonic() - max(one.progress for one in self._members.values()) < GIVEN_UP_AFTER_S:
            return ""
        return f"the transfer made no progress for {GIVEN_UP_AFTER_S / 60:.0f} minutes"

    def failed(self, error: Exception) -> None:
        """Abort the transfer because of an error on this machine."""
        for member in list(self._members.values()):
            member.fail(error)
            member.close()

    def close(self) -> None:
        """End the transfer in any state."""
        self._closed = True
        self._supply.close()
        for member in list(self._members.values()):
            member.close()
        self._events.put(lambda: None)

    # Events, handled one after another in a thread of its own

    def _tell(self, event: Callable[[], None]) -> None:
        self._events.put(event)

    def _wake(self) -> None:
        if self._events.empty():
            self._events.put(lambda: None)

    def _join(self, member: Member, mbit: float) -> bool:
        with self._lock:
            if self._begun.is_set() or self._closed:
                return False
            if not self._members:
                threading.Thread(target=self._conduct, daemon=True, name="relay").start()
            self._joined = time.monotonic()
            self._members[member.host] = member
            self._mbit[member.host] = mbit
            self._waiting.discard(member.host)
        self._events.put(lambda: None)
        return True

    def _conduct(self) -> None:
        try:
            self._meet()
            self._begin()
            looked = time.monotonic()
            while not self._closed and not all(m.ended.is_set() for m in self._members.values()):
                with contextlib.suppress(queue.Empty):
                    self._events.get(timeout=_LOOK)()
                now = time.monotonic()
                for member in self._members.values():
                    self._hear(member, now)
                if now - looked >= _LOOK:
                    looked = now
                    for member in self._members.values():
                        member.rate = self._line.rate(member.host, now, _JUST_NOW)
                    self._apply(self._line.look(self._sent(), self._busy(now), self._held(), now))
                    self._apply(self._silent(now))
                if self._line.finished:
                    # If a host still loads, closing its program would lose the rest.
                    for member in self._members.values():
                        if member.finished.is_set():
                            member.close()
        except Exception as error:
            self.failed(error)

    def _meet(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or time.monotonic() >= self._joined + _MEET or self._closed:
                    self._begun.set()
                    return
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=_LOOK)()

    def _begin(self) -> None:
        own = self._payload.lay_out({host: member.need for host, member in self._members.items()})
        keys, starts = RelayKeys(), {}
        for host, member in self._members.items():
            member.segments = own[host]
            starts[host] = member.segments[0].first
            member.begin(keys.of(host), self._payload.order(member.need, member.segments))
        # A host cannot be assigned as taker before it listens.
        until = time.monotonic() + LISTENS
        while not all(m.port or m.ended.is_set() for m in self._members.values()):
            with contextlib.suppress(queue.Empty):
                self._events.get(timeout=_LOOK)()
            if time.monotonic() > until or self._closed:
                break
        self._supply.begin(list(self._members.values()))
        self._started = now = time.monotonic()
        self._line = Line(starts, max(one[-1].end for one in own.values()), slow_links(self._mbit))
        for host, member in self._members.items():
            if not member.port:
                member.fail(
                    ToolkitError("the transfer program of the host did not listen on a port", _AGAIN, host)
                )
                del self._line.at[host]
        self._apply(self._line.begin(now))

    def _hear(self, member: Member, now: float) -> None:
        line, host = self._line, member.host
        for _ in range(len(member.messages)):  # not those that come meanwhile, which could be endless
            what = member.messages.popleft()
            if what.at is not None and what.limit is not None:
                self._apply(line.moved(host, what.at, now))
            elif what.takes is not None:
                member.taken(what.takes, what.at or 0)
            elif what.lost in line.at:
                gone = what.gone is not None
                self._apply(line.lost(host, what.lost, what.begun, gone, what.why, now))
        if member.ended.is_set() and host in line.at:
            self._apply(line.gone(host, now))

    def _apply(self, orders: list[Order]) -> None:
        for order in orders:
            member = self._members[order.host]
            if isinstance(order, Take):
                member.order(do="take", host=order.giver)
            elif isinstance(order, Give):
                taker = self._members.get(order.taker)
                address, port = (taker.address, taker.port) if taker else ("", 0)
                member.order(do="give", host=order.taker, address=address, port=port)
            elif isinstance(order, Feed):
                self._feed(member, order.wanted)
            elif isinstance(order, Drop):
                self._drop(member, ToolkitError(order.why, _AGAIN, order.host))

    def _drop(self, member: Member, error: ToolkitError) -> None:
        member.fail(error)
        member.close()
        self._apply(self._line.gone(member.host, time.monotonic()))

    def _feed(self, member: Member, wanted: bool) -> None:
        # Not read from the chain, which belongs to a thread other than the one that feeds.
        self._supply.feed(member, wanted, lambda: member.rate)

    def _silent(self, now: float) -> list[Order]:
        """Return orders that drop hosts which have received everything and no longer report."""
        return [
            Drop(host, f"the host received all data but has sent no report for {DROPPED_AFTER_S:.0f} s")
            for host, member in self._members.items()
            if self._line.has_all(host)
            and not member.finished.is_set()
            and now - member.reported_at > DROPPED_AFTER_S
        ]

    def _sent(self) -> dict[str, int]:
        return {host: member.sent for host, member in self._members.items()}

    def _busy(self, now: float) -> set[str]:
        """Return the hosts that report to be busy; a hung host reports nothing."""
        return {host for host, m in self._members.items() if m.busy and now - m.reported_at < _SAYS}

    def _held(self) -> set[str]:
        return {host for host, member in self._members.items() if member.at >= member.limit}
