"""Receives an image or a data set in chunks, stores it, and forwards the chunks to the next host.

usage: transfer.relay ADDRESS    listens there on a port that the kernel chooses

Runs on a host as the SSH user, with the host's own Python (3.8 or newer) and its modules, which are sent with
it, as long as its standard input is open. It decides nothing: orders on standard input state which host sends
to which, and the digests of the chunks. It reports events on standard output, one line of JSON each. An image
is loaded into the host's engine, a data set is written to a folder (unpack.py).

Standard input, and what hosts send to each other, are frames: kind, flags, number, length, content.
    J  an order, as JSON             D  digests of plain chunks, from a number on
    C  a chunk, plain or compressed  H  hello: the next chunk that is needed
Hosts connect by TLS. Both sides have certificates that were created for this transfer only, and each
knows which host to expect. A chunk is accepted only if it matches the digest from standard input.
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
    """Error for the user."""


class Inflater:
    """zstd decompression with the system's library, which the package tools of Debian and Red Hat need."""

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
            raise Fault("cannot decompress a chunk: the host has no libzstd.so.1")
        room = ctypes.create_string_buffer(CHUNK)
        size = self.library.ZSTD_decompress(room, CHUNK, data, len(data))
        if self.library.ZSTD_isError(size):
            raise Fault("a chunk is damaged")
        return room.raw[:size]


def frame(read: Callable[[int], bytes], most: int) -> tuple[bytes, int, int, bytes]:
    kind, flags, number, size = HEAD.unpack(read(HEAD.size))
    if size > most:
        raise Fault("the received data is not part of the transfer")
    return kind, flags, number, read(size)


def read_frame(link: ssl.SSLSocket) -> tuple[bytes, int, int, bytes]:
    # The limit keeps another host from filling this host's memory.
    return frame(lambda count: _receive(link, count), CHUNK)


def _receive(link: ssl.SSLSocket, count: int) -> bytes:
    room = memoryview(bytearray(count))
    done = 0
    while done < count:
        size = link.recv_into(room[done:])
        if not size:
            raise EOFError("the host closed the connection")
        done += size
    return bytes(room)


def words_of(error: BaseException) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(reason).split())


def tls(protocol: ssl._SSLMethod, key: str, cert: str, ca: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False  # the host name is compared with the certificate's name, see peer
    context.verify_mode = ssl.CERT_REQUIRED
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cadata=ca)
    # Python reads a key only from a file; this one is in no folder and is freed with the process.
    memory = os.memfd_create("key")
    with os.fdopen(memory, "wb") as file:
        file.write(f"{key}\n{cert}\n".encode())
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{memory}")
    return context


def peer(link: ssl.SSLSocket) -> str:
    """Return the name in the other side's verified certificate."""
    subject: Any = (link.getpeercert() or {}).get("subject", ())
    return next((value for part in subject for name, value in part if name == "commonName"), "")


def tune(link: ssl.SSLSocket) -> None:
    link.settimeout(None)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Data in kernel buffers is lost to the next host if this host fails, and delayed if it is slow.
    link.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_NOTSENT_LOWAT", 25), CHUNK)
    # A partitioned host sends nothing; without this limit TCP would wait for a quarter of an hour.
    link.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), 15_000)


def family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def waiting(file: int) -> int:
    """Return the number of received bytes that were not read yet."""
    count = bytearray(4)
    with contextlib.suppress(OSError, ValueError):
        fcntl.ioctl(file, termios.FIONREAD, count)
    return int.from_bytes(count, sys.byteorder)


def hang_up(link: socket.socket | None) -> None:
    if link is not None:
        with contextlib.suppress(OSError):
            # Not SSLSocket's own shutdown, which would break a thread that is reading.
            socket.socket.shutdown(link, socket.SHUT_RDWR)


class Loading:
    """Running `docker load` or `podman load`.

    Args:
        number: number of the archive.
        ended: called with number, exit status and output.
    """

    def __init__(self, number: int, ended: Callable[[int, int, str], None]) -> None:
        self.number, self._ended = number, ended
        self.done = threading.Event()
        self.status = -1
        self.process = subprocess.Popen(
            # The load command of the host's engine; see toolkit/transfer/host.py.
            os.environ.get("TOOLKIT_LOAD", "docker load --quiet").split(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.open = True

    def write(self, data: bytes) -> None:
        """Write to the load; after its end discard the data, which only the next host still needs."""
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
        output = self.process.stdout.read()
        self.status = self.process.wait()
        self.done.set()
        self._ended(self.number, self.status, output[-4000:].decode("utf-8", errors="replace"))

    def good(self) -> bool:
        self.done.wait()
        return self.status == 0

    def kill(self) -> None:
        self.open = False
        self.process.kill()


CONNECT, GREET = 3.0, 5.0


class Downstream:
    """The next host: receives chunks from the one that it requested."""

    def __init__(self, relay: Relay, host: str) -> None:
        self.relay, self.host = relay, host
        self.at: int | None = None  # the chunk it needs next, once known
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
                raise Fault(f"{peer(link)} answers at the address of {self.host}")
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
                        relay.say(
                            lost=self.host,
                            begun=True,
                            gone=relay.first,
                            why="the host is too slow for the transfer",
                        )
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


STRANGERS = 32  # most callers without a verified certificate
# After these errors accepting is impossible now, but possible later.
PASSING = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED))
ACCEPT_AGAIN = 0.1  # seconds
ORDER = 2**26  # most bytes of a message on standard input
# Most chunks that a host can be ahead of its engine or the next host, and chunks kept for another next host.
AHEAD, KEPT = 128, 288
REPORT_CHUNKS, REPORT_EACH, BUSY_EACH = 8, 0.1, 1.0  # seconds
# If this many bytes have arrived before the program looks, this host is slow and not its link: from another
# host, and by standard input. The finding holds for this many seconds.
LATE, LATE_INPUT, LATE_FOR = 2**17, 2**15, 1.0


