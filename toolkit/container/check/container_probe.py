"""Probe of a rank's environment on this host, and of real connections to the other hosts.

It is sent over standard input and never written to disk. It listens, reports its ports, receives the ports of
the other hosts, connects to the ports that jobs use on all of them, reports the results, and exits when its
input ends or its time is up.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hmac
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from toolkit.container.check.image_probe import lacking, versions
from toolkit.protocol.chunks import PIECE, PIECES

CONNECT_S = 1.5  # TCP sends its first packet again after 1 s, so a lost packet causes no false alarm
PAUSE_S = 0.05  # after a connection that could not be accepted
IDLE_S = 2.0  # after this time without progress, an open connection counts as stuck
MOST = 256  # most simultaneous connections to this host, more than hosts times ports of a supported cluster


class Server:
    """Server for clients with the token: reports its name and the peer's address, then counts data."""

    def __init__(self, host: str, token: str) -> None:
        self.host, self.token = host, token.encode()
        self.room = threading.BoundedSemaphore(MOST)
        self.sockets: list[socket.socket] = []

    def listen(self, address: str, port: int) -> int:
        """Listen on the address and return the port; 0 lets the kernel choose. Raises OSError."""
        listener = socket.create_server((address, port), backlog=MOST)
        self.sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket) -> None:
        while listener.fileno() >= 0:
            try:
                link, peer = listener.accept()
            except OSError:  # out of descriptors, or the caller has gone: serve the next one
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
    """Read this number of bytes, or fewer if the other side has closed."""
    data = b""
    while len(data) < size and (piece := link.recv(size - len(data))):
        data += piece
    return data


def attempt(address: str, port: int, token: str, large: bool) -> dict[str, Any]:
    """Try one connection.

    Returns: ``answer`` is open, refused, timeout, unreachable; ``mute`` if a connection was opened but
    nothing followed; ``stranger`` if a program other than our Server answered. ``host`` and ``seen`` are
    reported by the Server; with ``large``, ``sent`` is the number of PIECES that arrived.
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
    """Return the number of pieces that arrived; acknowledgements distinguish a slow link from a stuck one."""
    done = 0
    with contextlib.suppress(OSError):
        for _ in range(PIECES):
            link.sendall(b"\0" * PIECE)
            if link.recv(1) != b".":
                break
            done += 1
    return done


def all_at_once(work: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """Run every function in a thread of its own and return the results.

    Raises:
        Exception: the first exception of a function, after all have finished.
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


