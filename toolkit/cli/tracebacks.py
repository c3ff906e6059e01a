"""Tracebacks of unexpected exceptions, printed without the control characters that a message can hold."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType

from toolkit.cli.common import say

# Between two looks whether the callback has ended.
_LOOK_S = 0.01


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
        threading.Thread(target=_interrupt_again, daemon=True).start()
    elif of.exc_type is not SystemExit:  # SystemExit ends a thread and is no error
        _tell_unexpected(of.exc_type, of.exc_value, of.exc_traceback)


def _interrupt_again() -> None:
    """Repeat an interrupt as soon as the main thread has left the callback, which would lose it again."""
    while _is_telling(sys._current_frames().get(threading.main_thread().ident or 0)):
        time.sleep(_LOOK_S)
    os.kill(os.getpid(), signal.SIGINT)


def _is_telling(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code is not _tell_ignored.__code__:
        frame = frame.f_back
    return frame is not None
