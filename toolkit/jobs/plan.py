"""The plan of `run`: code and job file to every host, then the supervisor, which runs the job."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from toolkit.cluster.container_status import UP, lacks_sshd, why_not_running
from toolkit.cluster.gpus import usable_groups
from toolkit.cluster.layout import Layout
from toolkit.cluster.ownership import ours
from toolkit.core.code import CodeTree
from toolkit.core.image import OWN, build_command
from toolkit.core.printable import counted
from toolkit.errors import NotReady
from toolkit.jobs.slots import Room
from toolkit.launchers import BY_AGENT, LAUNCHERS, about_job, starts_from_main
from toolkit.launchers.job import Job
from toolkit.plan.steps import Phase, Plan, SendCode, StartDaemons, StartJob
from toolkit.protocol.names import container_name
from toolkit.protocol.transport import EXEC, without_sshd


def rooms(layout: Layout, chosen: Sequence[str]) -> tuple[Room, ...]:
    """Return slots and GPUs of the chosen hosts, main first, the others in the file's order."""
    places = sorted(
        (p for p in layout.places if p.name in chosen), key=lambda p: p.name != layout.inventory.main
    )
    return tuple(Room(p.name, p.path.address, p.slots, usable_groups(p.gpus, p.facts)) for p in places)


# Additions to an image for a launcher: one of these. The ENV of the image lists its additions.
_COMES_WITH = {"accelerate": ("accelerate", "transformers"), "deepspeed": ("deepspeed",), "ray": ("ray",)}


def require_running(
    layout: Layout, hosts: Sequence[str], without: Callable[[Sequence[str]], str] = lambda hosts: ""
) -> None:
    """Refuse hosts whose containers are not running.

    Args:
        without: returns the command that runs the job without these hosts; empty if there is none.

    Raises:
        NotReady: names every host whose container is not running, or that did not answer.
    """
    missing = {name: found for name in hosts if (found := _missing(layout, name))}
    if missing:
        what = f"no container of the cluster runs on {', '.join(words for words, _ in missing.values())}"
        fix = without_sshd(layout.inventory.image) if any(no_sshd for _, no_sshd in missing.values()) else UP
        if other := without(tuple(missing)):
            fix += f"  # or run the job on the other hosts: {other}"
        raise NotReady(what, fix)


def require_launcher(layout: Layout, launcher: str, elastic: bool = False) -> None:
    """Refuse a launcher that is missing in the image; only toolkit images are checked.

    Raises:
        NotReady: the image was built without it, or has an Open MPI with which it does not work.
    """
    env = dict(layout.image.env)
    openmpi = env.get("TOOLKIT_OPENMPI", "")
    if launcher == "horovodrun" and not elastic and openmpi.startswith("5."):
        what = (
            "without --elastic, horovodrun requires Open MPI 4, but the image "
            f"{layout.inventory.image} contains Open MPI {openmpi}"
        )
        raise NotReady(what, "toolkit run --launcher mpirun SCRIPT  # mpirun also starts ranks of Horovod")
    added = env.get("TOOLKIT_WITH")
    wanted = _COMES_WITH.get(launcher)
    if added is None or wanted is None or {OWN, *wanted} & set(added.split(",")):
        return
    every = ",".join(sorted({*filter(None, added.split(",")), launcher}))
    what = f"the image {layout.inventory.image} was built without {launcher}"
    raise NotReady(what, f"{build_command(layout.inventory.image)} --with {every} && toolkit up")


def _missing(layout: Layout, host: str) -> tuple[str, bool] | None:
    """Return why a host's container is not running, and whether its image has no sshd; None if it runs."""
    place = layout.place(host)
    if place is None:
        return host, False
    name = container_name(layout.inventory.cluster, place.role)
    found = next((c for c in ours(layout.inventory.cluster, place.facts) if c.name == name), None)
    if found is None:
        return host, False
    why = why_not_running(found, place.facts)
    return (f"{host} ({why})", lacks_sshd(found)) if why else None


def job_file(job: Job) -> str:
    """Return the text of job.json, the same on every host; see container/job_file.py for its readers."""
    about = about_job(job) | {"variables": job.has_variables}
    return json.dumps(about, indent=1, sort_keys=True) + "\n"


def variables_text(job: Job, hosts: Sequence[str]) -> str:
    """Return the variables that a supervisor gets for these hosts; see container/job/variables.py."""
    if not job.has_variables:
        return ""
    own = {host: dict(pairs) for host, pairs in job.host_env if host in hosts}
    about = {"env": dict(job.env), "override": dict(job.override), "token": job.token, "hosts": own}
    return json.dumps(about, sort_keys=True) + "\n"


def plan_job(layout: Layout, job: Job, source: str, tree: CodeTree) -> Plan:
    """Return the plan that starts the job; it ends when its supervisors run on their own.

    Args:
        source: local folder whose files become the job's snapshot; empty for none.
        tree: the files of this folder to send.
    """
    cluster = layout.inventory.cluster
    own = (job.main,) if starts_from_main(job.launcher, job.transport) else ()
    names = dict.fromkeys((*own, *(h.name for h in (*job.hosts, *job.spares))))
    title = f"send code ({counted(len(tree.entries), 'file')})" if source else "send the job file"
    text = job_file(job)
    sends = tuple(
        SendCode(
            name,
            title,
            container_name(cluster, layout.inventory.role(name)),
            job.folder,
            source,
            tree,
            text,
        )
        for name in names
    )
    containers = {name: container_name(cluster, layout.inventory.role(name)) for name in names}
    phases = [Phase("code", sends), _start_phase(job, containers)]
    others = tuple((host.name, containers[host.name]) for host in job.hosts if host.name != job.main)
    if job.transport == EXEC and job.launcher in BY_AGENT and others:
        title = f"start the daemons of {job.launcher}"
        variables = tuple(variables_text(job, (name,)) for name, _ in others)
        daemons = StartDaemons(job.main, title, containers[job.main], job.id, others, variables)
        phases.append(Phase("daemons", (daemons,)))
    return Plan(f"run {job.id}", tuple(phases))


def _start_phase(job: Job, containers: Mapping[str, str]) -> Phase:
    """Return the start of the supervisor on main, or of one on each host that has a launch."""
    hosts = dict.fromkeys(launch.host for launch in LAUNCHERS[job.launcher](job))
    # The hosts to which each supervisor gives variables.
    starting = {host: (host,) for host in hosts} if job.transport == EXEC else {job.main: tuple(containers)}
    title = f"start the job with {job.launcher}"
    steps = (
        StartJob(host, title, containers[host], job.id, variables_text(job, served))
        for host, served in starting.items()
    )
    return Phase("start", tuple(steps))
