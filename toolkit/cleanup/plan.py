"""The plan of `gc`: remove only leftovers of earlier clusters and jobs of this user.

Each removal repeats its check on the host immediately before it removes something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from toolkit.checks.leftovers import Stray
from toolkit.cluster.ownership import END_LEFT, OWN_PROCESSES
from toolkit.core.command import Kind, Ref, script
from toolkit.core.facts import ContainerFacts
from toolkit.core.printable import counted
from toolkit.image.on_hosts import HeldImage, remove_partial_image
from toolkit.lifecycle.down import REMOVE_STATE, REMOVE_TREE
from toolkit.plan.steps import Phase, Plan, Run, Step

# Minutes without a change after which an unfinished file or folder counts as a leftover.
QUIET = 60

# `docker container inspect` also fails if the engine does not answer, so the container is listed.
_LIST = 'docker ps -aq --no-trunc --filter "id=$1"'
# Without --force: a container that was started in the meantime stays.
_REMOVE = f"""
ids=$({_LIST}) || exit
[ -z "$ids" ] || docker rm --volumes "$1"
"""
_IS_GONE = f'ids=$({_LIST}) && [ -z "$ids" ]'

# Print the given jobs that have no supervisor on this host. A job's id contains no slash, so the list is
# unambiguous.
_OVER = rf"""{OWN_PROCESSES}
over=
for job; do [ -n "$(with_variable "TOOLKIT_SUPERVISOR=$job")" ] || over="$over/$job/"; done
printf 'over: %s\n' "$over"
"""
# $1 the job, $2 its cluster, $3 the list of finished jobs that the main host has just printed. If no main
# host can be queried, a cluster without a running container on this host cannot have a job on it. Containers
# of another engine are not listed, but their first processes have no job tag.
_IS_OVER = r"""
case ${3-} in *"/$1/"*) ;; '')
  ids=$(docker ps -q --filter "label=toolkit.cluster=$2") || exit 1
  [ -z "$ids$(with_variable "TOOLKIT_CLUSTER=$2" | xargs -r grep -Lsz '^TOOLKIT_JOB=')" ] ||
    { echo "cluster $2 runs, and the main host does not report the end of job $1" >&2
      exit 1; } ;;
*) echo "the main host does not report the end of job $1" >&2; exit 1 ;; esac
"""
_END = rf"""{OWN_PROCESSES}{_IS_OVER}
job=$1
left() {{ with_variable "TOOLKIT_JOB=$job"; }}
{END_LEFT}"""
_NONE_LEFT = f'{OWN_PROCESSES}test -z "$(with_variable "TOOLKIT_JOB=$1")"'

# $4 the folder.
_REMOVE_JOB = rf"""{OWN_PROCESSES}{_IS_OVER}{REMOVE_TREE}
[ -z "$(with_variable "TOOLKIT_JOB=$1")" ] || {{ echo "processes of job $1 run on this host" >&2; exit 1; }}
remove_tree "$4"
"""
# $2 minutes without a change that are required; 0 for none.
_STAYS = r"""
[ -e "$1" ] || exit 0
[ "$2" != 0 ] && [ -n "$(find "$1" -cmin "-$2" 2>/dev/null | head -n 1)" ]
"""

# $1 the folder, $2 its cluster. A container of that cluster, of any user, might use the folder soon.
_REMOVE_STATE = rf"""{OWN_PROCESSES}
ids=$(docker ps -aq --filter "label=toolkit.cluster=$2") || exit 1
[ -z "$ids" ] || {{ echo "cluster $2 has a new container" >&2; exit 1; }}
[ -z "$(with_variable "TOOLKIT_CLUSTER=$2")" ] ||
  {{ echo "processes of cluster $2 run on this host" >&2; exit 1; }}
{REMOVE_STATE}"""
# $1 the folder of all clusters of this user, $2 minutes. The host sends no names of files. Neither the search
# nor the removal follows links.
_OLD_HALVES = 'find "$1" -name "*.toolkit-new" -type f -cmin "+$2"'
_REMOVE_HALVES = f"{_OLD_HALVES} -delete"
_NO_HALVES = f'test -z "$({_OLD_HALVES} 2>/dev/null | head -c 1)"'


@dataclass(frozen=True)
class OldJob:
    """A removable folder of a job on one host; ``quiet`` requires no change for QUIET minutes."""

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
        changed: time of the last change, in seconds since the epoch by the host's clock.
        records: number of jobs in the folder.
        quiet: seconds from the last change to the query.
        elsewhere: its data address, if the host does not have this address; another host can use the folder.
    """

    host: str
    cluster: str
    path: str
    changed: float = 0.0
    records: int = 0
    quiet: float = 0.0
    elsewhere: str = ""


