"""How a job's ranks are started on hosts other than main, and what of a job each host has then.

With ssh the launcher on main reaches the workers through an sshd of the cluster. With exec nothing listens
and no container holds a key: each host has a part of the job, with a supervisor of its own, and whoever
starts the job starts them all.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from toolkit.protocol.jobs import Cause, Status

SSH, EXEC = "ssh", "exec"
TRANSPORTS = (SSH, EXEC)

# Those that need no way from host to host once all has been started.
LAUNCHERS = ("accelerate", "mpirun", "python", "torchrun")
# What starts the same ranks.
INSTEAD = {"horovodrun": "mpirun"}

# The status of a container whose program its image does not have.
NOT_FOUND = 127
_SSHD, _SSH = "/usr/sbin/sshd", "ssh"
# For places that do not know what else the image has; `check` does.
WITHOUT_SSHD = (
    "in hosts.yaml: transport: exec; or use an image with sshd: toolkit image build, then image: toolkit:cpu"
    " or image: toolkit:gpu"
)


def needs_of(transport: str, hosts: int) -> tuple[str, ...]:
    """Return the programs that an image must have for a transport between this number of hosts."""
    return (_SSH, _SSHD) if transport == SSH and hosts > 1 else ()


_FINAL = ("succeeded", "failed", "stopped", "timeout", "lost", "unknown")
# What has kept a job from its end outweighs what has followed from that.
FAULTS = ("failed", "timeout", "lost")
_ENDED_BY_OTHERS = 128 + 15
_NO_CAUSE = Cause()


def together(parts: Mapping[str, Status]) -> Status:
    """Return the status of a job from those of its parts by host.

    Args:
        parts: at least one; ``state`` may be ``lost`` as well, see ``toolkit.core.job_status``.
    """
    statuses = list(parts.values())
    ended = [one.ended for one in statuses]
    merged = replace(
        _telling(statuses),
        started=min(one.started or 0.0 for one in statuses),
        unswept=tuple(sorted({name for one in statuses for name in one.unswept or ()})),
        ended=None if None in ended else max(each or 0.0 for each in ended),
    )
    if any(one.state not in _FINAL for one in statuses):
        started = any(one.state != "starting" for one in statuses)
        state = "running" if started else "starting"
        merged = replace(merged, state=state, exit_code=None, reason="", ended=None, cause=None)
    return merged


def shifted(status: Status, seconds: float) -> Status:
    """Return a status with its moments moved: hosts' clocks differ by more than a failure takes to spread.

    Args:
        seconds: by which the clock that it was written by is behind the one that counts.
    """

    def moved(moment: float | None) -> float | None:
        return moment + seconds if moment else moment

    cause = status.cause
    return replace(
        status,
        started=moved(status.started),
        ended=moved(status.ended),
        asked=moved(status.asked),
        cause=replace(cause, ended=moved(cause.ended)) if cause else None,
    )


def _telling(statuses: list[Status]) -> Status:
    """The part that says how the job has ended: the first that failed, best with a rank's own record.

    Unless somebody had asked for the end before: what fails after that has failed of it.
    """
    asked = min((one.asked for one in statuses if one.asked), default=math.inf)

    def lateness(status: Status) -> tuple[int, bool, bool, float]:
        cause = status.cause or _NO_CAUSE
        when = (status.ended if cause.ended is None else cause.ended) or 0.0
        if status.state in FAULTS and when <= asked:
            order = 0
        elif status.state in ("stopped", *FAULTS):
            order = 1 if status.asked else 2
        else:
            order = 3
        # A launcher that has lost one rank ends the others by SIGTERM.
        return order, cause == _NO_CAUSE, cause.exit_code == _ENDED_BY_OTHERS, when

    return min(statuses, key=lateness)
