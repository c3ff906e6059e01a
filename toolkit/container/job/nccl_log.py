"""The network that NCCL uses on this host, from NCCL's own log.

If NCCL cannot use RDMA, it silently uses TCP, and the job is only slow. So NCCL in the first rank of a host
logs its start to a file, and toolkit prints one line about it.

The lines that are parsed: src/init.cc, src/graph/topo.cc, src/misc/ibvsymbols.cc and src/transport of
https://github.com/NVIDIA/nccl, tags v2.19.3-1 to v2.30.7-1.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from toolkit.container.files import content

# Seconds between two reads of the file, and the time after the start of the rank during which it is read.
_EVERY_S, _UNTIL_S = 0.5, 900.0
_MOST_BYTES = 1 << 20
# NCCL describes a GPU's path to the network after it has chosen the network, and ends with this line.
_COMPLETE = "Init COMPLETE"

_NETWORK = re.compile(r"NCCL INFO Using network ([\w .-]{1,60})")
_RDMA = re.compile(r"NCCL INFO NET/IB : Using(.*?);")
_PORT = re.compile(r"\[\d+\]([\w.-]+):\d+[^/ ]*/(\w+)")
_SOCKET = re.compile(r"NCCL INFO NET/Socket : Using(.*)")
_INTERFACE = re.compile(r"\[\d+\]([\w.-]+):")
_DIRECT = re.compile(r"NET/\S+ : GPU Direct RDMA (Enabled|Disabled) for HCA \d+ '([\w.-]+)'")
# Reasons for TCP, most specific first.
_REASONS = (
    (re.compile(r"NCCL_NET set by environment to Socket"), "NCCL_NET=Socket is set"),
    (re.compile(r"NCCL_IB_DISABLE set by environment to 1"), "NCCL_IB_DISABLE=1 is set"),
    (re.compile(r"Failed to open libibverbs"), "the image has no libibverbs.so.1"),
    (re.compile(r"NET/IB : No device found"), "NCCL found no usable RDMA device"),
)


def log_settings(env: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return the variables that make NCCL log its start to a file; none if the user configures NCCL's log."""
    if "NCCL_DEBUG" in env or "NCCL_DEBUG_FILE" in env:
        return {}
    # ENV names the variables that NCCL obeys, NET the access of the network to the GPUs' memory.
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,NET", "NCCL_DEBUG_FILE": str(path)}


def network_text(log: str) -> str:
    """Return one sentence about the network that NCCL uses, empty if the log does not contain it."""
    found = _NETWORK.findall(log)
    if not found:
        return ""
    name = found[-1].strip()
    if name.startswith("IB"):
        ports = [port for line in _RDMA.findall(log)[-1:] for port in _PORT.findall(line)]
        kind = "RoCE" if ports and all(layer == "RoCE" for _, layer in ports) else "InfiniBand"
        text = f"NCCL uses {kind}" + (f" on {', '.join(port for port, _ in ports)}" if ports else "")
        return text + _direct_text(dict(reversed(each) for each in _DIRECT.findall(log)))
    if name == "Socket":
        names = [each for line in _SOCKET.findall(log)[-1:] for each in _INTERFACE.findall(line)]
        why = next((f", because {reason}" for seen, reason in _REASONS if seen.search(log)), "")
        return "NCCL uses TCP" + (f" on {', '.join(names)}" if names else "") + why
    return f"NCCL uses the network plugin {name}"


def _direct_text(state: Mapping[str, str]) -> str:
    """Return which ports can access the memory of GPUs directly, from their state by name.

    NCCL does so only between a GPU and a port that are close, which it decides when it connects them.
    """
    able = [name for name, word in state.items() if word == "Enabled"]
    if not state:
        return ""
    if not able:
        return ", without GPUDirect RDMA"
    return ", with support for GPUDirect RDMA" + (
        "" if len(able) == len(state) else f" only on {', '.join(able)}"
    )


class NcclLog:
    """NCCL's log in a file, read until it names the network; then the file is removed.

    NCCL keeps the removed file open, so the rest of its log takes no room once the rank has ended.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._until = clock() + _UNTIL_S
        self._next = clock()
        self._over = False

    def poll(self) -> str:
        """Return the sentence of ``network_text`` once, after NCCL's start; otherwise an empty text."""
        now = self._clock()
        if self._over or now < self._next:
            return ""
        self._next = now + _EVERY_S
        try:
            log = content(self._path)[:_MOST_BYTES].decode(errors="replace")
        except (OSError, ValueError):  # not written yet; or the rank made something else of it
            log = ""
        if _COMPLETE not in log and len(log) < _MOST_BYTES and now < self._until:
            return ""
        return self.close(log)

    def close(self, log: str = "") -> str:
        """Remove the file; return the sentence about the network."""
        self._over = True
        with suppress(OSError):
            self._path.unlink()
        return network_text(log)
