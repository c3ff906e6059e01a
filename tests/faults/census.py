"""A census of practice hosts from outside the toolkit: everything that a run could leave behind."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Runs as root on the host. A process is told by its number and its start, so that a number given anew is
# another one. What the engine and the host's own services keep on writing is left out of the files.
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
    """What is on each host, as lines of kind and name."""

    hosts: Mapping[str, frozenset[str]]

    def beyond(self, earlier: Census) -> list[str]:
        """Return what is here and was not there, as ``host: kind name``."""
        return sorted(
            f"{host}: {' '.join(line.split())}"
            for host, lines in self.hosts.items()
            for line in lines - earlier.hosts[host]
        )


def take_census(containers: Mapping[str, str]) -> Census:
    """Return the census of these hosts; ``containers`` are those that play them, by host."""
    return Census({host: frozenset(_look(container)) for host, container in containers.items()})


def settled(containers: Mapping[str, str], before: Census, seconds: float = 30.0) -> list[str]:
    """Return what is left beyond ``before`` once nothing more goes by itself, waiting at most so long."""
    deadline = time.monotonic() + seconds
    while True:
        left = take_census(containers).beyond(before)
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
            and "containerd-shim-runc-v2 -namespace moby -id" not in line
        ):
            yield line
