"""Tracebacks of unexpected exceptions, printed without the control characters that a message can hold."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from types import TracebackType

from toolkit.cli.common import say

# From an interrupt that was lost to its repetition: longer than the end of the callback takes.
_AGAIN_S = 0.05


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
    if of.exc_type is KeyboardInterrupt:
        # It reached a callback of the interpreter, such as one of a weak reference, which cannot raise it.
        again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), signal.SIGINT))
        again.daemon = True
        again.start()
    elif of.exc_type is not SystemExit:  # SystemExit ends a thread and is no error
        _tell_unexpected(of.exc_type, of.exc_value, of.exc_traceback)
