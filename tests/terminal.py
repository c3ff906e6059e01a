"""A program on a pseudo terminal: a test waits for its words and types the answers."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

CTRL_C, CTRL_D = "\x03", "\x04"


class Terminal:
    """The program's terminal; standard output is apart from it, so that results can be read alone.

    Args:
        out: file for the program's standard output; None puts it on the terminal too.
    """

    def __init__(
        self, argv: Sequence[str], folder: Path, env: Mapping[str, str], out: Path | None = None
    ) -> None:
        self.shown = ""
        self._read = 0
        self._end, child = pty.openpty()
        stdout = out.open("wb") if out else child
        try:
            self.process = subprocess.Popen(
                argv, cwd=folder, env=dict(env), stdin=child, stdout=stdout, stderr=child,
                start_new_session=True, preexec_fn=_own_terminal,
            )  # fmt: skip
        finally:
            os.close(child)
            if not isinstance(stdout, int):
                stdout.close()

    def wait_for(self, words: str, seconds: float = 60) -> str:
        """Return what was shown since the last call, up to and with these words."""
        deadline = time.monotonic() + seconds
        while (at := self.shown.find(words, self._read)) < 0:
            assert time.monotonic() < deadline, f"no {words!r} in time:\n{self.shown}"
            assert self._more(deadline), f"it ended without {words!r}:\n{self.shown}"
        start, self._read = self._read, at + len(words)
        return self.shown[start : self._read]

    def send(self, text: str) -> None:
        """Type text as it is; a line ends with a line feed."""
        os.write(self._end, text.encode())

    def answer(self, question: str, text: str = "", seconds: float = 60) -> str:
        """Wait for a question, answer it with a line, and return what was shown before."""
        said = self.wait_for(question, seconds)
        self.wait_for("]: ")
        self.send(f"{text}\n")
        return said

    def interrupt(self, key: str = CTRL_C, seconds: float = 60) -> int:
        """Press Ctrl-C and return the status; again where it came just before the program reads."""
        deadline = time.monotonic() + seconds
        while True:
            self.send(key)
            pressed = time.monotonic()
            while time.monotonic() < pressed + 2:
                if not self._more(pressed + 2):
                    return self.end(seconds)
            assert time.monotonic() < deadline, f"it did not end in time:\n{self.shown}"

    def end(self, seconds: float = 60) -> int:
        """Return the exit status once the program has ended."""
        deadline = time.monotonic() + seconds
        while self._more(deadline):
            assert time.monotonic() < deadline, f"it did not end in time:\n{self.shown}"
        return self.process.wait(max(1.0, deadline - time.monotonic()))

    def _more(self, deadline: float) -> bool:
        if not select.select([self._end], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return True
        try:
            data = os.read(self._end, 65536)
        except OSError:  # no process has the other end open any more
            return False
        self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        return bool(data)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._end)


def _own_terminal() -> None:
    """Make standard input the controlling terminal, so that Ctrl-C there is a signal."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.default_int_handler)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
