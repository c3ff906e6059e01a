"""What GPUs, NCCL and the kernel say of a job's ranks on this host, each where it says anything."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

DUMP_BYTES = 1 << 20
GPU_QUERY = "index,uuid,utilization.gpu,power.draw,memory.used"
RAS_ADDRESS = "localhost:28028"  # where NCCL answers by itself, from 2.24 on


def gpus() -> list[dict[str, Any]]:
    """Utilisation, power and memory of this host's GPUs; none where there is no nvidia-smi."""
    ask = ["nvidia-smi", f"--query-gpu={GPU_QUERY}", "--format=csv,noheader,nounits"]
    found = []
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(ask, stdin=subprocess.DEVNULL, capture_output=True, timeout=5, text=True)
        for row in done.stdout.splitlines():
            cells = [cell.strip() for cell in row.split(",")]
            if len(cells) == 5:
                found.append(dict(zip(("index", "uuid", "busy", "watts", "mib"), cells)))  # noqa: B905
    return found


def oom_kills() -> int:
    """How often the kernel has killed a process of this container for want of memory."""
    total = 0
    for name in ("memory.events", "memory/memory.oom_control"):
        with suppress(OSError, ValueError):
            for line in (Path("/sys/fs/cgroup") / name).read_text().splitlines():
                word, _, count = line.partition(" ")
                total += int(count) if word == "oom_kill" else 0
    return total


def ras(environ: dict[str, str]) -> str:
    """What NCCL itself says of its communicators, where it answers."""
    host, _, port = environ.get("NCCL_RAS_ADDR", RAS_ADDRESS).rpartition(":")
    said = b""
    with suppress(OSError, ValueError), socket.create_connection((host, int(port)), 1) as talk:
        talk.settimeout(2)
        talk.sendall(b"verbose status\n")
        while len(said) < DUMP_BYTES and (data := talk.recv(65536)):
            said += data
    return said.decode(errors="replace")


def flight_dumps(folder: Path, rank: int, environ: dict[str, str]) -> dict[str, str]:
    """What torch's flight recorder has written for this rank of this job; name -> base64."""
    environ = environ or dict(os.environ)
    cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '')}/.cache"
    named = (environ.get("TORCH_FR_DUMP_TEMP_FILE"), environ.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE"))
    places = (*named, f"{cache}/torch/comm_lib_trace_rank_", "/tmp/nccl_trace_rank_")  # the last before 2.7
    found = {}
    for place in filter(None, places):
        with suppress(OSError):
            path = Path(f"{place}{rank}")
            about = path.stat()
            # An earlier job's may lie there still.
            if about.st_size <= DUMP_BYTES and about.st_mtime > (folder / "record.json").stat().st_mtime:
                found[path.name] = base64.b64encode(path.read_bytes()).decode()
    return found
