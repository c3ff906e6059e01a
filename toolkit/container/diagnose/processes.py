"""State of a rank's processes as reported by the system, GPUs, NCCL and the kernel.

Processes have a state, a blocking call, CPU time and sockets. A missing source reports nothing.
"""

from __future__ import annotations

import base64
import os
import platform
import socket
import stat
import subprocess
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolkit.container.conventions import JOB_TAG, RANK_TAG

# Blocking system calls by number: /proc/PID/syscall contains no names.
_X86 = {
    0: "read", 1: "write", 2: "open", 7: "poll", 16: "ioctl", 17: "pread64", 18: "pwrite64", 19: "readv",
    20: "writev", 23: "select", 24: "sched_yield", 35: "nanosleep", 42: "connect", 43: "accept", 44: "sendto",
    45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 61: "wait4", 72: "fcntl", 73: "flock", 74: "fsync",
    75: "fdatasync", 202: "futex", 230: "clock_nanosleep", 232: "epoll_wait", 247: "waitid", 257: "openat",
    270: "pselect6", 271: "ppoll", 281: "epoll_pwait", 288: "accept4",
}  # fmt: skip
_ARM = {
    22: "epoll_pwait", 25: "fcntl", 29: "ioctl", 32: "flock", 56: "openat", 63: "read", 64: "write",
    65: "readv", 66: "writev", 67: "pread64", 68: "pwrite64", 72: "pselect6", 73: "ppoll", 82: "fsync",
    83: "fdatasync", 95: "waitid", 98: "futex", 101: "nanosleep", 115: "clock_nanosleep", 124: "sched_yield",
    202: "accept", 203: "connect", 206: "sendto", 207: "recvfrom", 211: "sendmsg", 212: "recvmsg",
    242: "accept4", 260: "wait4",
}  # fmt: skip
CALLS = {"x86_64": _X86, "aarch64": _ARM}.get(platform.machine(), {})
# Their first argument is an open file.
_ON_FILE = frozenset((
    "read", "write", "readv", "writev", "pread64", "pwrite64", "fsync", "fdatasync", "flock",
    "fcntl", "ioctl", "recvfrom", "recvmsg", "sendto", "sendmsg", "connect", "accept", "accept4",
))  # fmt: skip
_STATES = {
    1: "ESTABLISHED", 2: "SYN_SENT", 3: "SYN_RECV", 4: "FIN_WAIT1", 5: "FIN_WAIT2", 7: "CLOSE",
    8: "CLOSE_WAIT", 9: "LAST_ACK", 11: "CLOSING",
}  # fmt: skip
_LISTEN = "0A"


def ranks_of(job_id: str) -> dict[int, list[int]]:
    """Return rank -> processes of this user that are its command or were started by it."""
    found: dict[int, list[int]] = {}
    mark, rank_mark = f"{JOB_TAG}={job_id}".encode(), RANK_TAG.encode() + b"="
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError, ValueError):
            environ = (folder / "environ").read_bytes().split(b"\0")
            if mark in environ:
                rank = next((entry for entry in environ if entry.startswith(rank_mark)), None)
                if rank is not None:
                    found.setdefault(int(rank[len(rank_mark) :]), []).append(int(folder.name))
    for pids in found.values():
        _add_dead(pids)
    return {rank: sorted(pids) for rank, pids in found.items()}


def _add_dead(pids: list[int]) -> None:
    """Add their zombie children, which have no environment."""
    for pid in list(pids):
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                children = (task / "children").read_text().split()
                pids += [int(child) for child in children if int(child) not in pids]