class Relay:
    """Chunks on this host, and the threads that receive, load and forward them."""

    def __init__(self, address: str, said: BinaryIO) -> None:
        self.address, self._said = address, said
        self._saying = threading.Lock()
        self.changed = threading.Condition()
        self.inflate = Inflater()
        self.digests: dict[int, bytes] = {}
        self.wire: dict[int, tuple[int, bytes]] = {}  # as received, to be forwarded
        self.plain: dict[int, bytes] = {}  # to be loaded
        self.at = self.first = self.loaded = self.came = 0
        self.unfinished = 0  # archives that are not stored yet
        self.late = -LATE_FOR  # time of the last finding that this host is slow
        # Source of chunks: a host, "" for standard input, None for no source.
        self.parent: str | None = None
        self.source: ssl.SSLSocket | None = None
        self.child: Downstream | None = None
        self.shelf: Any = None  # of a data set
        self.server: Any = None
        self.client: Any = None
        # Callers without a verified certificate, oldest first.
        self.strangers: dict[ssl.SSLSocket, None] = {}
        # The last connection of each host that waits for the order to receive from this host.
        self.early: dict[str, ssl.SSLSocket] = {}
        self.greeting = threading.Lock()

    def say(self, **what: object) -> None:
        with self._saying, contextlib.suppress(OSError):
            self._said.write(json.dumps(what).encode() + b"\n")
            self._said.flush()

    # Orders

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
        held: int = 0,
    ) -> None:
        """Start to listen and to load; ``loads`` has each archive's first chunk and the first chunk after it.

        For a data set, ``into`` is its folder, ``account`` is the record of its files, ``writes`` are the
        numbers of the shards to write, and ``held`` is the size of its shards that are complete.
        """
        if into:
            self.shelf = Shelf(into, account, writes, len(loads), self.put_away, held)
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

    # Incoming chunks

    def limit(self) -> int:
        """Return the first chunk that cannot be accepted yet."""
        child = self.child
        given = self.at if child is None or child.at is None else child.at
        return min(self.loaded, given) + AHEAD

    def keep(self, number: int, flags: int, data: bytes) -> None:
        """Accept a chunk if it is the next one and matches its digest."""
        if number != self.at:
            if number > self.at:
                raise Fault(f"chunk {number} arrived before chunk {self.at}")
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
        """Record whether this host is slow to process what has arrived."""
        if waiting(file) >= most:
            self.late = time.monotonic()

    def busy(self) -> bool:
        """Return whether the host's engine or processor limits what it accepts."""
        return self.at >= self.loaded + AHEAD or time.monotonic() - self.late < LATE_FOR

    def may_keep(self, link: ssl.SSLSocket) -> bool:
        """Wait for room and for the digest of the next chunk; return False if another host sends it now."""

        def ready() -> bool:
            return self.source is not link or (self.at in self.digests and self.at < self.limit())

        with self.changed:
            self.changed.wait_for(ready)
            return self.source is link

    def accept(self, listener: socket.socket) -> None:
        """Serve all callers; if there are too many without a certificate, disconnect the oldest of them."""
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
            except OSError:  # the caller has disconnected already
                caller.close()
                continue
            with self.greeting:
                self.strangers[link] = None
                # The thread of each caller ends with its connection and removes the entry.
                oldest = list(self.strangers)[: max(0, len(self.strangers) - STRANGERS)]
            for one in oldest:
                hang_up(one)
            _thread(self.serve, link)

    def greet(self, link: ssl.SSLSocket) -> str:
        """Return the caller's host name from its certificate."""
        try:
            link.do_handshake()
            return peer(link)
        finally:
            with self.greeting:
                self.strangers.pop(link, None)

    def serve(self, link: ssl.SSLSocket) -> None:
        """Receive chunks only from the current giver."""
        who = ""
        try:
            who = self.greet(link)
            with self.changed:
                # Its order can arrive before ours. Only the last connection of a host waits.
                self.early[who] = link
                self.changed.notify_all()
                self.changed.wait_for(lambda: self.parent == who or self.early.get(who) is not link, GREET)
                if self.early.get(who) is not link or self.parent != who:
                    raise Fault(f"the transfer expects no connection from {who}")
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
            # The giver sees only a broken connection; the reason is known only on this host.
            if who and self.source is not None:
                self.say(refused=who, why=words_of(error))
        finally:
            with self.changed:
                if self.early.get(who) is link:
                    del self.early[who]
            link.close()

    # Loading

    def load(self, archives: list[tuple[int, int]]) -> None:
        """Feed the archives to the engine, one after another; the next is spooled while one is unpacked."""
        before: Any = None
        for number, (first, end) in enumerate(archives):
            loading = self.shelf.open(number) if self.shelf else Loading(number, self.put_away)
            for chunk in range(first, end):
                data = self.next_plain(chunk)
                if chunk == end - 1 and before is not None and not before.good():
                    # The engine would refuse layers whose lower layers are missing.
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
        """Report the progress after some chunks, or after some time if there is anything to report."""
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
    """Exit if a thread fails with an exception: otherwise the sender would wait."""
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
        # The sender is gone: store what has arrived, so that it is not sent again.
        relay.shelf.flush()
    sys.stderr.flush()
    # Running loads lose their input with this process, and the engine discards their data.
    os._exit(status)
