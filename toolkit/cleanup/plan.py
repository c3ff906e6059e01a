"""The plan of `gc`: remove what earlier clusters and jobs of this user left, and nothing else.

Whether something may go is decided once more on the host, at the moment at which it goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from toolkit.checks.leftovers import Stray
from toolkit.cluster.ownership import END_LEFT, OWN_PROCESSES
from toolkit.core.command import Ref, script
from toolkit.core.facts import ContainerFacts
from toolkit.core.text import counted
from toolkit.core.typed import Kind
from toolkit.image.inventory import HeldImage, remove_part
from toolkit.lifecycle.down import REMOVE_STATE
from toolkit.plan.steps import Phase, Plan, Run, Step

# Minutes without a change after which what somebody may just be making counts as left.
QUIET = 60

# Not by force: one that somebody has started in the meantime stays.
_REMOVE = r"""
docker container inspect "$1" >/dev/null 2>&1 || exit 0
docker rm --volumes "$1"
"""
_IS_GONE = '! docker container inspect "$1"'

# Of the jobs named, those without a supervisor on this host. No job's id holds a slash, so none is taken for
# another.
_OVER = rf"""{OWN_PROCESSES}
over=
for job; do [ -n "$(with_variable "TOOLKIT_SUPERVISOR=$job")" ] || over="$over/$job/"; done
printf 'over: %s\n' "$over"
"""
# $1 the job, $2 its cluster, $3 what main has just said about jobs that are over. Without a main that can
# be asked, a cluster without a running container on this host can have no job here.
_IS_OVER = r"""
case ${3-} in *"/$1/"*) ;; '')
  ids=$(docker ps -q --filter "label=toolkit.cluster=$2") || exit 1
  [ -z "$ids" ] || { echo "cluster $2 runs, and its main does not say that job $1 is over" >&2; exit 1; } ;;
*) echo "main does not say that job $1 is over" >&2; exit 1 ;; esac
"""
_END = rf"""{OWN_PROCESSES}{_IS_OVER}
job=$1
left() {{ with_variable "TOOLKIT_JOB=$job"; }}
{END_LEFT}"""
_NONE_LEFT = f'{OWN_PROCESSES}test -z "$(with_variable "TOOLKIT_JOB=$1")"'

# $4 the folder.
_REMOVE_JOB = rf"""{OWN_PROCESSES}{_IS_OVER}
[ -z "$(with_variable "TOOLKIT_JOB=$1")" ] || {{ echo "processes of it run here" >&2; exit 1; }}
rm -rf "$4"
"""
# $2 minutes that it must not have changed for; 0 for any.
_STAYS = r"""
[ -e "$1" ] || exit 0
[ "$2" != 0 ] && [ -n "$(find "$1" -cmin "-$2" 2>/dev/null | head -n 1)" ]
"""

# $1 the folder, $2 its cluster. A container of that cluster, whosever, may be about to use it.
_REMOVE_STATE = rf"""{OWN_PROCESSES}
ids=$(docker ps -aq --filter "label=toolkit.cluster=$2") || exit 1
[ -z "$ids" ] || {{ echo "cluster $2 has a container again" >&2; exit 1; }}
[ -z "$(with_variable "TOOLKIT_CLUSTER=$2")" ] || {{ echo "cluster $2 is at work" >&2; exit 1; }}
{REMOVE_STATE}"""
# $1 the folder of all clusters of this user, $2 minutes. Names of files never leave the host. Links are not
# followed, neither by the search nor by the removal.
_OLD_HALVES = 'find "$1" -name "*.toolkit-new" -type f -cmin "+$2"'
_REMOVE_HALVES = f"{_OLD_HALVES} -delete"
_NO_HALVES = f'test -z "$({_OLD_HALVES} 2>/dev/null | head -c 1)"'


@dataclass(frozen=True)
class OldJob:
    """A job's folder on one host that can go: ``path``, why, and whether it must have been quiet for long."""

    host: str
    job: str
    path: str
    why: str
    main: str = ""
    cluster: str = ""
    quiet: bool = False


