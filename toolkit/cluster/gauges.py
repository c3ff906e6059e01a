"""Streams of toolkit/container/monitor/gauges.py from every container, and the latest report of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import TracebackType

from toolkit.cluster.session import Session
from toolkit.core.answers import LineStream
from toolkit.core.causes import words_of
from toolkit.core.command import command
from toolkit.core.gauges import HostGauges, parse_gauges
from toolkit.core.runner import ContainerRunner
from toolkit.errors import ToolkitError, Unreachable, UnreachableCause, UnsafeState
from toolkit.protocol.names import container_name, program

# A host is silent without a reading for this number of intervals, and ``_PATIENCE_S``: its connection can
# outlive the program that sends readings.
_MISSED = 5
# Rates are known from the second reading on.
_ENOUGH = 2
# The pause before another try with a silent host.
_PAUSE_S = 5.0
# The pause after a refusal, which a host that boots can give too. After repeated refusals within minutes, the
# sshd of the host or fail2ban would block this machine.
_REFUSED_PAUSE_S = 900.0
_REFUSALS = (
    UnreachableCause.LOGIN_REFUSED,
    UnreachableCause.UNKNOWN_KEY,
    UnreachableCause.CHANGED_KEY,
    UnreachableCause.REVOKED_KEY,
)
# Added to the interval, for a program to start in a busy container.
_PATIENCE_S = 15.0


class Gauges:
    """The gauges of all hosts, one stream each over the existing connection.

    Within its ``with`` they are read; at its end the programs on the hosts exit.

    Args:
        seconds: the interval of readings.
    """

    def __init__(self, session: Session, seconds: float) -> None:
        self._session, self._seconds = session, seconds
        self._answered = tuple(session.facts)
        self._met = set(session.facts)
        self._latest: dict[str, HostGauges] = {}
        # By this machine's monotonic clock; without a reading, the time of the start.
        self._received = dict.fromkeys(self._answered, time.monotonic())
        self._counts: dict[str, int] = {}
        self._silent = {name: error.what for name, error in session.errors.items()}
        self._changed = threading.Condition()
        self._ending = threading.Event()
        # Each is set at the end of the current stream of a host, for the thread that holds its input open.
        self._ended: dict[str, threading.Event] = {}

    def __enter__(self) -> Gauges:
        silent = [
            name
            for name, error in self._session.errors.items()
            if name in self._session.runners and isinstance(error, Unreachable) and not _is_refusal(error)
        ]
        for name in (*self._answered, *silent):
            threading.Thread(target=self._hold, args=(name, self._ending), daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        for ended in list(self._ended.values()):
            ended.set()

    def now(self) -> tuple[tuple[HostGauges, ...], dict[str, str]]:
        """Return the latest gauges, in the file's order, and the reasons of silent hosts."""
        with self._changed:
            now, limit = time.monotonic(), _MISSED * self._seconds + _PATIENCE_S
            passed = {name: now - when for name, when in self._received.items() if now - when > limit}
            late = {name: f"the host has sent no measurements for {s:.0f} s" for name, s in passed.items()}
            names = [name for name in self._session.inventory.names if name not in late]
            hosts = tuple(self._latest[name] for name in names if name in self._latest)
            return hosts, late | self._silent

    def wait(self, seconds: float) -> None:
        """Wait for a new report of a host, at most this number of seconds."""
        with self._changed:
            self._changed.wait(seconds)

    def wait_for_rates(self) -> None:
        """Wait until every host has enough readings, or is late."""
        patience = _ENOUGH * self._seconds + _PATIENCE_S
        until = time.monotonic() + patience
        with self._changed:
            while self._are_few() and self._changed.wait(max(0.0, until - time.monotonic())):
                pass
            for name in self._answered:
                if name not in self._latest:
                    self._silent.setdefault(name, f"the host sent no measurements within {patience:g} s")

    def _are_few(self) -> bool:
        names = [name for name in self._answered if name not in self._silent]
        return any(self._counts.get(name, 0) < _ENOUGH for name in names)

    def _hold(self, name: str, ending: threading.Event) -> None:
        """Read a host in a loop: it can be unreachable for a while, or its container can be recreated."""
        came = LineStream(name)

        def take(data: bytes) -> None:
            for line in came.take(data):
                if gauges := parse_gauges(name, line):
                    with self._changed:
                        self._latest[name], self._received[name] = gauges, time.monotonic()
                        self._counts[name] = self._counts.get(name, 0) + 1
                        self._silent.pop(name, None)
                        self._changed.notify_all()

        def held(ended: threading.Event) -> Iterator[bytes]:
            ended.wait()
            yield from ()

        ask = command(*program("monitor.gauges", "-S", "-E"), str(self._seconds))
        again = name not in self._answered
        if again:
            ending.wait(_PAUSE_S)
        while True:
            came, ended = LineStream(name), threading.Event()
            self._ended[name] = ended
            if ending.is_set():
                return
            pause = _PAUSE_S
            try:
                result = self._container(name, again).stream(ask, take, held(ended))
                why = (
                    words_of(result.stderr)
                    or f"the program that measures the load of the host exited with status {result.status}"
                )
            except ToolkitError as error:
                why = error.what
                if _is_refusal(error):
                    pause = _REFUSED_PAUSE_S
            except Exception as error:  # shown instead of gauges that are no longer read
                why = repr(error)
            ended.set()
            with self._changed:
                self._silent[name] = why
                self._latest.pop(name, None)  # the old values are out of date
                self._changed.notify_all()
            again = True
            ending.wait(pause)

    def _container(self, name: str, again: bool) -> ContainerRunner:
        if not again:
            return self._session.container(name)
        runner = self._session.runners[name]
        if name not in self._met:
            runner = self._session.meet_again(name)
            self._met.add(name)
        elif not runner.is_open:
            runner = self._session.reconnect(name)
        role = self._session.inventory.role(name)
        return ContainerRunner(runner, container_name(self._session.inventory.cluster, role))


def _is_refusal(error: ToolkitError) -> bool:
    """Return True if another try would probably be refused, too."""
    return isinstance(error, UnsafeState) or (isinstance(error, Unreachable) and error.cause in _REFUSALS)
