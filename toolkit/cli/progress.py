"""Progress of a running plan: a line for each step that ends, and bars for long transfers."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import Any

from toolkit.cli.common import say
from toolkit.core.printable import printable_line
from toolkit.core.report import Outcome
from toolkit.jobs.status import length
from toolkit.plan.execute import Event, StepEnded, StepProgress
from toolkit.plan.show import outcome_line

# Without a terminal, a line for each transfer is printed at this interval, in seconds.
_LINE_S = 10


class Progress:
    """Prints a line for each step that ends, and bars for long transfers if standard error is a terminal.

    The end of its ``with`` removes the bars.

    Args:
        brief: print a failed step without reason and fix, because the caller prints them at the end.
    """

    def __init__(self, verbose: bool, brief: bool = False) -> None:
        self._verbose = verbose
        self._brief = brief and not verbose
        self._lock = threading.Lock()
        self._bars: Any = None
        self._tasks: dict[tuple[str, str], Any] = {}
        # Time and bytes of the last printed line of each transfer, at first of its first event.
        self._said: dict[tuple[str, str], tuple[float, int]] = {}
        self._terminal = sys.stderr.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, StepEnded):
                self._end_bar(event.outcome.host, event.outcome.step)
                self.outcome(event.outcome)
            elif isinstance(event, StepProgress):
                self._advance(event)

    def outcome(self, outcome: Outcome) -> None:
        """Print the result of a step; only ``--verbose`` prints steps that had nothing to do."""
        if outcome.status != "skipped" or self._verbose:
            say(outcome_line(outcome, self._brief))

    def _advance(self, event: StepProgress) -> None:
        key = (event.host, event.step)
        now = time.monotonic()
        if self._terminal:
            self._show_bar(event)
        elif now - self._said.setdefault(key, (now, event.done))[0] > _LINE_S:
            since, before = self._said[key]
            self._said[key] = now, event.done
            rate = (event.done - before) / (now - since)
            say(f"     ...  {event.host}: {event.step}: {_amount(event, rate)}")

    def _show_bar(self, event: StepProgress) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars

        if self._bars is None:
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TimeRemainingColumn(),
            )
            self._bars = Bars(*columns, console=Console(stderr=True), transient=True)
            self._bars.start()
        key = (event.host, event.step)
        if key not in self._tasks:
            about = printable_line(f"{event.host}: {event.step}")
            self._tasks[key] = self._bars.add_task(about, total=None)
        self._bars.update(self._tasks[key], completed=event.done, total=event.total or None)

    def _end_bar(self, host: str, step: str) -> None:
        task = self._tasks.pop((host, step), None)
        if task is not None:
            self._bars.remove_task(task)
        if self._bars is not None and not self._tasks:
            self._bars.stop()
            self._bars = None


def _amount(event: StepProgress, rate: float) -> str:
    """Return the transferred amount, the rate in bytes per second, and the remaining time at this rate."""
    share = f" of {event.total / 1e6:.0f}" if event.total else ""
    if event.done >= event.total > 0 and rate == 0:
        return f"all {event.total / 1e6:.0f} MB sent; the host is storing the data"
    text = f"{event.done / 1e6:.0f}{share} MB, {rate / 1e6:.1f} MB/s"
    left = max(event.total - event.done, 0)
    return f"{text}, {length(left / rate)} left" if left and rate > 0 else text
