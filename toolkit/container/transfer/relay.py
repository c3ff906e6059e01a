"""Takes an image or a data set in chunks, puts it away, and gives the chunks to the next host.

usage: transfer.relay ADDRESS    listens there on a port that the kernel chooses

Runs on a host as the ssh user, with the host's own Python (3.8 or newer) and the modules that it imports,
which are sent with it, for as long as its standard input is open. It decides nothing: who gives to whom, and
which chunks are right, is told on standard input by whoever started it; what happens is told on standard
output, one line of JSON each. An image goes to the host's engine, a data set into a folder (unpack.py).

Standard input, and what hosts send to each other, are frames: kind, flags, number, length, content.
    J  an order, as JSON             D  digests of plain chunks, from a number on
    C  a chunk, plain or compressed  H  hello: the next chunk that is needed
Hosts speak TLS to each other. Both sides have certificates that were made for this transfer alone, and each
was told which host to expect. A chunk counts only under the digest that came by standard input.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, BinaryIO, NoReturn

from toolkit.container.transfer.unpack import Shelf
from toolkit.protocol.chunks import CHUNK, HEAD, ZSTD


class Fault(Exception):
    """What a person is told."""


class Inflater:
    """Undoes zstd with the system's library, which Debian's and Red Hat's own package tools need."""

    def __init__(self) -> None:
        self.library: Any = None
        with contextlib.suppress(OSError, AttributeError):
            library = ctypes.CDLL("libzstd.so.1")
            library.ZSTD_decompress.restype = ctypes.c_size_t
            library.ZSTD_decompress.argtypes = (
                *(ctypes.c_void_p, ctypes.c_size_t),
                *(ctypes.c_char_p, ctypes.c_size_t),
            )
            library.ZSTD_isError.argtypes = (ctypes.c_size_t,)
            self.library = library

    def plain(self, flags: int, data: bytes) -> bytes:
        if not flags & ZSTD:
            return data
        if self.library is None:
            raise Fault("a compressed chunk, and this host has no libzstd.so.1")
        room = ctypes.create_string_buffer(CHUNK)
        size = self.library.ZSTD_decompress(room, CHUNK, data, len(data))
        if self.library.ZSTD_isError(size):
            raise Fault("a damaged chunk")
        return room.raw[:size]


def frame(read: Callable[[int], bytes], most: int) -> tuple[bytes, int, int, bytes]:
    kind, flags, number, size = HEAD.unpack(read(HEAD.size))
    if size > most:
        raise Fault("what came is no frame")
    return kind, flags, number, read(size)


def read_frame(link: ssl.SSLSocket) -> tuple[bytes, int, int, bytes]:
    # No other host is let fill this one's memory.
    return frame(lambda count: _receive(link, count), CHUNK)


def _receive(link: ssl.SSLSocket, count: int) -> bytes:
    room = memoryview(bytearray(count))
    done = 0
    while done < count:
        size = link.recv_into(room[done:])
        if not size:
            raise EOFError("it hung up")
        done += size
    return bytes(room)


def words_of(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())