def environ_of(pid: int) -> dict[str, str]:
    """Return the initial environment of the process."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.partition("=")[::2] for entry in entries if "=" in entry)
    return {}


def look(pid: int) -> dict[str, Any] | None:
    """Return the current state of a process; None if it has gone."""
    try:
        head, _, tail = Path(f"/proc/{pid}/stat").read_bytes().decode(errors="replace").rpartition(")")
    except OSError:
        return None
    fields = tail.split()
    call, target = waits_for(pid)
    return {
        "pid": pid,
        "parent": int(fields[1]),
        "name": head.partition("(")[2],
        "state": fields[0],
        "ticks": int(fields[11]) + int(fields[12]),
        "threads": int(fields[17]),
        "switches": switches_of(pid),
        "wchan": _text(f"/proc/{pid}/wchan"),
        "call": call,
        "target": target,
    }


def switches_of(pid: int) -> int:
    """Return the number of context switches of its first thread."""
    rows = _text(f"/proc/{pid}/status").splitlines()
    return sum(int(row.split()[-1]) for row in rows if "_ctxt_switches:" in row)


def waits_for(pid: int) -> tuple[str, str]:
    """Return the system call of its first thread, and its file; empty if that is not readable."""
    words = _text(f"/proc/{pid}/syscall").split()
    if not words or not words[0].isdigit():
        return "", ""
    call = CALLS.get(int(words[0]), f"call {words[0]}")
    target = ""
    with suppress(OSError, ValueError, IndexError):
        if call in _ON_FILE:
            target = file_of(pid, int(words[1], 16))
        elif call in ("open", "openat"):
            target = with_sort(_string(pid, int(words[1 if call == "open" else 2], 16)), pid)
    return call, target


def file_of(pid: int, number: int) -> str:
    """Describe an open file, such as `/data/x (fifo)`."""
    name = os.readlink(f"/proc/{pid}/fd/{number}")  # noqa: PTH115 (no path: `pipe:[12]`)
    return with_sort(name, pid) if name.startswith("/") else name


def with_sort(name: str, pid: int) -> str:
    """Return the path with its file type in parentheses, unless it is a regular file."""
    place = f"/proc/{pid}/root{name}" if name.startswith("/") else f"/proc/{pid}/cwd/{name}"
    try:
        mode = os.lstat(place).st_mode
    except OSError:
        return name
    sorts = ((stat.S_ISFIFO, "fifo"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"))
    return next((f"{name} ({word})" for is_one, word in sorts if is_one(mode)), name)


def _string(pid: int, address: int) -> str:
    """Return the text at an address of the process's memory, up to the end of its page at least."""
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        memory.seek(address)
        return memory.read(4096 - address % 4096).partition(b"\0")[0].decode(errors="replace")


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError):
        return ""


def socket_owners(pids: Iterable[int]) -> dict[str, int]:
    """Return inode -> process of the open sockets of these processes."""
    owners: dict[str, int] = {}
    for pid in pids:
        with suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    link = os.readlink(entry)  # noqa: PTH115
                    if link.startswith("socket:["):
                        owners[link[8:-1]] = pid
    return owners


def sockets_of(pids: Iterable[int]) -> list[dict[str, Any]]:
    """Return TCP connections of these processes to other hosts: state, queues, retransmissions."""
    owners, found = socket_owners(pids), []
    for name in ("tcp", "tcp6"):
        for row in _text(f"/proc/net/{name}").splitlines()[1:]:
            with suppress(ValueError, IndexError):
                connection = socket_row(row)
                owner = owners.get(connection.pop("inode"))
                if owner is not None and connection["state"] in _STATES.values():
                    found.append({"pid": owner, **connection})
    return found


def socket_row(row: str) -> dict[str, Any]:
    """Parse a row of /proc/net/tcp, see Documentation/networking/proc_net_tcp.rst of Linux."""
    fields = row.split()
    unsent, unread = fields[4].split(":")
    return {
        "local": _address(fields[1]),
        "peer": _address(fields[2]),
        "state": _STATES.get(int(fields[3], 16), ""),
        "unsent": int(unsent, 16),
        "unread": int(unread, 16),
        "retries": int(fields[6], 16),
        "inode": fields[9],
    }


def _address(text: str) -> str:
    address, _, port = text.partition(":")
    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
    if len(words) == 4 and b"".join(words[:3]) == bytes(10) + b"\xff\xff":
        words = words[3:]  # IPv4 over an IPv6 socket, as used by Gloo and gRPC
    if len(words) == 1:
        host = ".".join(map(str, words[0]))
    else:
        whole = b"".join(words)
        host = "[" + ":".join(whole[at : at + 2].hex() for at in range(0, 16, 2)) + "]"
    return f"{host}:{int(port, 16)}"


