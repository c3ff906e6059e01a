"""Tracebacks of unexpected exceptions, printed without the control characters that a message can hold."""

from __future__ import annotations

import sys
import threading
import traceback
from types import TracebackType

from toolkit.cli.common import say


def escape_tracebacks() -> None:
    """Print the tracebacks of unexpected exceptions with ``say``, also those of threads.

    An exception's message can contain text of a host.
    """
    sys.excepthook = _tell_unexpected
    threading.excepthook = sys.unraisablehook = _tell_ignored


def _tell_unexpected(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    say("".join(traceback.format_exception(kind, error, trace)))


def _tell_ignored(of: threading.ExceptHookArgs | sys.UnraisableHookArgs) -> None:
    if of.exc_type is not SystemExit:  # SystemExit ends a thread and is no error
        _tell_unexpected(of.exc_type, of.exc_value, of.exc_traceback)