def tls(protocol: ssl._SSLMethod, key: str, cert: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # the name of a host is compared with its certificate's, see peer
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    # Python takes a key from a file alone; this one is in no folder, and goes with the process.
    memory = os.memfd_create("key")
    with os.fdopen(memory, "wb") as file:
        file.write(f"{key}\n{cert}\n".encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    return context


def peer(link: ssl.SSLSocket) -> str:
    """The name in the other side's certificate, which has been verified."""
    subject: Any = (link.getpeercert() or {}).get("subject", ())
    return next((value for part in subject for name, value in part if name == "commonName"), "")


def tune(link: ssl.SSLSocket) -> None:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # What waits in the kernel is lost to the next host when this one goes, and late for it when it is slow.
    link.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), CHUNK)
    # A host that was cut off says nothing; by itself TCP would wait for a quarter of an hour.
    link.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), 15_000)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def waiting(file: int) -> int:
    """Bytes that have come and were not read."""
    count = bytearray(4)
    with contextlib.suppress(OSError, ValueError):
        fcntl.ioctl(file, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def hang_up(link: socket.socket | None) -> None:
    if link is not None:
        with contextlib.suppress(OSError):
            # Not SSLSocket's own, which takes from a thread that reads what it reads with.
            socket.socket.shutdown(link, socket.SHUT_RDWR)


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


CONNECT, GREET = 3.0, 5.0


class Downstream:
    """The next host: gets what it needs, from the chunk on that it names."""

    def __init__(self, relay: Relay, host: str) -> None:
        self.relay, self.host = relay, host
        self.at: int | None = None  # the chunk it needs next, once it has said so
        self.ended = False
        self.link: ssl.SSLSocket | None = None

    def give(self, address: str, port: int) -> None:
        relay = self.relay
        begun = False
        try:
            here = (relay.address, 0)
            caller = socket.create_connection((address, port), CONNECT, source_address=here)
            self.link = link = relay.client.wrap_socket(caller)
            if peer(link) != self.host:
                raise Fault(f"{peer(link)} answers there")
            link.settimeout(GREET)
            _, _, number, _ = read_frame(link)
            tune(link)
            begun = True
            while not self.ended:
                with relay.changed:
                    self.at = number
                    relay.changed.notify_all()
                    while not self.ended and number >= relay.at:
                        relay.changed.wait()
                    if self.ended:
                        return
                    if number not in relay.wire:
                        relay.say(lost=self.host, begun=True, gone=relay.first, why="it fell behind")
                        return
                    flags, data = relay.wire[number]
                link.sendall(HEAD.pack(b"C", flags, number, len(data)))
                link.sendall(data)
                number += 1
        except (OSError, Fault, EOFError) as error:
            if not self.ended:
                relay.say(lost=self.host, begun=begun, why=words_of(error))
        finally:
            self.end()
            with relay.changed:
                if relay.child is self:
                    relay.child = None
                relay.changed.notify_all()

    def end(self) -> None:
        self.ended = True
        hang_up(self.link)


STRANGERS = 32  # callers at most that have not shown a certificate yet
# With these errors no connection can be accepted now, but one can later.
PASSING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED))
ACCEPT_AGAIN = 0.1  # seconds
ORDER = 2**26  # bytes of the longest message on standard input
# Chunks that a host may be ahead of its engine or of the next host; and that it keeps for another next host.
AHEAD, KEPT = 128, 288
REPORT_CHUNKS, REPORT_EACH, BUSY_EACH = 8, 0.1, 1.0  # seconds
# When so many bytes have come before they are looked for, it is this host that is slow, and not the link to
# it: from another host, and by standard input. That holds for so many seconds.
LATE, LATE_INPUT, LATE_FOR = 2**17, 2**15, 1.0


