"""What a rank would find on this host, and whether it would reach the other hosts; for `toolkit check`.

Sent over standard input and never written anywhere. It listens, says on which ports, is told where the
others listen, tries them all, says what came of it, and ends when its input does or its time is up.
"""

from __future__ import annotations

import contextlib
import functools
import hmac
import importlib.util
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
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from toolkit.container.check.ways import Server, all_at_once, try_all

LOGIN_S = 8.0
SSH_CONFIG = "/run/toolkit/conf/ssh_config"
PACKAGES = ("torch", "horovod", "mpi4py", "nvidia-nccl-cu12", "nvidia-nccl-cu13")
LIBMPI = ("usr/lib/*/libmpi.so.*.*.*", "usr/local/lib/libmpi.so.*.*.*")


def say(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def limits() -> dict[str, int]:
    """Soft limits of this process; -1 for none. Memory in bytes."""
    return {
        "memlock": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
    }


def login(host: str) -> dict[str, Any]:
    """Limits as a rank gets them that a launcher starts on ``host`` over the cluster's ssh."""
    quick = ["-o", "ConnectTimeout=3", "-o", "ConnectionAttempts=1"]
    argv = ["ssh", "-F", SSH_CONFIG, *quick, host, "ulimit -l; ulimit -n"]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=LOGIN_S, text=True)
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {LOGIN_S:.0f} s"}
    words = done.stdout.split()
    if done.returncode or len(words) != 2:
        lines = done.stderr.strip().splitlines() or [f"ssh ended with status {done.returncode}"]
        return {"error": lines[-1]}
    memlock, nofile = (-1 if word == "unlimited" else int(word) for word in words)
    return {"memlock": memlock * 1024 if memlock > 0 else memlock, "nofile": nofile}


def versions() -> dict[str, str]:
    """What decides whether ranks understand each other; what is not there is left out."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    # libmpi.so.40.30.4: the library that ranks load says more than a program that may be another's.
    for path in sorted(p for pattern in LIBMPI for p in Path("/").glob(pattern)):
        found["libmpi"] = path.name.partition(".so.")[2]
    return found


def addresses(name: str) -> list[str]:
    """The IPv4 addresses that a name leads to here; none when it leads nowhere."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, socket.AF_INET)})
    except OSError:
        return []


def gpus() -> list[str] | None:
    """What nvidia-smi lists in here, or None where there is no nvidia-smi."""
    if shutil.which("nvidia-smi") is None:
        return None
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LOGIN_S)
    return [line for line in done.stdout.splitlines() if line.startswith("GPU ")]


def lacking(names: list[str]) -> list[str]:
    """The programs, and the Python packages as ``python:NAME``, that this image does not have."""
    missing = []
    for name in names:
        package = name.removeprefix("python:")
        found = shutil.which(name) if package == name else importlib.util.find_spec(package)
        missing += [] if found else [name]
    return missing


class Mounts:
    """Files of ours on the mounts that ranks may write to; gone by the end, however it comes."""

    def __init__(self, paths: list[str], host: str, token: str) -> None:
        self.host = host
        # The token is a secret, the files' names are not.
        self.stem = f".toolkit-check-{hmac.new(token.encode(), b'mounts', 'sha256').hexdigest()[:12]}-"
        # A single file may be mounted as well; nothing can be created below it.
        self.folders = [path for path in map(Path, paths) if not os.path.isfile(path)]  # noqa: PTH113
        self.faults: dict[str, str] = {}

    def _files(self, folder: Path) -> tuple[Path, Path]:
        return folder / f"{self.stem}{self.host}.new", folder / f"{self.stem}{self.host}"

    def write(self) -> None:
        """Write, rename, read and delete a file on each; then leave one for the others to see."""
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
        """Whose files are there, by mount: those of hosts for which it is one and the same folder."""
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
    """Everything that needs no other host."""
    shm = os.statvfs("/dev/shm")
    return {
        "shm": shm.f_frsize * shm.f_blocks,
        "limits": limits(),
        "versions": versions(),
        "names": {name: addresses(name) for name in config["names"]},
        "gpus": gpus() if config["gpus"] else None,
        "lacks": lacking(config["programs"]),
    }


def end(signum: int, _frame: FrameType | None) -> NoReturn:
    sys.exit(128 + signum)


def main() -> None:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGALRM):
        signal.signal(signum, end)
    config = json.loads(sys.stdin.buffer.readline())
    # Whatever becomes of the command that sent us, nothing of us stays longer than this.
    signal.alarm(config["limit"])
    server = Server(config["host"], config["token"])
    ports, faults = {}, {}
    for kind, port in config["ports"].items():
        try:
            ports[kind] = server.listen(config["address"], port)
        except OSError as error:
            faults[kind] = error.strerror or str(error)
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
        found = look(config)
        line = sys.stdin.buffer.readline()
        if line:
            found["pairs"] = try_all(json.loads(line)["targets"], config["token"])
            found |= {"shared": mounts.seen(), "mounts": mounts.faults, "faults": faults}
            others.join()
            if failed:
                raise failed[0]
            say({**found, "logins": logins, "now": time.time()})
            sys.stdin.buffer.read()
    finally:
        mounts.remove()
