"""One SSH connection per host, through Fabric, with strict host keys and statuses that are always returned.

Fabric's own ``run`` accepts unknown host keys, raises on a status other than 0, reads standard input and
pastes ``env=`` into a shell line unquoted. Therefore toolkit uses only Fabric's connection, gateway and
authentication, and runs commands on plain channels.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

import paramiko

from toolkit.core.command import TIMED_OUT, Command, Result, timeout_text
from toolkit.core.engines import DOCKER, translate_engine
from toolkit.core.runner import Sink
from toolkit.errors import NotReady, ToolkitError, Unreachable
from toolkit.remote.connect import Gateways, Link
from toolkit.remote.keepalive import SILENCE_S
from toolkit.remote.ssh_config import Target

_CHUNK = 2**15
_SLICE_S = 5.0  # of one wait for output, if silence is limited
_DIAL_S = 15.0
# The host ends a command at its timeout. This many seconds later this machine treats the host as lost.
_LATE_S = 15.0
_DRAIN_S = 5.0  # for the end of standard error, once the command has ended
_KILLED = 128 + 9
_MOST_BYTES = 32 << 20  # most bytes of a command's output that is kept
_MOST_LINES = 1 << 20  # of it: each line becomes a string of its own
_MOST_BEFORE = 1 << 17  # most bytes that a login shell prints before a command
_MOST_ARGUMENT = (1 << 17) - 1  # bytes, MAX_ARG_STRLEN without the zero at the end (man 2 execve)
_MOST_WORD = 96 << 10  # bytes of a line or script; above, it is sent over standard input
_MOST_ERRORS = 1 << 20  # that are kept of standard error
_AGAIN = "run the same command again when the host is reachable"
_CLOSED_FIX = "run the same command again"

# Called with the host's name and the readable command, before the command runs.
Trace = Callable[[str, str], None]

_PLAIN = re.compile(r"[A-Za-z0-9@%+=:,./_ \"$&()*;<>?\[\]{}|~#-]*")

# Separates the output of a login shell (a banner, a greeting, an error) from the output of the command, on
# both streams.
MARK = "@@toolkit@@"
# The login can set the locale of the host, as by PAM on Debian. Causes of failures are recognized by English
# messages.
_MARKS = f"LC_ALL=C; export LC_ALL; echo {MARK}; echo {MARK} >&2"


def wire(command: Command, timeout: float | None = None) -> str:
    """Return the line to send, the same in effect under every login shell (sh, bash, zsh, fish, csh).

    Those shells agree on single quotes only as long as nothing inside needs escaping; any other
    command is sent as base64, which a POSIX shell on the host unpacks. The command's output follows
    after a line with MARK.
    """
    line, plain = _line(command, timeout)
    if plain:
        return f"""exec sh -c '{_MARKS}; exec "$@"' sh {line}"""
    return f"""exec sh -c '{_MARKS}; eval "$({_unpack(line)})"'"""


def wire_and_input(command: Command, timeout: float | None = None) -> tuple[str, bytes]:
    """Return the line to send, and the bytes that its standard input begins with.

    sshd passes a line as one argument to the login shell, and Linux limits an argument. A longer line, and
    the text of a longer script, are therefore read from standard input.

    Raises:
        ToolkitError: another argument is too long.
    """
    words, text = command.argv, b""
    if words[:2] == ("sh", "-c") and len(_bytes(str(words[2]))) > _MOST_WORD:
        text = _bytes(str(words[2]))
        command = replace(command, argv=("sh", "-c", _from_stdin(text), *words[3:]))
    longest = max((len(_bytes(str(word))) for word in command.argv), default=0)
    if longest > _MOST_ARGUMENT:
        what = (
            f"an argument of a command has {longest} bytes, but the limit of Linux is {_MOST_ARGUMENT} bytes"
        )
        raise ToolkitError(f"{what}: {command.line()[:80]}", "shorten the argument, or put it into a file")
    line = wire(command, timeout)
    if len(line) <= _MOST_WORD:
        return line, text
    whole = _bytes(_line(command, timeout)[0])
    return f"exec sh -c '{_MARKS}; {_from_stdin(whole)}'", whole + text


def _from_stdin(text: bytes) -> str:
    """Return shell text that runs the first part of standard input; head of coreutils reads no more."""
    return f'eval "$(head -c {len(text)})"'


def _bytes(text: str) -> bytes:
    # surrogateescape: bytes of an argument that are no UTF-8 arrive as they were.
    return text.encode(errors="surrogateescape")


def terminal_wire(command: Command) -> str:
    """Return the line to send for a user at a terminal, without markers in the output."""
    line, plain = _line(command, None)
    return line if plain else f"""exec sh -c 'eval "$({_unpack(line)})"'"""


def _line(command: Command, timeout: float | None) -> tuple[str, bool]:
    """The command for a POSIX shell, and whether every other shell reads it in the same way."""
    # Ended on the host, so that nothing of it stays behind.
    line = (command if timeout is None else command.limited(timeout)).shell()
    # Quoting leaves these as they are, and zsh takes =ls for a program's path, fish %self for a process id.
    expanded = any(str(token).startswith(("=", "%")) for token in command.argv)
    plain = _PLAIN.fullmatch(line.replace("'", "")) and "'\"'\"'" not in line
    return line, bool(plain) and not expanded


def _unpack(line: str) -> str:
    packed = base64.b64encode(_bytes(line)).decode()
    return f"printf %s {packed} | base64 -d"


class _Framed:
    """Passes on what comes after the mark; what comes before it is kept in ``before``."""

    def __init__(self, sink: Sink, host: str = "") -> None:
        self._sink, self._host, self.before, self.begun = sink, host, b"", False

    def __call__(self, data: bytes) -> None:
        if not self.begun:
            self.before, mark, data = (self.before + data).partition(f"{MARK}\n".encode())
            self.begun = bool(mark)
            if len(self.before) > _MOST_BEFORE:
                what = (
                    f"the login shell of the host prints more than {_MOST_BEFORE >> 10} KiB before a command"
                )
                raise ToolkitError(
                    what,
                    f"on {self._host}: change the startup files of the login shell so that they print less",
                    self._host,
                )
        if data:
            self._sink(data)


class SshRunner:
    """Runs commands on one host over one connection; see ``toolkit.core.runner.Runner``.

    Args:
        gateways: see ``Link``.
    """

    def __init__(
        self,
        target: Target,
        connect_timeout: float = 10.0,
        trace: Trace | None = None,
        silence: float = SILENCE_S,
        engine: str = DOCKER,
        gateways: Gateways | None = None,
    ) -> None:
        self.target = target
        self.engine = engine
        self._trace = trace
        self._link = Link(target, connect_timeout, silence, gateways)
        self._closed = False

    @property
    def name(self) -> str:
        return self.target.name

    def open(self) -> None:
        """Connect and authenticate, once.

        Raises:
            Unreachable: with the reason and the command that fixes it. A refused key is not tried
                again: after repeated failures the host's sshd would block this machine.
        """
        self._link.open()

    def close(self) -> None:
        self._closed = True
        self._link.close()

    def run(self, command: Command, timeout: float | None = None) -> Result:
        kept = bytearray()
        lines = 0

        def keep(data: bytes) -> None:
            nonlocal lines
            kept.extend(data)
            lines += data.count(b"\n")
            if len(kept) > _MOST_BYTES or lines > _MOST_LINES:
                most = f"{_MOST_BYTES >> 20} MiB or {_MOST_LINES} lines"
                what = f"a command printed more than {most}: {command.line()[:80]}"
                raise ToolkitError(what, "toolkit check", self.name)

        source = None if command.stdin is None else _pieces(command.stdin)
        command = translate_engine(command, self.engine)
        self._tell(command)
        result = self._exec(wire_and_input(command, timeout), keep, source, timeout)
        raw = bytes(kept)
        return Result(result.status, raw.decode(errors="replace"), result.stderr, result.seconds, raw)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        if source is None and command.stdin is not None:
            source = _pieces(command.stdin)
        command = translate_engine(command, self.engine)
        self._tell(command)
        return self._exec(wire_and_input(command), sink, source, None, silence=silence)

    def follow(
        self,
        command: Command,
        out: Sink,
        err: Sink,
        source: Iterable[bytes] | None = None,
        timeout: float | None = None,
        hold: bool = False,
    ) -> Result:
        if source is None and command.stdin is not None:
            source = _pieces(command.stdin)
        command = translate_engine(command, self.engine)
        self._tell(command)
        return self._exec(wire_and_input(command, timeout), out, source, timeout, err, hold)

    @property
    def is_open(self) -> bool:
        """True if a connection exists, as far as is known."""
        return not self._closed and self._link.connection.is_connected

    def dial(self, address: tuple[str, int]) -> paramiko.Channel:
        """Return a connection from the host to an address (RFC 4254, 7.2).

        Raises:
            NotReady: the host cannot connect to the address.
            ToolkitError: the host's sshd forbids forwarding.
            Unreachable: the connection to the host is lost.
        """
        where = f"{address[0]}:{address[1]}"
        try:
            here = ("127.0.0.1", 0)
            return self._link.transport.open_channel("direct-tcpip", address, here, timeout=_DIAL_S)
        except paramiko.ChannelException as error:
            if error.code == 1:  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED
                fix = f"on {self.name}: set AllowTcpForwarding yes in /etc/ssh/sshd_config, then restart sshd"
                raise ToolkitError("the sshd of the host forbids TCP forwarding", fix, self.name) from error
            why = f"the host cannot connect to {where}"
            raise NotReady(why, "toolkit status", self.name) from error
        except (OSError, EOFError, paramiko.SSHException) as error:
            why = f"the connection was lost: {self._link.lost or error}"
            raise Unreachable(why, _AGAIN, self.name) from error

    def interactive(self, command: Command) -> int:
        """Run with this terminal connected to a terminal on the host; return the status.

        Raises:
            Unreachable: the host does not start the command.
        """
        line = terminal_wire(translate_engine(command, self.engine))
        try:
            done = self._link.connection.run(line, pty=True, warn=True, hide=False)
        except (EOFError, paramiko.SSHException) as error:
            raise Unreachable(
                f"the connection was lost: {self._link.lost or error}", _AGAIN, self.name
            ) from error
        return _exit_code(done.return_code)

    def _tell(self, command: Command) -> None:
        if self._trace:
            self._trace(self.name, command.line())

    def _exec(
        self,
        words: tuple[str, bytes],
        sink: Sink,
        source: Iterable[bytes] | None,
        timeout: float | None,
        error_sink: Sink | None = None,
        hold: bool = False,
        silence: float | None = None,
    ) -> Result:
        """Run a line; standard error goes to `error_sink`, or to the result.

        Args:
            words: see ``wire_and_input``.
            silence: seconds without a byte after which the host is given up, see ``Runner.stream``.
        """
        start = time.monotonic()
        errors = bytearray()
        broken: list[BaseException] = []
        line, head = words
        if head:
            source = itertools.chain(_pieces(head), source or ())

        def keep(data: bytes) -> None:
            errors.extend(data[: _MOST_ERRORS - len(errors)])

        out, err = _Framed(sink, self.name), _Framed(error_sink or keep, self.name)
        # The host ends a late command. This limit is for a host that is silent, and for a process that
        # outlives the command, holds its output open and prints.
        deadline = None if timeout is None else start + timeout + _LATE_S
        try:
            status = self._exchange(line, source, out, err, broken, hold, deadline, silence)
        except TimeoutError as error:
            if error in broken:
                raise
            if timeout is not None:
                why = timeout_text(timeout)
            else:
                why = f"the command printed nothing for {silence:g} s"
            return Result(TIMED_OUT, "", why, time.monotonic() - start)
        except (OSError, EOFError, paramiko.SSHException) as error:
            if error in broken:
                raise
            lost = f"the connection was lost: {self._link.lost or error}"
            why = "toolkit closed the connection to the host" if self._closed else lost
            raise Unreachable(why, _CLOSED_FIX if self._closed else _AGAIN, self.name) from error
        if broken:
            raise broken[0]
        result = self._ended(status, bytes(errors), timeout, time.monotonic() - start)
        if not out.begun:
            raise self._no_shell(out.before + b"\n" + err.before + result.stderr.encode())
        return result

    def _exchange(
        self,
        line: str,
        source: Iterable[bytes] | None,
        out: Sink,
        err: Sink,
        broken: list[BaseException],
        hold: bool,
        deadline: float | None,
        silence: float | None,
    ) -> int:
        """Run a line on a channel of its own: send its input, pass on its output, return its exit status.

        Args:
            broken: gets what a sink or the source raised; that error is raised, whatever the connection says.
        """
        taken = 0

        def counted(chunks: Iterable[bytes]) -> Iterator[bytes]:
            nonlocal taken
            for chunk in chunks:
                yield chunk
                taken += 1

        try:
            channel = self._link.connection.create_session()
        except paramiko.ChannelException as error:
            what = "sshd on the host allows no more sessions on this connection"
            fix = f"on {self.name}: set MaxSessions 10 in /etc/ssh/sshd_config, then restart sshd"
            raise ToolkitError(what, fix, self.name) from error
        try:
            channel.settimeout(_left(deadline))
            channel.exec_command(line)
            drain = threading.Thread(target=_drain, args=(channel, err, broken), daemon=True)
            drain.start()
            if source is None and not hold:
                channel.shutdown_write()
            if source is not None:
                food = (channel, counted(source), broken, hold)
                threading.Thread(target=_feed, args=food, daemon=True).start()
            for data in arriving(channel, deadline, silence, lambda: taken):
                try:
                    out(data)
                except OSError as error:
                    # Of this machine, a full disk or a pipe that was closed: not the connection's fault.
                    broken.append(error)
                    channel.close()
                    break
            if broken:
                raise broken[0]
            if not channel.status_event.wait(_least(_left(deadline), silence)):
                raise TimeoutError
            status = _exit_code(channel.recv_exit_status())
            # The thread that feeds the command possibly waits for its source. It ends with its next chunk.
            drain.join(_DRAIN_S)
            return status
        finally:
            channel.close()

    def _ended(self, status: int, errors: bytes, timeout: float | None, seconds: float) -> Result:
        """Return the result of a command that has ended; -1 is the status of one that has none.

        Raises:
            Unreachable: the connection was lost first.
        """
        if status == -1 and self._is_lost():
            if self._closed:
                raise Unreachable("toolkit closed the connection to the host", _CLOSED_FIX, self.name)
            why = f": {self._link.lost}" if self._link.lost else ""
            raise Unreachable(f"the connection was lost before the command exited{why}", _AGAIN, self.name)
        stderr = errors.decode(errors="replace")
        if status == -1:
            why = "the command was killed on the host, perhaps because the host ran out of memory"
            return Result(_KILLED, "", f"{stderr}\n{why}", seconds)
        if status == TIMED_OUT and timeout is not None and not stderr:
            stderr = timeout_text(timeout)
        return Result(status, "", stderr, seconds)

    def _is_lost(self) -> bool:
        # A command that a signal has ended has no status either; a transport that ends takes a moment to.
        self._link.transport.join(0.5)
        return not self._link.transport.is_active()

    def _no_shell(self, output: bytes) -> Unreachable:
        lines = output.decode(errors="replace").split("\n")
        user, words = self.target.user, " | ".join(lines[-4:]).strip(" |")
        what = f"user {user} can log in but cannot run commands" + (f"; output: {words}" if words else "")
        fix = (
            f"on {self.name}: sudo usermod --shell /bin/bash {user}  # also check the startup files of "
            "the shell, ForceCommand in sshd_config, and command= in authorized_keys"
        )
        return Unreachable(what, fix, self.name)


def _exit_code(status: int) -> int:
    """Return a status as a process can end with it, or -1 for none.

    On the wire it has 32 bits (RFC 4254, 6.10). A command that ended with 256 in its turn would succeed.
    """
    return status if -1 <= status <= 255 else 255


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


def _least(*limits: float | None) -> float | None:
    return min((limit for limit in limits if limit is not None), default=None)


def _pieces(data: bytes) -> Iterable[bytes]:
    return (data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK))


class Timed(Protocol):
    """The part of a paramiko channel that is needed to read it."""

    def settimeout(self, timeout: float | None) -> object: ...

    def recv(self, nbytes: int) -> bytes: ...

    def recv_ready(self) -> bool: ...


def arriving(
    channel: Timed,
    until: float | None,
    silence: float | None = None,
    sent: Callable[[], int] = lambda: 0,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes]:
    """Yield what a channel receives up to its end.

    Args:
        sent: returns how many pieces of input the other end has taken, which is a sign of life too.

    Raises:
        TimeoutError: it has not ended by `until`, whether bytes still arrive or not; or there was no sign of
            life for `silence` seconds. Time in which this machine stood still does not count.
    """
    quiet, taken = 0.0, sent()
    while True:
        left = None if until is None else until - clock()
        if left is not None and left <= 0:
            raise TimeoutError
        limit = left if silence is None else _least(left, silence, _SLICE_S)
        if limit is not None:
            channel.settimeout(limit)
        try:
            data = channel.recv(_CHUNK)
        except TimeoutError:
            if silence is None or limit is None:
                raise
            # A wait can end late, after this machine slept, although bytes have arrived.
            before, taken = taken, sent()
            quiet = 0.0 if channel.recv_ready() or taken != before else quiet + limit
            if quiet >= silence:
                raise
            continue
        if not data:
            return
        quiet = 0.0
        yield data


def _drain(channel: paramiko.Channel, into: Sink, broken: list[BaseException]) -> None:
    while True:
        try:
            data = channel.recv_stderr(_CHUNK)
        except TimeoutError:
            if channel.closed:
                return
            continue  # the limit of both streams is for standard output
        except (OSError, EOFError, paramiko.SSHException):
            return  # the caller, who reads standard output, meets the same
        if not data:
            return
        try:
            into(data)
        except BaseException as error:
            broken.append(error)
            channel.close()  # a command waits without end if its standard error is not read
            return


def _feed(
    channel: paramiko.Channel, source: Iterable[bytes], broken: list[BaseException], hold: bool = False
) -> None:
    chunks = iter(source)
    while True:
        try:
            chunk = next(chunks, None)
        except BaseException as error:
            broken.append(error)
            break
        if chunk is None:
            break
        try:
            channel.sendall(chunk)
        except (OSError, EOFError, paramiko.SSHException):
            break  # the command ended without reading everything, or its host did: who waits for it sees why
    if hold:
        return
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        channel.shutdown_write()
