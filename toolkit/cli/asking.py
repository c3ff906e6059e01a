"""Questions to a person on a terminal: each has a default, which Enter takes."""

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
    """Somebody who can be asked; or nobody, for whom every default is taken."""

    def __init__(self, there: bool) -> None:
        self.there = there

    def ask(self, question: str, default: str, read: Callable[[str], Value]) -> Value:
        """Return what ``read`` makes of the answer, or of the default; asks again where it raises ValueError.

        Raises:
            EOFError: the input has ended.
            ToolkitError: nobody is there, and the default will not do.
        """
        if not self.there:
            try:
                return read(default)
            except ValueError as error:
                raise ToolkitError(f"{question} {default}: {error}", "run it on a terminal") from error
        while True:
            ask(f"{question} [{default}]: ")
            try:
                text = sys.stdin.readline()
                if not text:
                    raise EOFError
                return read(text.strip() or default)
            except UnicodeDecodeError:
                say("  that is no text")
            except ValueError as error:
                say(f"  {error}")


@contextmanager
def undone_if_interrupted(what: str) -> Iterator[None]:
    """Turn Ctrl-C and the end of input into one line that says what was not done.

    Raises:
        Interrupted: in their place.
    """
    try:
        yield
    except (KeyboardInterrupt, EOFError, typer.Abort) as error:
        say("")
        why = "the input has ended" if isinstance(error, EOFError) else "interrupted"
        raise Interrupted(f"{why}; {what}") from None


def on_terminal() -> bool:
    """Return whether a person can read questions here and answer them."""
    return sys.stdin.isatty() and sys.stderr.isatty()