@dataclass(frozen=True)
class Leftovers:
    """All leftovers to remove.

    Args:
        containers: stopped containers created by toolkit whose state is gone, by host.
        states: folders to remove with all contents.
        granted: those of ``states`` to remove even if they changed recently.
        halves: folders that contain unfinished files, by host.
        parts: layers of partial image transfers, by host.
    """

    containers: Mapping[str, Iterable[ContainerFacts]]
    strays: tuple[Stray, ...] = ()
    jobs: tuple[OldJob, ...] = ()
    states: tuple[State, ...] = ()
    granted: tuple[State, ...] = ()
    halves: Mapping[str, str] | None = None
    parts: Mapping[str, Iterable[HeldImage]] | None = None


def plan_gc(left: Leftovers) -> Plan:
    """Return the plan that removes leftovers of this user.

    The main host is queried again before a process is ended or a job's folder is removed, because a job might
    have started since.
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
    jobs_by_main: dict[str, set[str]] = {}
    doubtful: tuple[Stray | OldJob, ...] = (*left.strays, *left.jobs)
    for one in doubtful:
        if one.main:
            jobs_by_main.setdefault(one.main, set()).add(one.job)
    ask = [
        Run(main, "query finished jobs", script(_OVER, *sorted(jobs)), saves="over", kind=Kind.ENDED_JOBS)
        for main, jobs in jobs_by_main.items()
    ]
    phases = (
        Phase("containers", tuple(remove)),
        Phase("jobs", tuple(ask)),
        Phase("processes", tuple(map(_end_step, left.strays))),
        Phase(
            "folders", (*map(_job_step, left.jobs), *(_state_step(s, s in left.granted) for s in left.states))
        ),
        Phase("files", tuple(_halves_steps(left.halves or {}))),
        Phase("images", tuple(_part_steps(left.parts or {}))),
    )
    return Plan("gc", tuple(phase for phase in phases if phase.steps))


def _said(one: Stray | OldJob) -> tuple[str | Ref, ...]:
    # If the query of the main host failed, "?" takes the place of its answer; "?" confirms no finished job.
    return (one.job, one.cluster, Ref(one.main, "over", otherwise="?") if one.main else "")


def _end_step(stray: Stray) -> Step:
    return Run(
        stray.host,
        f"stop remaining processes of job {stray.job}",
        script(_END, *_said(stray)),
        unless=script(_NONE_LEFT, stray.job),
        fix=f"on {stray.host}: ps -o pid,stat,cmd {' '.join(map(str, stray.pids))}  # "
        "processes in state D exit only after their I/O completes or the host reboots",
    )


def _job_step(job: OldJob) -> Step:
    return Run(
        job.host,
        f"remove the folder of job {job.job}",
        script(_REMOVE_JOB, *_said(job), job.path),
        unless=script(_STAYS, job.path, str(QUIET if job.quiet else 0)),
        why=job.why,
    )


def _state_step(state: State, granted: bool) -> Step:
    records = f"records of {counted(state.records, 'job')}" if state.records else "no job records"
    return Run(
        state.host,
        f"remove the state directory of cluster {state.cluster}",
        script(_REMOVE_STATE, state.path, state.cluster),
        unless=script(_STAYS, state.path, "0" if granted else str(QUIET)),
        why=f"the cluster has no container on the host, and {state.path} contains {records}",
    )


def _halves_steps(halves: Mapping[str, str]) -> Iterator[Step]:
    for host, folder in halves.items():
        title = "remove unfinished files"
        about = (folder, str(QUIET))
        yield Run(host, title, script(_REMOVE_HALVES, *about), unless=script(_NO_HALVES, *about))


def _part_steps(parts: Mapping[str, Iterable[HeldImage]]) -> Iterator[Step]:
    for host, images in parts.items():
        for image in images:
            yield remove_partial_image(host, image.part_of, image.own_names, "toolkit gc")
