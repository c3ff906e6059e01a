"""Makes signals that would silently end a command, such as a closed terminal, arrive like Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Signals(AbstractContextManager["Signals"]):
    """Turns SIGTERM and SIGHUP into KeyboardInterrupt; ``got`` is the number of the signal, or 0."""

    def __init__(self) -> None:
        self.got = 0
        self._before: dict[int, Any] = {}
        # Looked up now, because isatty() and fileno() fail for a closed terminal.
        self._shown = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def __enter__(self) -> Signals:
        for number in _ENDING:
            # nohup ignores SIGHUP; keep that.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
            # Of a verb within the command, which decides the exit code.
            if isinstance(outer := getattr(handler, "__self__", None), Signals):
                outer.got = outer.got or self.got

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.got = number
        if number == signal.SIGHUP:
            self.silence()
        raise KeyboardInterrupt

    def silence(self) -> None:
        """Discard further output: the terminal is closed, and writing to it would raise an error."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._shown:
            os.dup2(nowhere, number)
        os.close(nowhere)