class Relay:
    """The chunks that are here, and the threads that bring them, load them and give them on."""

    def __init__(self, address: str, said: BinaryIO) -> None:
        self.address, self._said = address, said
        self._saying = threading.Lock()
        self.changed = threading.Condition()
        self.inflate = Inflater()
        self.digests: dict[int, bytes] = {}
        self.wire: dict[int, tuple[int, bytes]] = {}  # as they came, to be given on
        self.plain: dict[int, bytes] = {}  # to be loaded
        self.at = self.first = self.loaded = self.came = 0
        self.unfinished = 0  # archives that are not put away
        self.late = -LATE_FOR  # when more had come than was looked for
        # From whom to take: a host, "" for standard input, None for nobody.
        self.parent: str | None = None
        self.source: ssl.SSLSocket | None = None
        self.child: Downstream | None = None
        self.shelf: Any = None  # of a data set
        self.server: Any = None
        self.client: Any = None
        # Callers that have shown no certificate yet, the oldest first.
        self.strangers: dict[ssl.SSLSocket, None] = {}
        self.greeting = threading.Lock()

    def say(self, **what: object) -> None:
        with self._saying, contextlib.suppress(OSError):
            self._said.write(json.dumps(what).encode() + b"\n")
            self._said.flush()

    # What is told to it

    def order(self, order: dict[str, Any]) -> None:
        what = order.pop("do")
        if what == "begin":
            self.begin(**order)
        elif what == "take":
            self.take_from(order["host"])
        elif what == "give":
            self.give_to(**order)

    def begin(
        self,
        loads: list[list[int]],
        key: str,
        cert: str,
        ca: str,
        into: str = "",
        account: str = "",
        writes: Collection[int] = (),
    ) -> None:
        """Begin to listen and to load: each archive's first chunk, and the first that is not of it.

        For a data set, ``into`` is its folder, ``account`` has what was written there, and ``writes`` are
        the numbers of the shards to be written.
        """
        if into:
            self.shelf = Shelf(into, account, writes, len(loads), self.put_away)
        self.server = tls(ssl.PROTOCOL_TLS_SERVER, key, cert, ca)
        self.client = tls(ssl.PROTOCOL_TLS_CLIENT, key, cert, ca)
        self.at = self.first = self.loaded = loads[0][0]
        self.unfinished = len(loads)
        listener = socket.create_server((self.address, 0), family=family(self.address))
        self.say(port=listener.getsockname()[1])
        _thread(self.accept, listener)
        _thread(self.load, [(first, end) for first, end in loads])
        _thread(self.report)

    def take_from(self, host: str | None) -> None:
        with self.changed:
            self.parent, source, self.source = host, self.source, None
            self.changed.notify_all()
        hang_up(source)
        self.say(takes=host, at=self.at)

    def give_to(self, host: str, address: str = "", port: int = 0) -> None:
        old, self.child = self.child, Downstream(self, host) if host else None
        if old:
            old.end()
        with self.changed:
            self.changed.notify_all()
        if self.child:
            _thread(self.child.give, address, port)

    # What comes

    def limit(self) -> int:
        """The chunk that must not come yet."""
        child = self.child
        given = self.at if child is None or child.at is None else child.at
        return min(self.loaded, given) + AHEAD

    def keep(self, number: int, flags: int, data: bytes) -> None:
        """Take a chunk in, if it is the next one and what it should be."""
        if number != self.at:
            if number > self.at:
                raise Fault(f"chunk {number} came before {self.at}")
            return
        with self.changed:
            expected = self.digests.get(number)
        plain = self.inflate.plain(flags, data)
        if hashlib.sha256(plain).digest() != expected:
            raise Fault(f"chunk {number} is damaged")
        with self.changed:
            if number != self.at:
                return
            self.wire[number], self.plain[number] = (flags, data), plain
            del self.digests[number]
            self.at, self.came = number + 1, self.came + len(data)
            while self.first < self.at - KEPT:
                self.wire.pop(self.first, None)
                self.first += 1
            self.changed.notify_all()

    def look_behind(self, file: int, most: int) -> None:
        """Note whether this host is behind with what has come."""
        if waiting(file) >= most:
            self.late = time.monotonic()

    def busy(self) -> bool:
        """Whether it takes no more, or less than comes, for a reason of its own: its engine or processor."""
        return self.at >= self.loaded + AHEAD or time.monotonic() - self.late < LATE_FOR

    def may_keep(self, link: ssl.SSLSocket) -> bool:
        """Wait until there is room for the next chunk and its digest is known; False when others give it."""

        def ready() -> bool:
            return self.source is not link or (self.at in self.digests and self.at < self.limit())

        with self.changed:
            self.changed.wait_for(ready)
            return self.source is link

    def accept(self, listener: socket.socket) -> None:
        """Serve whoever connects; hang up on the oldest callers without a certificate when there are many."""
        while True:
            try:
                caller, _ = listener.accept()
            except OSError as error:
                if error.errno not in PASSING:
                    raise
                time.sleep(ACCEPT_AGAIN)
                continue
            try:
                caller.settimeout(GREET)
                link = self.server.wrap_socket(caller, server_side=True, do_handshake_on_connect=False)
            except OSError:  # it has left already
                caller.close()
                continue
            with self.greeting:
                self.strangers[link] = None
                # The thread of each ends with its connection, and takes it out.
                oldest = list(self.strangers)[: max(0, len(self.strangers) - STRANGERS)]
            for one in oldest:
                hang_up(one)
            _thread(self.serve, link)

    def greet(self, link: ssl.SSLSocket) -> str:
        """Return who has called, by the certificate."""
        try:
            link.do_handshake()
            return peer(link)
        finally:
            with self.greeting:
                self.strangers.pop(link, None)

    def serve(self, link: ssl.SSLSocket) -> None:
        """Take chunks from the host that is to give them, and from no other."""
        who = ""
        try:
            who = self.greet(link)
            with self.changed:
                # Its order may have been quicker than ours.
                if not self.changed.wait_for(lambda: self.parent == who, GREET):
                    raise Fault(f"{who} is not expected")
                old, self.source = self.source, link
            hang_up(old)
            tune(link)
            link.sendall(HEAD.pack(b"H", 0, self.at, 0))
            while self.source is link:
                kind, flags, number, data = read_frame(link)
                self.look_behind(link.fileno(), LATE)
                if kind == b"C" and self.may_keep(link):
                    self.keep(number, flags, data)
        except (OSError, Fault, EOFError) as error:
            # Whoever gives is told by its own broken connection; why is known here alone.
            if who and self.source is not None:
                self.say(refused=who, why=words_of(error))
        finally:
            link.close()

    # What is loaded

    def load(self, archives: list[tuple[int, int]]) -> None:
        """Feed the archives to the engine, one after another; the next is spooled while one is unpacked."""
        before: Any = None
        for number, (first, end) in enumerate(archives):
            loading = self.shelf.open(number) if self.shelf else Loading(number, self.put_away)
            for chunk in range(first, end):
                data = self.next_plain(chunk)
                if chunk == end - 1 and before is not None and not before.good():
                    # Layers above others that are not there would be refused.
                    loading.kill()
                loading.write(data)
            before = loading.finish()

    def put_away(self, number: int, status: int, said: str) -> None:
        with self.changed:
            self.unfinished -= 1
        self.say(loaded=number, status=status, said=said)

    def next_plain(self, chunk: int) -> bytes:
        with self.changed:
            self.changed.wait_for(lambda: chunk in self.plain)
            data = self.plain.pop(chunk)
            self.loaded = chunk + 1
            self.changed.notify_all()
        return data

    def report(self) -> NoReturn:
        """Say how far it is: after some chunks, or after some time if anything is new or not put away."""
        told, then = (-1, -1, False), 0.0

        def much() -> bool:
            return self.at >= told[0] + REPORT_CHUNKS

        while True:
            with self.changed:
                self.changed.wait_for(much, REPORT_EACH)
                now = (self.at, self.limit(), self.busy())
            if now != told or ((now[2] or self.unfinished) and time.monotonic() - then > BUSY_EACH):
                self.say(at=now[0], limit=now[1], busy=now[2], wire=self.came)
                told, then = now, time.monotonic()


