"""What the probe's answer says of the cluster: its containers, its files, and since when the host runs."""

from __future__ import annotations

import functools
from datetime import datetime, timezone
from typing import Any

from toolkit.core.facts import ContainerFacts, Remembered
from toolkit.core.image import image_id
from toolkit.core.typed import Kind

# The kernel counts in USER_HZ, which is 100 on every architecture that Docker runs on (man 5 proc).
_TICKS_PER_SECOND = 100


def container_facts(item: dict[str, Any]) -> ContainerFacts:
    """Return one container from its ``docker inspect`` object."""
    state = item.get("State") or {}
    return ContainerFacts(
        id=str(item.get("Id", "")),
        name=str(item.get("Name", "")).lstrip("/"),
        state=str(state.get("Status", "")),
        labels={str(k): str(v) for k, v in ((item.get("Config") or {}).get("Labels") or {}).items()},
        exit_code=int(state.get("ExitCode") or 0),
        image=image_id(str(item.get("Image", ""))),
        started=_seconds(str(state.get("StartedAt") or "")),
        ended=_seconds(str(state.get("FinishedAt") or "")),
    )


def _seconds(text: str) -> float:
    """Docker's times are UTC with up to nine decimals; the year 1 stands for never."""
    try:
        moment = datetime.strptime(text[:19], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    except ValueError:
        return 0.0
    return max(0.0, moment.timestamp()) if moment.year > 1970 else 0.0


def begun(text: str, stat: str) -> float:
    """Return when a process began, in seconds since the epoch; 0 where that cannot be told.

    Args:
        text: with a line ``btime SECONDS``; stat: what /proc/PID/stat says after the process's name.
    """
    boot = next((line.split()[1] for line in text.splitlines() if line.startswith("btime ")), "0")
    words = stat.split()
    ticks = int(words[19]) if len(words) > 19 and words[19].isdigit() else 0
    return int(boot) + ticks / _TICKS_PER_SECOND if int(boot) and ticks else 0.0


def boot_time(text: str) -> float:
    """Return when the host's first process began, from the lines of /proc/stat and /proc/1/stat.

    A container that behaves as a host shares the kernel of its machine, and starts later than that.

    Args:
        text: ``btime SECONDS``, and ``1 (NAME) STATE …``, whose field 22 is in ticks since then (man 5 proc).
    """
    boot = ticks = 0
    for line in text.splitlines():
        words = line.rpartition(")")[2].split()
        if line.startswith("btime ") and words[1:]:
            boot = int(words[1])
        elif line.startswith("1 (") and len(words) > 19:
            ticks = int(words[19])
    return boot + ticks / _TICKS_PER_SECOND if boot else 0.0


# The same on most hosts of a cluster, and long where there are many.
@functools.lru_cache(maxsize=64)
def remembered(text: str) -> Remembered:
    """Return what `up` wrote here before: /etc/hosts, known_hosts and authorized_keys of the cluster.

    Lines whose key or address is not valid are left out.
    """
    addresses, keys, main_key = [], [], ""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[1] != "localhost" and Kind.ADDRESS.accepts(words[0]):
            addresses.append((words[1], words[0]))
        elif len(words) == 3 and Kind.PUBLIC_KEY.accepts(key := " ".join(words[1:])):
            if words[0].startswith("restrict,"):
                main_key = key
            else:
                keys.append((words[0].partition(",")[0], key))
    return Remembered(tuple(addresses), tuple(keys), main_key)


def programs(text: str) -> tuple[tuple[str, str], ...]:
    """Return the lines of ``sha256sum`` as names and sums."""
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return tuple((words[1], words[0]) for words in lines if len(words) == 2)
