"""Answers other hosts, and tries whether they answer: real connections on the ports that jobs use."""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from toolkit.protocol.large_messages import PIECE, PIECES

CONNECT_S = 1.5  # TCP sends its first packet again after 1 s, so one may be lost without a false alarm
PAUSE_S = 0.05  # after a connection that could not be accepted
IDLE_S = 2.0  # after that long without any progress, a connection that came about counts as stuck
MOST = 256  # connections to us at once, which is more than hosts times ports of any cluster here


class Server:
    """Answers whoever knows the token: who we are, and whom we see; then counts what it is sent."""

    def __init__(self, host: str, token: str) -> None:
        self.host, self.token = host, token.encode()
        self.room = threading.BoundedSemaphore(MOST)
        self.sockets: list[socket.socket] = []

    def listen(self, address: str, port: int) -> int:
        """Listen there and return the port, which the kernel chooses for 0. Raises OSError."""
        listener = socket.create_server((address, port), backlog=MOST)
        self.sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                link, peer = listener.accept()
            except OSError:  # out of descriptors, or the caller has gone: others come
                time.sleep(PAUSE_S)
                continue
            if self.room.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(link, peer[0]), daemon=True).start()
            else:
                link.close()

    def _serve(self, link: socket.socket, peer: str) -> None:
        try:
            with contextlib.suppress(OSError), link:
                link.settimeout(2 * IDLE_S)
                if hmac.compare_digest(_receive(link, len(self.token)), self.token):
                    link.sendall(json.dumps({"host": self.host, "seen": peer}).encode() + b"\n")
                    while len(_receive(link, PIECE)) == PIECE:
                        link.sendall(b".")
        finally:
            self.room.release()


def _receive(link: socket.socket, size: int) -> bytes:
    """Read so many bytes, or fewer when the other side has ended."""
    data = b""
    while len(data) < size and (piece := link.recv(size - len(data))):
        data += piece
    return data


def attempt(address: str, port: int, token: str, large: bool) -> dict[str, Any]:
    """Try one connection.

    Returns: ``answer`` is open, refused, timeout, unreachable; ``mute`` when a connection came about and
    then nothing more; ``stranger`` when it was not our Server that answered. With it go ``host`` and
    ``seen`` as the Server says them and, of ``large``, how many of PIECES arrived (``sent``).
    """
    try:
        link = socket.create_connection((address, port), timeout=CONNECT_S)
    except ConnectionRefusedError:
        return {"answer": "refused"}
    except TimeoutError:
        return {"answer": "timeout"}
    except OSError as error:
        return {"answer": "unreachable", "why": errno.errorcode.get(error.errno or 0, "")}
    with link:
        link.settimeout(IDLE_S)
        try:
            link.sendall(token.encode())
            line = link.makefile("rb", buffering=0).readline(4096)
            result: dict[str, Any] = {"answer": "open", **json.loads(line)}
        except TimeoutError:
            return {"answer": "mute"}
        except (OSError, ValueError, TypeError):
            return {"answer": "stranger"}
        if large:
            result["sent"] = _send_large(link)
        return result


def _send_large(link: socket.socket) -> int:
    """How many pieces arrived; each is acknowledged, so that a slow link is told from a stuck one."""
    done = 0
    with contextlib.suppress(OSError):
        for _ in range(PIECES):
            link.sendall(b"\0" * PIECE)
            if link.recv(1) != b".":
                break
            done += 1
    return done


def all_at_once(work: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Run every function in a thread of its own and return what each gave.

    Raises:
        Exception: the first that one of them raised, once all have ended.
    """
    results: dict[Any, Any] = {}
    failed: list[Exception] = []

    def run(key: Any) -> None:
        try:
            results[key] = work[key]()
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(key,), daemon=True) for key in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    return results


def try_all(targets: list[dict[str, Any]], token: str) -> dict[str, dict[str, Any]]:
    """Try every port of every target at once; the large message goes to the port that the kernel chose."""
    work: dict[Any, Callable[[], Any]] = {}
    for target in targets:
        for kind, port in target["ports"].items():

            def one(address: str = target["address"], port: int = port, large: bool = kind == "any") -> Any:
                return attempt(address, port, token, large)

            work[target["host"], kind] = one
    found: dict[str, dict[str, Any]] = {target["host"]: {} for target in targets}
    for (host, kind), result in all_at_once(work).items():
        found[host][kind] = result
    return found
