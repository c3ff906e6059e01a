"""Runners execute a Command and return a Result: the interface between plans and hosts, and this machine."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from toolkit.core.command import TIMED_OUT, Command, Result, timeout_text
from toolkit.core.engines import ENGINE_FAILED

Sink = Callable[[bytes], None]
# Seconds without output after which a host that sends files is given up. A search through many files can take
# minutes before the first one is sent.
MOST_SILENCE_S = 300.0


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

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        """Run to the end; output goes to ``sink`` as it comes, standard input is fed from ``source``.

        Args:
            silence: if no byte of output arrives and no piece of input is taken for this many seconds, give
                up with status 124. The command ends there with the connection, or when it next writes.
        """


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
        """Run to the end; ``timeout`` as with ``run``. The result's ``stderr`` has only toolkit's text.

        Args:
            hold: keep standard input open, without data, as long as the connection exists.
        """


_UNTIL_STDIN_ENDS = r"""
exec 3<&0
"$@" </dev/null 3<&- & own=$!
{ while read -r _; do :; done; kill $own; } <&3 >/dev/null 2>&1 & left=$!
wait $own; status=$?
kill $left 2>/dev/null
exit $status
"""


def until_stdin_ends(command: Command) -> Command:
    """Return a command that ends when its standard input is closed, for example by a lost connection.

    A waiting command would otherwise outlive the process that started it.
    """
    return command.within("sh", "-c", _UNTIL_STDIN_ENDS, "sh")


class LocalRunner:
    """Runs commands on this machine."""

    name = "local"

    def run(self, command: Command, timeout: float | None = None) -> Result:
        start = time.monotonic()
        # start_new_session: toolkit, not the child, handles Ctrl-C on the terminal.
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
            return Result(TIMED_OUT, "", timeout_text(timeout or 0.0), time.monotonic() - start)
        except FileNotFoundError as error:
            return Result(127, "", str(error), time.monotonic() - start)
        return Result(
            done.returncode,
            done.stdout.decode(errors="replace"),
            done.stderr.decode(errors="replace"),
            time.monotonic() - start,
            done.stdout,
        )


def is_here(program: str) -> bool:
    """Return whether a program is found on PATH."""
    return shutil.which(program) is not None


def run_here(argv: Sequence[str], stdin: str = "", timeout: float = 60.0, apart: bool = False) -> Result:
    """Run a program of this machine to its end; it is killed at the time limit, or if it prints too much.

    A program that a hung driver keeps in the kernel (state D) outlives the call.

    Args:
        apart: keep Ctrl-C on the terminal from the program.
    """
    began = time.monotonic()
    out, err = bytearray(), bytearray()
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        list(argv), bufsize=0, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=apart
    )
    try:
        why = _exchange(process, stdin.encode(errors="replace"), out, err, began + timeout)
        if not why:
            process.wait(max(0.0, began + timeout - time.monotonic()))
    except subprocess.TimeoutExpired:
        why = "late"
    finally:
        process.kill()  # does nothing to a program that has exited
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()
        # Not `with`, which waits without a limit: no signal ends a program in state D.
        with suppress(subprocess.TimeoutExpired):
            process.wait(_DEATH_S)
    seconds = time.monotonic() - began
    # Programs of an image can print any bytes.
    printed = out.decode(errors="replace")
    if why == "late":
        return Result(TIMED_OUT, printed, timeout_text(timeout), seconds)
    if why:
        return Result(1, "", why, seconds)
    return Result(process.returncode, printed, err.decode(errors="replace"), seconds, bytes(out))


_DEATH_S = 2.0  # for a killed program to end
_CHUNK = 1 << 16
_MOST_HERE = 64 << 20  # bytes of each stream


def _exchange(
    process: subprocess.Popen[bytes], given: bytes, out: bytearray, err: bytearray, until: float
) -> str:
    """Feed a program and keep its output until both streams end.

    Returns:
        ``late`` after the time limit, or the reason why the program must not continue; otherwise empty.
    """
    assert process.stdin and process.stdout and process.stderr
    left = memoryview(given)
    os.set_blocking(process.stdin.fileno(), False)
    with selectors.DefaultSelector() as streams:
        streams.register(process.stdin, selectors.EVENT_WRITE)
        streams.register(process.stdout, selectors.EVENT_READ, out)
        streams.register(process.stderr, selectors.EVENT_READ, err)
        while streams.get_map():
            if (rest := until - time.monotonic()) <= 0:
                return "late"
            for key, _ in streams.select(rest):
                if key.data is not None:
                    data = os.read(key.fd, _CHUNK)
                    key.data.extend(data)
                    if len(key.data) > _MOST_HERE:
                        return f"the program printed more than {_MOST_HERE >> 20} MiB"
                    if not data:
                        streams.unregister(key.fileobj)
                    continue
                try:
                    left = left[os.write(key.fd, left[:_CHUNK]) :]
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    streams.unregister(process.stdin)
                    process.stdin.close()
    return ""


class ContainerRunner:
    """Runs commands inside a container, through another runner."""

    def __init__(self, outer: Runner, container: str, user: str = "") -> None:
        self.outer, self.container, self.user = outer, container, user

    @property
    def name(self) -> str:
        return self.outer.name

    def _within(self, command: Command, feeds: bool) -> Command:
        if any("\ud800" <= letter <= "\udfff" for token in command.argv for letter in str(token)):
            command = command.packed()  # docker would replace bytes that are not UTF-8
        flags = ["-i"] if feeds or command.stdin is not None else []
        if self.user:
            flags += ["-u", self.user]
        return command.within("docker", "exec", *flags, self.container)

    def run(self, command: Command, timeout: float | None = None) -> Result:
        # In the container, because the end of `docker exec` does not end the program that it started.
        ended = command if timeout is None else command.limited(timeout)
        whole, limit = self._announced(ended, False), None if timeout is None else timeout + 10
        result = self.outer.run(whole, limit)
        if not result.stdout.startswith(_BEGUN) and _may_repeat(result):
            result = self.outer.run(whole, limit)
        return replace(result, stdout=result.stdout.removeprefix(_BEGUN))

    def follow(
        self, outer: Follower, command: Command, out: Sink, err: Sink, timeout: float | None = None
    ) -> Result:
        """Run in the container of the host `outer`, where it ends with the connection; see ``Follower``."""
        # Without a limit as well: `timeout` passes SIGTERM on to all that the command has started.
        ended = command.within("timeout", "-k", "5", "0") if timeout is None else command.limited(timeout)
        whole = self._announced(until_stdin_ends(ended), True)
        limit = None if timeout is None else timeout + 10
        streams = _Announced(out, err)
        result = outer.follow(whole, streams.out, streams.err, timeout=limit, hold=True)
        if not streams.begun and _may_repeat(result):
            streams = _Announced(out, err)
            result = outer.follow(whole, streams.out, streams.err, timeout=limit, hold=True)
        streams.give()
        if timeout is None or result.status != TIMED_OUT or not result.stderr:
            return result
        return replace(result, stderr=timeout_text(timeout))

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        if source is not None:  # a part of it is possibly consumed, so the command is not repeated
            return self.outer.stream(self._within(command, True), sink, source, silence)
        whole, streams = self._announced(command, False), _Announced(sink)
        result = self.outer.stream(whole, streams.out, None, silence)
        if not streams.begun and _may_repeat(result):
            streams = _Announced(sink)
            result = self.outer.stream(whole, streams.out, None, silence)
        streams.give()
        return result

    def _announced(self, command: Command, feeds: bool) -> Command:
        """Return the command so that it first prints that it has begun: from then on it is not repeated."""
        return self._within(command.within("sh", "-c", _ANNOUNCE, "sh"), feeds)


# What a command prints afterwards, or its status, cannot make it look as if it had not begun.
_BEGUN = "@@begun@@\n"
_MOST_KEPT = 1 << 17  # bytes of each stream until then
_ANNOUNCE = 'echo @@begun@@; exec "$@"'


class _Announced:
    """Forwards both streams of a command once it has begun; earlier output comes from the engine."""

    def __init__(self, out: Sink, err: Sink | None = None) -> None:
        self._out, self._err = out, err
        self._kept_out, self._kept_err = b"", b""
        self._open = self.begun = False
        self._lock = threading.Lock()

    def out(self, data: bytes) -> None:
        with self._lock:
            if not self._open:
                self._kept_out += data
                mark = _BEGUN.encode()
                self.begun = self._kept_out.startswith(mark)
                if not self.begun:
                    # Output that does not start with the mark is the engine's; its first bytes are kept.
                    self._kept_out = self._kept_out[:_MOST_KEPT]
                    return
                data, self._kept_out = self._kept_out[len(mark) :], b""
                self._pass_on()
            if data:
                self._out(data)

    def err(self, data: bytes) -> None:
        with self._lock:
            if not self._open:
                self._kept_err = (self._kept_err + data)[:_MOST_KEPT]
            elif self._err is not None:
                self._err(data)

    def give(self) -> None:
        """Forward the kept output of a command that has not begun."""
        with self._lock:
            self._pass_on()

    def _pass_on(self) -> None:
        self._open = True
        if self._kept_out:
            self._out(self._kept_out)
        if self._kept_err and self._err is not None:
            self._err(self._kept_err)
        self._kept_out = self._kept_err = b""


def _may_repeat(result: Result) -> bool:
    """Return whether a command that did not begin failed in the engine, not by a timeout or a lost host."""
    return result.status in ENGINE_FAILED
