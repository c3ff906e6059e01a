"""Runs commands on a pseudo-terminal and keeps each line with the time at which it was printed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

WIDTH, HEIGHT = 100, 40
SILENCE = 120  # seconds without output after which a command is stopped
# Cursor up, erase the line, and everything else that a terminal does not print.
_SEQUENCE = re.compile(r"\x1b\[(\d*)A|(\x1b\[2K)|\x1b\[[?\d;]*[a-zA-Z]|(\r)|(\n)")


@dataclass
class Screen:
    """The lines of a terminal, as the sequences that toolkit prints leave them."""

    lines: list[str] = field(default_factory=lambda: [""])
    times: list[float] = field(default_factory=lambda: [0.0])
    row: int = 0
    column: int = 0

    def feed(self, text: str, now: float) -> None:
        place = 0
        for match in _SEQUENCE.finditer(text):
            self._write(text[place : match.start()], now)
            place = match.end()
            up, erase, carriage_return, newline = match.groups()
            if up is not None:
                self.row = max(0, self.row - int(up or 1))
            elif erase:
                self.lines[self.row] = ""
            elif carriage_return:
                self.column = 0
            elif newline:
                self.row += 1
                if self.row == len(self.lines):
                    self.lines.append("")
                    self.times.append(now)
        self._write(text[place:], now)

    def _write(self, text: str, now: float) -> None:
        if text:
            old = self.lines[self.row].ljust(self.column)
            self.lines[self.row] = old[: self.column] + text + old[self.column + len(text) :]
            self.times[self.row] = now
            self.column += len(text)


@dataclass
class Command:
    """A command with the lines that it printed; ``times`` are seconds since its start."""

    words: str
    lines: list[str]
    times: list[float]
    code: int


def record(
    words: list[str],
    folder: Path,
    env: Mapping[str, str],
    react: Callable[[str, int], None] = lambda text, terminal: None,
) -> Command:
    """Run a command on a terminal of its own and return what it printed.

    Args:
        react: called with all output so far and the terminal after each piece of output.

    Raises:
        SystemExit: the command printed nothing for `SILENCE` seconds; it has been stopped.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it

    began = time.monotonic()
    process = subprocess.Popen(
        words, cwd=folder, env=dict(env), stdin=its, stdout=its, stderr=its, preexec_fn=own_terminal
    )
    os.close(its)
    screen, text = Screen(), ""
    while True:
        if not select.select([ours], [], [], SILENCE)[0]:
            process.kill()
            raise SystemExit(f"{' '.join(words)} printed nothing for {SILENCE} seconds:\n{text}")
        try:
            data = os.read(ours, 1 << 16).decode(errors="replace")
        except OSError:  # the last process has closed the terminal
            break
        screen.feed(data, time.monotonic() - began)
        text += data
        react(text, ours)
    os.close(ours)
    lines = [(line.rstrip(), when) for line, when in zip(screen.lines, screen.times, strict=True)]
    while lines and not lines[-1][0]:
        lines.pop()
    return Command("", [line for line, _ in lines], [when for _, when in lines], process.wait())
