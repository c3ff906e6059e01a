"""Questions to the user on a terminal: each has a default, and Enter accepts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import typer

from toolkit.cli.common import ask, say
from toolkit.errors import Interrupted, ToolkitError

Value = TypeVar("Value")


class Person:
    """Asks the user on a terminal. If ``there`` is False, every question gets its default."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def ask(self, question: str, default: str, read: Callable[[str], Value]) -> Value:
        """Return the answer, or the default, as ``read`` converts it. After a ValueError, ask again.

        Raises:
            EOFError: the input has ended.
            ToolkitError: there is no terminal, and ``read`` refuses the default.
        """
        if not self.there:
            try:
                return read(default)
            except ValueError as error:
                raise ToolkitError(
                    f"the default answer {default!r} to '{question}' is not valid: {error}",
                    "run the same command on a terminal",
                ) from error
        while True:
            ask(f"{question} [{default}]: ")
            try:
                text = sys.stdin.readline()
                if not text:
                    raise EOFError
                return read(text.strip() or default)
            except UnicodeDecodeError:
                say("  the answer is not valid text")
            except ValueError as error:
                say(f"  {error}")


@contextmanager
def undone_if_interrupted(what: str) -> Iterator[None]:
    """Turn Ctrl-C and the end of input into one line; ``what`` names the work that was not done.

    Raises:
        Interrupted: after Ctrl-C or at the end of the input.
    """
    try:
        yield
    except (KeyboardInterrupt, EOFError, typer.Abort) as error:
        say("")
        why = "the input ended" if isinstance(error, EOFError) else "interrupted"
        raise Interrupted(f"{why}; {what}") from None


def on_terminal() -> bool:
    """Return True if standard input and standard error are a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()