DUMP_BYTES = 1 << 20
SMI_S = 5.0
GPU_QUERY = "index,uuid,utilization.gpu,power.draw,memory.used"
RAS_ADDRESS = "localhost:28028"  # NCCL's own status server, since 2.24
RAS_S = 4.0  # for its complete report


def gpus() -> dict[str, Any]:
    """Return utilization, power and memory of this host's GPUs, and the reason if they are not known."""
    ask = ["nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"]
    found: list[dict[str, str]] = []
    error = other = ""
    with suppress(OSError):
        process = subprocess.Popen(
            ask, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            for row in process.communicate(timeout=SMI_S)[0].splitlines():
                cells = [cell.strip() for cell in row.split(",")]
                if len(cells) == 5:
                    found.append(dict(zip(("index", "uuid", "busy", "watts", "mib"), cells)))  # noqa: B905
                else:
                    other = row.strip() or other
            if process.returncode:
                error = other or f"exit code {process.returncode}"
        except subprocess.TimeoutExpired:
            # Do not wait for its end, as subprocess.run does: if the driver hangs, no signal ends nvidia-smi.
            process.kill()
            error = f"no answer within {SMI_S:.0f} s"
    return {"gpus": found, "gpu_error": error}


def oom_kills() -> int:
    """Return the number of out-of-memory kills in this container."""
    total = 0
    for name in ("memory.events", "memory/memory.oom_control"):
        with suppress(OSError, ValueError):
            for line in (Path("/sys/fs/cgroup") / name).read_text().splitlines():
                word, _, count = line.partition(" ")
                total += int(count) if word == "oom_kill" else 0
    return total


def ras(environ: dict[str, str], pids: Iterable[int]) -> str:
    """Return NCCL's own report about its communicators, if it answers and is that of these processes."""
    host, _, port = environ.get("NCCL_RAS_ADDR", RAS_ADDRESS).rpartition(":")
    report = b""
    # The port belongs to the first job on the host, which can be that of another user.
    with suppress(OSError, ValueError):
        if not listens(int(port), pids):
            return ""
        until = time.monotonic() + RAS_S
        with socket.create_connection((host, int(port)), 1) as talk:
            talk.settimeout(2)
            talk.sendall(b"verbose status\n")
            while len(report) < DUMP_BYTES and (left := until - time.monotonic()) > 0:
                talk.settimeout(min(2, left))
                if not (data := talk.recv(65536)):
                    break
                report += data
    return report.decode(errors="replace")


def listens(port: int, pids: Iterable[int]) -> bool:
    """Return whether one of these processes accepts connections to this TCP port."""
    owners = socket_owners(pids)
    for name in ("tcp", "tcp6"):
        for row in _text(f"/proc/net/{name}").splitlines()[1:]:
            fields = row.split()
            with suppress(ValueError, IndexError):
                is_there = fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port
                if is_there and fields[9] in owners:
                    return True
    return False


def flight_dumps(folder: Path, rank: int, environ: dict[str, str]) -> dict[str, str]:
    """Return the files of torch's flight recorder for this rank of this job; name -> base64."""
    environ = environ or dict(os.environ)
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    named = (environ.get("TORCH_FR_DUMP_TEMP_FILE"), environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE"))
    places = (
        *named,
        f"{cache}/torch/comm_lib_trace_rank_",
        "/tmp/nccl_trace_rank_",
    )  # the last path is that of torch before 2.7
    found = {}
    for place in filter(None, places):
        with suppress(OSError):
            path = Path(f"{place}{rank}")
            about = path.stat()
            # Skip files of an earlier job.
            if about.st_size <= DUMP_BYTES and about.st_mtime > (folder / "record.json").stat().st_mtime:
                found[path.name] = base64.b64encode(path.read_bytes()).decode()
    return found
