"""A census of practice hosts from outside the toolkit: everything that a run could leave behind."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.faults.hosts import AGENT

# Runs as root on the host. A process is identified by its number and start time, because numbers are reused.
# Files that the engine and the services of the host write continuously are left out.
_LOOK = r"""
for p in /proc/[0-9]*; do
  words=$(tr '\0' ' ' <"$p/cmdline" 2>/dev/null) || continue
  [ -n "$words" ] || continue
  started=$(sed 's/.*) //' "$p/stat" 2>/dev/null | cut -d' ' -f20)
  parent=$(sed 's/.*) //' "$p/stat" 2>/dev/null | cut -d' ' -f2)
  pid=${p#/proc/}
  [ "$$" = "$pid" ] || [ "$$" = "$parent" ] || printf 'process\t%s@%s %s\n' "$pid" "$started" "$words"
done
docker ps -a --no-trunc --format '{{.Names}} {{.ID}}' | sed 's/^/container\t/'
docker volume ls -q | sed 's/^/volume\t/'
docker images --format '{{.Repository}}:{{.Tag}}' | sed 's/^/image\t/'
cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | while read -r _ at _ state _; do
  [ "$state" = 0A ] && printf 'port\t%s\n' "$at"
done
cut -d' ' -f5 /proc/1/mountinfo | sed 's/^/mount\t/'
find / -xdev \( -path /proc -o -path /sys -o -path /var/lib/docker -o -path /run/docker \
  -o -path /run/containerd -o -path /run/toolkit-lab -o -path /var/log \) \
  -prune -o -print 2>/dev/null | sed 's/^/file\t/'
find /dev/shm 2>/dev/null | sed 's/^/file\t/'
"""


@dataclass(frozen=True)
class Census:
    """Objects on each host, as lines of kind and name."""

    hosts: Mapping[str, frozenset[str]]

    def beyond(self, earlier: Census, renewed: Collection[str] = (), allowed: str = "") -> list[str]:
        """Return what is here and was not there, as ``host: kind name``.

        Args:
            renewed: hosts that were restarted, or whose engine or sshd was: their processes are identified by
                their command lines, and the engine has another port on loopback.
            allowed: pattern of lines that may be there.
        """
        found = []
        for host, lines in self.hosts.items():
            old = {_loosely(line) for line in earlier.hosts[host]} if host in renewed else earlier.hosts[host]
            for line in lines:
                if (_loosely(line) if host in renewed else line) not in old:
                    found.append(f"{host}: {' '.join(line.split())}")
        return sorted(line for line in found if not (allowed and re.search(allowed, line)))


def _loosely(line: str) -> str:
    line = re.sub(r"^process\t\d+@\d+ ", "process\t", line)
    # 127.0.0.1 and 127.0.0.11: the engine's own, and where it answers the container that plays the host.
    return re.sub(r"^port\t0[1B]00007F:.*", "port\tloopback", line)


def take_census(containers: Mapping[str, str]) -> Census:
    """Return the census of these hosts; ``containers`` are those that play them, by host."""
    with ThreadPoolExecutor(len(containers)) as pool:
        looks = pool.map(lambda pair: (pair[0], frozenset(_look(pair[1]))), containers.items())
        return Census(dict(looks))


def settled(
    containers: Mapping[str, str],
    before: Census,
    seconds: float = 30.0,
    renewed: Collection[str] = (),
    allowed: str = "",
) -> list[str]:
    """Return what is left beyond ``before``, waiting at most ``seconds`` for it to disappear.

    ``renewed`` and ``allowed`` are those of ``Census.beyond``.
    """
    deadline = time.monotonic() + seconds
    while True:
        left = take_census(containers).beyond(before, renewed, allowed)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(1)


def _look(container: str) -> Iterable[str]:
    argv = ["docker", "exec", container, "bash", "-c", _LOOK]
    done = subprocess.run(argv, capture_output=True, check=True)
    for line in done.stdout.decode(errors="replace").splitlines():
        # Those by which we look ourselves, and an engine's own that come and go.
        if (
            "docker ps -a --no-trunc" not in line
            and AGENT not in line
            and "containerd-shim-runc-v2 -namespace moby -id" not in line
        ):
            yield line
