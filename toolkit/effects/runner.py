"""The one seam to the world: something that runs a Command and gives back a Result."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol

from toolkit.core.causes import never_ran
from toolkit.core.command import Command
from toolkit.core.result import TIMED_OUT, Result

Sink = Callable[[bytes], None]


class Runner(Protocol):
    """Runs commands somewhere.

    ``run`` returns a Result whatever the status is; it raises only when the place itself cannot be
    reached any more (``Unreachable``).
    """

    @property
    def name(self) -> str:
        """The inventory name of the place."""

    def run(self, command: Command, timeout: float | None = None) -> Result:
        """Run to the end. After ``timeout`` seconds the command is ended there and the status is 124."""

    def stream(self, command: Command, sink: Sink, source: Iterable[bytes] | None = None) -> Result:
        """Run to the end; output goes to ``sink`` as it comes, standard input is fed from ``source``."""


class Follower(Runner, Protocol):
    """Runs commands somewhere, and passes on both streams of a command as they come."""

    def follow(
        self,
        command: Command,
        out: Sink,
        err: Sink,
        source: Iterable[bytes] | None = None,
        timeout: float | None = None,
        hold: bool = False,
    ) -> Result:
        """Run to the end; ``timeout`` as with ``run``. The result has words of ours alone in ``stderr``.

        Args:
            hold: standard input stays open while there is a connection, and nothing comes in it.
        """


# Runs a command until standard input ends: it ends with who wants it, however that one ends.
_WHILE_HELD = r"""
exec 3<&0
"$@" </dev/null 3<&- & own=$!
{ while read -r _; do :; done; kill $own; } <&3 >/dev/null 2>&1 & left=$!
wait $own; status=$?
kill $left 2>/dev/null
exit $status
"""


class LocalRunner:
    """Runs commands on this machine."""

    name = "local"

    def run(self, command: Command, timeout: float | None = None) -> Result:
        start = time.monotonic()
        # start_new_session: Ctrl-C on the terminal is ours to handle, not the child's.
        try:
            done = subprocess.run(
                [str(t) for t in command.argv],
                input=command.stdin if command.stdin is not None else b"",
                capture_output=True,
                timeout=timeout,
                start_new_session=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Result(TIMED_OUT, "", f"no end after {timeout:g} s", time.monotonic() - start)
        except FileNotFoundError as error:
            return Result(127, "", str(error), time.monotonic() - start)
        return Result(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
            time.monotonic() - start,
        )


class ContainerRunner:
    """Runs commands inside a container, through another runner."""

    def __init__(self, outer: Runner, container: str, user: str = "") -> None:
        self.outer, self.container, self.user = outer, container, user

    @property
    def name(self) -> str:
        return self.outer.name

    def _within(self, command: Command, feeds: bool) -> Command:
        if any("\ud800" <= letter <= "\udfff" for token in command.argv for letter in str(token)):
            command = command.packed()  # docker would put a sign of its own for bytes that are no UTF-8
        flags = ["-i"] if feeds or command.stdin is not None else []
        if self.user:
            flags += ["-u", self.user]
        return command.within("docker", "exec", *flags, self.container)

    def run(self, command: Command, timeout: float | None = None) -> Result:
        if timeout is None:
            whole, limit = self._within(command, False), None
        else:
            # In there, because ending `docker exec` out here leaves what it started running.
            whole, limit = self._within(command.limited(timeout), False), timeout + 10
        result = self.outer.run(whole, limit)
        return self.outer.run(whole, limit) if _accident(result) else result

    def follow(
        self, outer: Follower, command: Command, out: Sink, err: Sink, timeout: float | None = None
    ) -> Result:
        """Run in the container of the host `outer`, where it ends with the connection; see ``Follower``."""
        # Without a limit as well: `timeout` passes SIGTERM on to all that the command has started.
        ended = command.within("timeout", "-k", "5", "0") if timeout is None else command.limited(timeout)
        whole = self._within(ended.within("sh", "-c", _WHILE_HELD, "sh"), True)
        limit = None if timeout is None else timeout + 10
        streams = _Withheld(out), _Withheld(err)
        result = outer.follow(whole, *streams, timeout=limit, hold=True)
        if _accident(result, "".join(stream.text for stream in streams)):
            result = outer.follow(whole, out, err, timeout=limit, hold=True)
        else:
            for stream in streams:
                stream.give()
        late = result.status == TIMED_OUT and result.stderr
        return replace(result, stderr=f"no end after {timeout:g} s") if late else result

    def stream(self, command: Command, sink: Sink, source: Iterable[bytes] | None = None) -> Result:
        whole = self._within(command, source is not None)
        output = _Withheld(sink)
        result = self.outer.stream(whole, output, source)
        # A source may have been read from; a command without one can be begun once more.
        if source is None and _accident(result, output.text):
            return self.outer.stream(whole, sink)
        output.give()
        return result


class _Withheld:
    """Passes output on, but not yet what may be the engine's word that the command never ran."""

    # It says so where the command's own output would come.
    _WORD = b"OCI runtime exec failed"

    def __init__(self, sink: Sink) -> None:
        self._sink, self._kept, self._open = sink, b"", False

    def __call__(self, data: bytes) -> None:
        if self._open:
            self._sink(data)
            return
        self._kept += data
        if not self._kept.startswith(self._WORD[: len(self._kept)]) or len(self._kept) > 4096:
            self.give()

    @property
    def text(self) -> str:
        return self._kept.decode(errors="replace")

    def give(self) -> None:
        self._open = True
        if self._kept:
            self._sink(self._kept)
        self._kept = b""


def _accident(result: Result, said: str = "") -> bool:
    return not result.ok and never_ran(result.output + said)