LOGIN_S = 8.0
SMI_S = 8.0
SSH_CONFIG = "/run/toolkit/conf/ssh_config"


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def limits() -> dict[str, int]:
    """Return soft limits of this process; -1 for unlimited. Memory in bytes."""
    return {
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def login(host: str) -> dict[str, Any]:
    """Return the limits of a rank that a launcher starts on ``host`` over the cluster's ssh."""
    quick = ["-o", "ConnectTimeout=3", "-o", "ConnectionAttempts=1"]
    argv = ["ssh", "-F", SSH_CONFIG, *quick, host, "ulimit -l; ulimit -n"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOGIN_S, text=True)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {LOGIN_S:.0f} s"}
    words = done.stdout.split()
    if done.returncode or len(words) != 2:
        lines = done.stderr.strip().splitlines() or [f"ssh exited with status {done.returncode}"]
        return {"error": lines[-1]}
    memlock, nofile = (-1 if word == "unlimited" else int(word) for word in words)
    return {"memlock": memlock * 1024 if memlock > 0 else memlock, "nofile": nofile}


def addresses(name: str) -> list[str]:
    """Return the IPv4 addresses that a name resolves to here; empty if it does not resolve."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


class GpuList(threading.Thread):
    """The list of nvidia-smi, in a thread: if the driver hangs, no signal ends nvidia-smi."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._until = time.monotonic() + SMI_S
        self._lines: list[str] | None = None
        self._error = f"no answer within {SMI_S:.0f} s"
        self.start()

    def run(self) -> None:
        if shutil.which("nvidia-smi"):
            ask = ["nvidia-smi", "-L"]
            try:
                done = subprocess.run(
                    ask, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SMI_S
                )
            except subprocess.TimeoutExpired:
                return
            lines = map(str.strip, done.stdout.splitlines())
            self._lines = [line for line in lines if line.startswith(("GPU ", "MIG "))]
        self._error = ""

    def report(self) -> dict[str, Any]:
        """Return the listed GPUs and MIG devices, None without nvidia-smi, and the error after a time-out."""
        self.join(max(0.0, self._until - time.monotonic()))
        return {"gpus": self._lines, "gpu_error": self._error}


class Mounts:
    """Test files on the mounts that ranks can write to; removed at the end in any case."""

    def __init__(self, paths: list[str], host: str, token: str) -> None:
        self.host = host
        # The token is a secret, the files' names are not.
        self.stem = f".toolkit-check-{hmac.new(token.encode(), b'mounts', 'sha256').hexdigest()[:12]}-"
        # A single file can be mounted as well; nothing can be created below it.
        self.folders = [path for path in map(Path, paths) if not os.path.isfile(path)]  # noqa: PTH113
        self.faults: dict[str, str] = {}

    def _files(self, folder: Path) -> tuple[Path, Path]:
        return folder / f"{self.stem}{self.host}.new", folder / f"{self.stem}{self.host}"

    def write(self) -> None:
        """Write, rename, read and delete a file on each mount; then leave one for the other hosts."""
        for folder in self.folders:
            new, mine = self._files(folder)
            try:
                doing = "write"
                new.write_text(self.host)
                doing = "rename"
                new.rename(mine)
                doing = "read"
                mine.read_text()
                doing = "delete"
                mine.unlink()
                doing = "write"
                mine.touch()
            except OSError as error:
                self.faults[str(folder)] = f"{doing}: {error.strerror}"

    def seen(self) -> dict[str, list[str]]:
        """Return, by mount, the hosts whose files are there: they share the same folder."""
        found = {}
        for folder in self.folders:
            names = [path.name.removeprefix(self.stem) for path in folder.glob(f"{self.stem}*")]
            found[str(folder)] = sorted(name for name in names if not name.endswith(".new"))
        return found

    def remove(self) -> None:
        for folder in self.folders:
            for path in self._files(folder):
                with contextlib.suppress(OSError):
                    path.unlink()


def look(config: dict[str, Any]) -> dict[str, Any]:
    """Return all facts that need no other host."""
    shm = os.statvfs("/dev/shm")
    return {
        "shm": shm.f_frsize * shm.f_blocks,
        "limits": limits(),
        "versions": versions(),
        "names": {name: addresses(name) for name in config["names"]},
        "lacks": lacking(config["programs"]),
    }


def end(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, end)
    config = json.loads(sys.stdin.buffer.readline())
    # The probe exits after this time, even if the command that sent it is gone.
    signal.alarm(config["limit"])
    server = Server(config["host"], config["token"])
    ports, faults, taken = {}, {}, []
    for kind, port in config["ports"].items():
        try:
            ports[kind] = server.listen(config["address"], port)
        except OSError as error:
            faults[kind] = error.strerror or str(error)
            if error.errno == errno.EADDRINUSE:
                taken.append(kind)
    mounts = Mounts(config["mounts"], config["host"], config["token"])
    try:
        mounts.write()
        say({"ports": ports})
        logins: dict[str, Any] = {}
        failed: list[Exception] = []
        work: dict[Any, Callable[[], Any]] = {n: functools.partial(login, n) for n in config["logins"]}

        def log_in() -> None:
            try:
                logins.update(all_at_once(work))
            except Exception as error:
                failed.append(error)

        others = threading.Thread(target=log_in, daemon=True)
        others.start()
        listed = GpuList() if config["gpus"] else None
        found = look(config)
        line = sys.stdin.buffer.readline()
        if line:
            found["pairs"] = try_all(json.loads(line)["targets"], config["token"])
            found |= {"shared": mounts.seen(), "mounts": mounts.faults}
            found |= {"faults": faults, "taken": taken}
            found |= listed.report() if listed else {}
            others.join()
            if failed:
                raise failed[0]
            say({**found, "logins": logins, "now": time.time()})
            sys.stdin.buffer.read()
    finally:
        mounts.remove()