@dataclass(frozen=True)
class State:
    """The folder of a cluster without any container on its host: keys, configuration, jobs.

    Args:
        changed: when last, in seconds since the epoch by the host's clock.
        records: how many jobs it holds.
        quiet: seconds since then, when the host was asked.
    """

    host: str
    cluster: str
    path: str
    changed: float = 0.0
    records: int = 0
    quiet: float = 0.0


@dataclass(frozen=True)
class Leftovers:
    """All that is to go.

    Args:
        containers: stopped ones of ours whose state is gone, by host.
        states: folders to remove whatever they hold.
        halves: folders below which files lie that were never finished, by host.
        parts: of images that never arrived, by host.
    """

    containers: Mapping[str, Iterable[ContainerFacts]]
    strays: tuple[Stray, ...] = ()
    jobs: tuple[OldJob, ...] = ()
    states: tuple[State, ...] = ()
    at_once: bool = False
    halves: Mapping[str, str] | None = None
    parts: Mapping[str, Iterable[HeldImage]] | None = None


def plan_gc(left: Leftovers) -> Plan:
    """Return the plan that removes leftovers of this user.

    Main is asked again before a process is ended or a job's folder removed: a job may have begun since.
    """
    remove: list[Step] = [
        Run(
            host,
            f"remove container {container.name}",
            script(_REMOVE, container.id),
            unless=script(_IS_GONE, container.id),
        )
        for host, found in left.containers.items()
        for container in found
    ]
    asked: dict[str, set[str]] = {}
    doubtful: tuple[Stray | OldJob, ...] = (*left.strays, *left.jobs)
    for one in doubtful:
        if one.main:
            asked.setdefault(one.main, set()).add(one.job)
    ask = [
        Run(main, "which jobs are over", script(_OVER, *sorted(jobs)), saves="over", kind=Kind.ENDED_JOBS)
        for main, jobs in asked.items()
    ]
    phases = (
        Phase("containers", tuple(remove)),
        Phase("jobs", tuple(ask)),
        Phase("processes", tuple(map(_end_step, left.strays))),
        Phase("folders", (*map(_job_step, left.jobs), *(_state_step(s, left.at_once) for s in left.states))),
        Phase("files", tuple(_halves_steps(left.halves or {}))),
        Phase("images", tuple(_part_steps(left.parts or {}))),
    )
    return Plan("gc", tuple(phase for phase in phases if phase.steps))


def _said(one: Stray | OldJob) -> tuple[str | Ref, ...]:
    # Where main has failed meanwhile the word of it drops out, and "?" is no word that a job is over.
    return (one.job, one.cluster, Ref(one.main, "over", otherwise="?") if one.main else "")


def _end_step(stray: Stray) -> Step:
    return Run(
        stray.host,
        f"end what is left of job {stray.job}",
        script(_END, *_said(stray)),
        unless=script(_NONE_LEFT, stray.job),
        fix=f"on {stray.host}: ps -o pid,stat,cmd {' '.join(map(str, stray.pids))}; D ends at a reboot",
    )


def _job_step(job: OldJob) -> Step:
    return Run(
        job.host,
        f"remove the folder of job {job.job}",
        script(_REMOVE_JOB, *_said(job), job.path),
        unless=script(_STAYS, job.path, str(QUIET if job.quiet else 0)),
        why=job.why,
    )


def _state_step(state: State, at_once: bool) -> Step:
    records = counted(state.records, "job record")
    return Run(
        state.host,
        f"remove keys and configuration of cluster {state.cluster}",
        script(_REMOVE_STATE, state.path, state.cluster),
        unless=script(_STAYS, state.path, "0" if at_once else str(QUIET)),
        why=f"{state.path}: it has no container here, and {records}",
    )


def _halves_steps(halves: Mapping[str, str]) -> Iterator[Step]:
    for host, folder in halves.items():
        title = "remove files that were never finished"
        about = (folder, str(QUIET))
        yield Run(host, title, script(_REMOVE_HALVES, *about), unless=script(_NO_HALVES, *about))


def _part_steps(parts: Mapping[str, Iterable[HeldImage]]) -> Iterator[Step]:
    for host, images in parts.items():
        for image in images:
            yield remove_part(host, image.part_of, image.own_names, "toolkit gc")
