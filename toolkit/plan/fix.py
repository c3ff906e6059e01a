"""What `check --fix` does: removes what earlier clusters and jobs of ours left, and touches nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from toolkit.core.command import Ref, script
from toolkit.core.facts import ContainerFacts
from toolkit.plan.steps import Phase, Plan, Run, Step

# Not by force: one that somebody has started in the meantime stays.
_REMOVE = r"""
docker container inspect "$1" >/dev/null 2>&1 || exit 0
docker rm --volumes "$1"
"""
_IS_GONE = '! docker container inspect "$1"'

# Of the jobs named, those without a supervisor on this host. No job's id holds a slash, so none is taken for
# another.
_OVER = r"""
over=
for job; do
  grep -qszFx "TOOLKIT_SUPERVISOR=$job" /proc/[0-9]*/environ
  [ $? -eq 0 ] || over="$over/$job/"
done
printf '%s\n' "$over"
"""

# $1 the job, $2 what main has just said about jobs that are over. The mark is read anew before each signal.
_END = r"""
case ${2-} in *"/$1/"*) ;; *) echo "main does not say that job $1 is over" >&2; exit 1 ;; esac
left() { grep -lszFx "TOOLKIT_JOB=$1" /proc/[0-9]*/environ; }
for signal in TERM 0 0 0 0 KILL KILL; do
  for file in $(left "$1"); do
    pid=${file#/proc/}
    kill -$signal "${pid%/environ}" 2>/dev/null
  done
  [ -n "$(left "$1")" ] || exit 0
  sleep 1
done
[ -z "$(left "$1")" ] || { echo "still alive: $(left "$1" | tr '\n' ' ')" >&2; exit 1; }
"""
_NONE_LEFT = '! grep -qszFx "TOOLKIT_JOB=$1" /proc/[0-9]*/environ'


@dataclass(frozen=True)
class Stray:
    """Processes on one host of a job that is over."""

    host: str
    job: str
    pids: tuple[int, ...]


def plan_fix(
    cluster: str, main: str, containers: Mapping[str, Iterable[ContainerFacts]], strays: Iterable[Stray]
) -> Plan:
    """Return the plan that removes leftovers of ours.

    Args:
        main: the host that knows which jobs run. It is asked again before a process is ended: a job may
            have begun since.
        containers: stopped ones of ours, by host.
    """
    strays = tuple(strays)
    jobs = sorted({stray.job for stray in strays})
    remove: list[Step] = [
        Run(
            host,
            f"remove container {container.name}",
            script(_REMOVE, container.id),
            unless=script(_IS_GONE, container.id),
        )
        for host, found in containers.items()
        for container in found
    ]
    ask = Run(main, "which jobs are over", script(_OVER, *jobs), saves="over")
    end: list[Step] = [
        Run(
            stray.host,
            f"end what is left of job {stray.job}",
            script(_END, stray.job, Ref(main, "over")),
            unless=script(_NONE_LEFT, stray.job),
            fix=f"on {stray.host}: ps -o pid,stat,cmd {' '.join(map(str, stray.pids))}; D ends at a reboot",
        )
        for stray in strays
    ]
    phases = (
        Phase("containers", tuple(remove)),
        Phase("jobs", (ask,) if strays else ()),
        Phase("processes", tuple(end)),
    )
    return Plan(f"fix {cluster}", tuple(phase for phase in phases if phase.steps))
