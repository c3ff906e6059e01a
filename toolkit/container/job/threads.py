"""Threads that report the exception that ended them to their owner, and work on many hosts at once.

``concurrent.futures`` is not used, because its import takes as long as half of the supervisor's own modules.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Owned(threading.Thread):
    """A daemon thread that keeps its exception for the owner, who calls `check`.

    Args:
        work: function to run in the thread.
        broke: called in the thread after an exception, to wake threads that wait for it.
    """

    def __init__(self, work: Callable[[], object], broke: Callable[[], None] | None = None) -> None:
        super().__init__(daemon=True)
        self._work, self._broke = work, broke
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # raised again in `check`
            self.error = error
            if self._broke is not None:
                self._broke()

    def check(self) -> None:
        """Raise the exception by which the thread ended, if there is one."""
        if isinstance(self.error, Exception):
            raise self.error
        if self.error is not None:  # SystemExit ends only its own thread
            raise RuntimeError(repr(self.error)) from self.error


def on_each(items: Iterable[Item], work: Callable[[Item], Result]) -> dict[Item, Result]:
    """Call `work` with each item, each in a thread of its own; return the results by item.

    Raises:
        Exception: that of the first item whose call failed, after all calls have ended.
    """
    results: dict[Item, Result] = {}

    def put(item: Item) -> None:
        results[item] = work(item)

    threads = {item: Owned(partial(put, item)) for item in items}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join()
    for thread in threads.values():
        thread.check()
    return {item: results[item] for item in threads}
