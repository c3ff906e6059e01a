"""Signals that would end a command without a word, such as a closed terminal: they arrive like Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager
from types import FrameType, TracebackType
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP)


class Signals(AbstractContextManager["Signals"]):
    """Makes SIGTERM and SIGHUP arrive as KeyboardInterrupt; ``got`` is the one that came, 0 for none."""

    def __init__(self) -> None:
        self.got = 0
        self._before: dict[int, Any] = {}
        # Asked now: of a terminal that is gone nothing can be asked any more.
        self._shown = [stream.fileno() for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def __enter__(self) -> Signals:
        for number in _ENDING:
            # Under nohup a hangup is to be passed over, and stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.got = number
        if number == signal.SIGHUP:
            self.silence()
        raise KeyboardInterrupt

    def silence(self) -> None:
        """Let what is still printed go nowhere: the terminal is gone, and writing to it would raise."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in self._shown:
            os.dup2(nowhere, number)
        os.close(nowhere)