def _die(args: threading.ExceptHookArgs) -> None:
    """End the program when one of its threads ends by an exception: the sender would wait for it."""
    sys.stderr.write(f"{words_of(args.exc_value) if args.exc_value else args.exc_type.__name__}\n")
    sys.stderr.flush()
    os._exit(3)


def _thread(work: Callable[..., object], *words: object) -> None:
    threading.Thread(target=work, args=words, daemon=True).start()


def main() -> NoReturn:
    threading.excepthook = _die
    relay = Relay(sys.argv[1], os.fdopen(1, "wb", buffering=0, closefd=False))
    relay.say(ready=True, zstd=relay.inflate.library is not None)

    def read(count: int) -> bytes:
        data = stdin.read(count)
        if len(data) < count:
            raise EOFError
        return data

    with os.fdopen(0, "rb", CHUNK, closefd=False) as stdin:
        try:
            while True:
                kind, flags, number, data = frame(read, ORDER)
                if kind == b"J":
                    relay.order(json.loads(data))
                elif kind == b"D":
                    with relay.changed:
                        for index in range(len(data) // 32):
                            relay.digests[number + index] = data[32 * index : 32 * index + 32]
                        relay.changed.notify_all()
                elif kind == b"C" and relay.parent == "":
                    relay.look_behind(0, LATE_INPUT)
                    relay.keep(number, flags, data)
        except EOFError:
            status = 0
        except Exception as error:
            sys.stderr.write(f"{words_of(error)}\n")
            status = 3
    if relay.shelf is not None:
        # Whoever sent is gone: what has come by now need not come again.
        relay.shelf.flush()
    sys.stderr.flush()
    # Loads that still run lose their input with this process, and the engine drops what they brought.
    os._exit(status)
