"""Time spans of the hosts during a command, for the report of a job."""

from __future__ import annotations

import time

from toolkit.core.report import HERE, Span
from toolkit.plan.execute import Event, Listener, StepEnded


class Stopwatch:
    """Records the time spans of each host, from its own creation on."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._met: list[Span] = []
        self._done: list[Span] = []

    def met(self, host: str, seconds: float) -> None:
        """Record that a host was connected and probed just now."""
        self._met.append(Span("connect", host, self._now() - seconds, seconds))

    def heard_by(self, listen: Listener) -> Listener:
        """Return a listener that records every executed step, and forwards all events."""

        def record(event: Event) -> None:
            if isinstance(event, StepEnded) and event.outcome.status in ("ok", "failed"):
                done = event.outcome
                self._done.append(Span(done.phase, done.host, self._now() - done.seconds, done.seconds))
            listen(event)

        return record

    def take(self) -> tuple[Span, ...]:
        """Return the spans recorded since the last call, in seconds since the start.

        The work of this machine between connecting and the first step is listed under ``HERE``.
        """
        met, done = self._met, sorted(self._done, key=lambda span: span.begin)
        self._met, self._done = [], []
        met_until = max((span.end for span in met), default=None)
        if met_until is None or not done or done[0].begin <= met_until:
            return (*met, *done)
        return (*met, Span("query and plan", HERE, met_until, done[0].begin - met_until), *done)

    def _now(self) -> float:
        return time.monotonic() - self._begun
