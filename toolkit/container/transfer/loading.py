"""One archive of relay.py on its way into the host's engine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable


class Loading:
    """One `docker load`, or `podman load`.

    Args:
        number: of the archive.
        ended: told number, exit status and what it said.
    """

    def __init__(self, number: int, ended: Callable[[int, int, str], None]) -> None:
        self.number, self._ended = number, ended
        self.done = threading.Event()
        self.status = -1
        self.process = subprocess.Popen(
            # In the words of the host's own engine; see toolkit/transfer/host_programs.py.
            os.environ.get("TOOLKIT_LOAD", "docker load --quiet").split(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.open = True

    def write(self, data: bytes) -> None:
        """Once it has ended, what was for it is dropped: the next host still needs it."""
        assert self.process.stdin is not None
        if self.open:
            try:
                self.process.stdin.write(data)
            except OSError:
                self.open = False

    def finish(self) -> Loading:
        threading.Thread(target=self.wait, daemon=True).start()
        return self

    def wait(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        said = self.process.stdout.read()
        self.status = self.process.wait()
        self.done.set()
        self._ended(self.number, self.status, said[-4000:].decode("utf-8", errors="replace"))

    def good(self) -> bool:
        self.done.wait()
        return self.status == 0

    def kill(self) -> None:
        self.open = False
        self.process.kill()
