"""Do one thing for many hosts at once; wait for every host; give every host an outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

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
