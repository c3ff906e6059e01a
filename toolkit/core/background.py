"""A value that a thread makes while its owner does something else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Background(Generic[T]):
    """The result of a function that has begun to run in a thread of its own.

    Its owner calls ``result``, which raises what the function raised. A program that ends leaves the thread
    behind.

    Args:
        name: of the thread.
        make: called once.
    """

    def __init__(self, name: str, make: Callable[[], T]) -> None:
        self._make = make
        self._value: T | None = None
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

    def result(self) -> T:
        """Return the value, if need be after the function has returned."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._value)
