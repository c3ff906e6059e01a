"""The connections between hosts of relay.py: TLS, each side under the name that it is expected by."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import ssl
import sys
import termios
from typing import Any

from toolkit.protocol.chunks import CHUNK


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
