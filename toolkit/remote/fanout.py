"""Work in other threads: a function for many hosts at once, or a value in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar, cast

from toolkit.errors import ToolkitError

Key = TypeVar("Key")
Value = TypeVar("Value")


def fan_out(
    keys: Iterable[Key], work: Callable[[Key], Value]
) -> tuple[dict[Key, Value], dict[Key, ToolkitError]]:
    """Return the result of ``work`` for each key, and the error for each key for which it raised one.

    Only ToolkitError counts as a host's outcome; any other exception is a bug and is raised once all hosts
    have ended. Ctrl-C does not wait for hanging hosts: the caller closes their connections.

    Each key has its own thread, because work of one host can wait for work of all others: in a chain a host
    forwards to the next one, and output is followed to the end. ``toolkit.remote.connect`` limits the number
    of logins at a time.
    """
    keys = list(keys)
    values: dict[Key, Value] = {}
    errors: dict[Key, ToolkitError] = {}
    if not keys:
        return values, errors
    pool = ThreadPoolExecutor(len(keys), thread_name_prefix="host")
    try:
        futures = {key: pool.submit(work, key) for key in keys}
        for key, future in futures.items():
            try:
                values[key] = future.result()
            except ToolkitError as error:
                errors[key] = error
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown(wait=True)
    return values, errors


class Background(Generic[Value]):
    """The result of a function that has begun to run in a thread of its own.

    Its owner calls ``result``, which raises what the function raised. A program that ends leaves the thread
    behind.

    Args:
        name: of the thread.
        make: called once.
    """

    def __init__(self, name: str, make: Callable[[], Value]) -> None:
        self._make = make
        self._value: Value | None = None
        self._error: BaseException | None = None
        # Instead of Thread.join(), which takes the thread for ended if Ctrl-C interrupts it (Python 3.11).
        self._ended = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._value = self._make()
        except BaseException as error:  # raised again in the thread of the owner
            self._error = error
        finally:
            self._ended.set()

    def ended(self, timeout: float) -> bool:
        """Wait until the function has returned, at most this many seconds; return whether it has."""
        return self._ended.wait(timeout)

    def result(self) -> Value:
        """Return the value, if need be after the function has returned."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return cast("Value", self._value)
