"""What the probe's answer says of the cluster: its containers, its files, and since when the host runs."""

from __future__ import annotations

import functools
from datetime import datetime, timezone

from toolkit.core.facts import ContainerFacts, Remembered
from toolkit.core.image import image_id
from toolkit.core.typed import Kind
from toolkit.protocol.engine import ContainerConfig, ContainerInspect, ContainerState
from toolkit.protocol.frames import lines_of
from toolkit.protocol.names import LABEL_CLUSTER, container_name
from toolkit.protocol.numbers import MOST, whole

# The kernel counts in USER_HZ, which is 100 on every architecture that Docker runs on (man 5 proc).
_TICKS_PER_SECOND = 100
_LATEST = 10**11  # seconds since the epoch


def is_named_as_labeled(container: ContainerFacts) -> bool:
    """Return whether a container has a name of the cluster that its label names.

    An image can bring labels, and every container made from it has them; a name it cannot bring.
    """
    return container.name.startswith(container_name(container.labels.get(LABEL_CLUSTER, ""), ""))


def container_facts(item: ContainerInspect) -> ContainerFacts:
    """Return one container from its ``docker inspect`` object."""
    state = item.state or ContainerState()
    return ContainerFacts(
        id=item.id,
        name=item.name.lstrip("/"),
        state=state.status,
        labels=(item.config or ContainerConfig()).labels or {},
        exit_code=state.exit_code or 0,
        image=image_id(item.image),
        started=_seconds(state.started or ""),
        ended=_seconds(state.finished or ""),
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
    line = next((line for line in lines_of(text) if line.startswith("btime ")), "")
    boot = _number(line.split(), 1, _LATEST)
    ticks = _number(stat.split(), 19)
    return boot + ticks / _TICKS_PER_SECOND if boot and ticks else 0.0


def _number(words: list[str], at: int, most: int = MOST) -> int:
    """The number in a place, 0 where there is none."""
    return (whole(words[at], most) if len(words) > at else None) or 0


def boot_time(text: str) -> float:
    """Return when the host's first process began, from the lines of /proc/stat and /proc/1/stat.

    A container that behaves as a host shares the kernel of its machine, and starts later than that.

    Args:
        text: ``btime SECONDS``, and ``1 (NAME) STATE …``, whose field 22 is in ticks since then (man 5 proc).
    """
    boot = ticks = 0
    for line in lines_of(text):
        words = line.rpartition(")")[2].split()
        if line.startswith("btime "):
            boot = _number(words, 1, _LATEST)
        elif line.startswith("1 ("):
            ticks = _number(words, 19)
    return boot + ticks / _TICKS_PER_SECOND if boot else 0.0


# The same on most hosts of a cluster, and long where there are many.
@functools.lru_cache(maxsize=64)
def remembered(text: str) -> Remembered:
    """Return what `up` wrote here before: /etc/hosts, known_hosts and authorized_keys of the cluster.

    Lines whose key or address is not valid are left out.
    """
    addresses, keys, main_key = [], [], ""
    for line in lines_of(text):
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
    lines = (line.split(maxsplit=1) for line in lines_of(text))
    return tuple((words[1], words[0]) for words in lines if len(words) == 2)
