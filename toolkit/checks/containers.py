"""Checks of what ranks find inside a container of the image on each host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from toolkit.checks.gpu_setup import cannot_give_gpus
from toolkit.checks.groups import grouped, groups_text
from toolkit.checks.model import Check, Scene, Seen, error, unchecked, warning
from toolkit.checks.mounts import access, unwritable
from toolkit.core.finding import Finding
from toolkit.launchers import NEEDS
from toolkit.protocol.looks import Limits
from toolkit.protocol.transport import EXEC, INSTEAD, NOT_FOUND, needs_of

# Below it jobs of several ranks have starved; one of them was cured by this size (pytorch/torchtitan#853).
LEAST_SHM = 1024**3
# Data loaders hold a descriptor for each tensor on its way; below it they fail early.
LEAST_FILES = 1024
_CLOCK_SECONDS = 1.0
# In the order in which another launcher is proposed.
_BY_EXEC = ("mpirun", "torchrun", "python")
_BY_SSH = ("horovodrun", *_BY_EXEC)
_SHM_FIX = "shm_size: 8g in the hosts file, then toolkit up"


def _starts(seen: Seen, scene: Scene) -> Iterator[Finding]:
    looked = scene.inside.get(seen.host)
    if looked is None:
        yield unchecked(scene.no_look(seen.host))
    elif looked.error and looked.status == NOT_FOUND:
        what = f"the image {scene.inventory.image} has no python3, which every container needs"
        yield error(what, _build(scene))
    elif looked.error and cannot_give_gpus(seen, scene):
        yield unchecked("docker cannot give it the GPUs [gpu-containers]")
    elif looked.error:
        fix = f"on {seen.host}: docker run --rm --network host {scene.inventory.image} true"
        yield error(f"a container does not do its work: {looked.error}", fix)


def _build(scene: Scene) -> str:
    """The command that builds an image with all tools, and the line of hosts.yaml that names this image."""
    flavour = "gpu" if any(facts.gpus for facts in scene.facts.values()) else "cpu"
    return f"toolkit image build --flavor {flavour}, then in hosts.yaml: image: toolkit:{flavour}"


def _programs(scene: Scene) -> Iterator[Finding]:
    reports = [looked.report for looked in scene.inside.values() if not looked.error]
    if not reports:
        yield unchecked("no container told what the image has")
        return
    file = scene.inventory
    lacks = {name for report in reports for name in report.lacks}

    def meets(launcher: str) -> bool:
        return not lacks.intersection(NEEDS.get(launcher, ()))

    def instead(launchers: Iterable[str], launcher: str) -> str:
        """Return the launcher itself if the image has it, otherwise the first one that the image has."""
        return next(filter(meets, dict.fromkeys((launcher, *launchers))), "python")

    named = INSTEAD.get(file.launcher, file.launcher)
    exec_launcher = instead(_BY_EXEC, named if named in (*_BY_EXEC, "auto") else _BY_EXEC[0])
    if missing := [name for name in needs_of(file.transport, len(file.hosts)) if name in lacks]:
        launcher = f" and launcher: {exec_launcher}" if exec_launcher != file.launcher else ""
        what = f"the image {file.image} has no {' and no '.join(missing)}, which transport: ssh needs"
        yield error(
            what, f"in hosts.yaml: transport: exec{launcher}; or {_build(scene)}", subject="transport"
        )
    if missing := [name.removeprefix("python:") for name in NEEDS.get(file.launcher, ()) if name in lacks]:
        what = (
            f"the image {file.image} has no {' and no '.join(missing)}, which launcher: {file.launcher} needs"
        )
        other = instead(_BY_EXEC if file.transport == EXEC else _BY_SSH, named)
        yield error(what, f"in hosts.yaml: launcher: {other}; or {_build(scene)}", subject="launcher")


def _listens(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    report = scene.inside[seen.host].report
    for kind, fault in report.faults.items():
        port = {"worker": str(scene.port), "any": "any port"}.get(kind, "MASTER_PORT")
        address = scene.paths[seen.host].address
        what = f"a container cannot listen at {address}, {port}: {fault}"
        if kind in report.taken:
            # Nobody listened there a moment ago: taken since, perhaps by another look, or only bound.
            yield warning(what, f"toolkit check once more; on {seen.host}: ss -tanp", subject=port)
        else:
            yield error(
                what, f"on {seen.host}: ip -4 addr; sysctl net.ipv4.ip_unprivileged_port_start", subject=port
            )


def _login(scene: Scene) -> Iterator[Finding]:
    if scene.inventory.in_parts:
        return  # nobody logs in
    main = scene.inside.get(scene.inventory.main)
    if main is None or not main.up or main.error:
        yield unchecked("the cluster is not up; toolkit up proves it")
        return
    for name, result in main.report.logins.items():
        if result.error and name in scene.inventory.names:
            what = f"main's container cannot log in to it: {result.error}"
            yield error(what, "toolkit up; toolkit status", name)


def _names(seen: Seen, scene: Scene) -> Iterator[Finding]:
    looked = scene.inside.get(seen.host)
    if looked is None or looked.error or not looked.up:
        yield unchecked(scene.no_look(seen.host) or "the cluster is not up")
        return
    for name, found in looked.report.names.items():
        path = scene.paths.get(name)
        if path and found != (path.address,):
            where = ", ".join(found) or "nowhere"
            loop = ", itself" if any(address.startswith("127.") for address in found) else ""
            what = f"in its container {name} leads to {where}{loop}, not to {path.address}"
            yield error(what, "toolkit up", subject=name)


def _shm(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    size = scene.inside[seen.host].report.shm
    if size < LEAST_SHM:
        what = f"/dev/shm is {size // 2**20} MiB in containers; NCCL and data loaders share memory through it"
        yield warning(what, _SHM_FIX)


def _limits(scene: Scene, host: str) -> Limits:
    """Limits by the way that ranks come: over ssh where the cluster is up, else those of a container."""
    main = scene.inside.get(scene.inventory.main)
    login = main.report.logins.get(host) if main else None
    if login is None or login.memlock is None or login.nofile is None:
        return scene.inside[host].report.limits
    return Limits(login.memlock, login.nofile)


def _memlock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    if not seen.facts.infiniband:
        return
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    size = _limits(scene, seen.host).memlock
    if size >= 0:
        what = f"ranks may lock {size // 1024} KiB of memory, and RDMA needs all it asks for"
        fix = (
            f'on {seen.host}: "default-ulimits": {{"memlock": {{"Name": "memlock", "Soft": -1, "Hard": -1}}}}'
        )
        yield error(what, f"{fix} in /etc/docker/daemon.json, restart docker, toolkit up")


def _files(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    number = _limits(scene, seen.host).nofile
    if 0 <= number < LEAST_FILES:
        what = f"ranks may open {number} files; data loaders and connections need more"
        fix = f'on {seen.host}: "default-ulimits" with nofile in /etc/docker/daemon.json, restart docker'
        yield warning(what, fix)


def _gpus(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    declared = scene.inventory.host(seen.host).gpus
    wanted = len(seen.facts.gpus) if declared is None else declared
    if not wanted:
        return
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    found = scene.inside[seen.host].report.gpus
    if found is None or len(found) < wanted:
        has = "has no nvidia-smi" if found is None else f"sees {len(found)}"
        what = f"the host has {wanted} GPUs, a container on it {has}"
        fix = f"on {seen.host}: nvidia-ctk runtime configure --runtime=docker, restart docker, toolkit up"
        yield error(what, fix)


def _versions(scene: Scene) -> Iterator[Finding]:
    told = {name: looked.report.versions for name, looked in scene.inside.items() if not looked.error}
    if not told:
        yield unchecked("no container told its versions")
    for program in sorted({p for versions in told.values() for p in versions}):
        by_version = grouped((name, versions.get(program, "missing")) for name, versions in told.items())
        if len(by_version) > 1:
            what = f"{program} differs: {groups_text(by_version)}"
            yield error(what, "toolkit up brings one image to all", subject=program)


def _mounts(seen: Seen, scene: Scene) -> Iterator[Finding]:
    mounts = {mount.target: mount for mount in scene.inventory.mounts if not mount.read_only}
    if not mounts:
        return
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    reported = {finding.subject for finding in access(seen, scene)}
    faults = scene.inside[seen.host].report.mounts
    for mount in (mount for target, mount in mounts.items() if target in faults):
        if mount.source in reported:
            yield unchecked("the host itself reports it [mount-access]", subject=mount.source)
        else:
            yield unwritable(seen, mount, faults[mount.target])


def _shared(scene: Scene) -> Iterator[Finding]:
    told = {name: looked.report.shared for name, looked in scene.inside.items() if not looked.error}
    targets = {t: m.source for m in scene.inventory.mounts if not m.read_only for t in [m.target]}
    if targets and not told:
        yield unchecked("no container told whose files it sees")
    for target, source in targets.items():
        seen = {name: set(shared.get(target, ())) - {name} for name, shared in told.items()}
        alone = sorted(name for name, others in seen.items() if not others)
        if alone and len(alone) < len(seen):
            rest = ", ".join(name for name in seen if name not in alone)
            what = f"{source} is one folder on {rest}, another on {', '.join(alone)}"
            yield warning(what, f"on {alone[0]}: mount the shared file system there", alone[0], source)


def _clock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    looked = scene.inside[seen.host]
    off = looked.ahead - (seen.ahead or 0.0)
    if abs(off) - looked.doubt - seen.doubt > _CLOCK_SECONDS:
        what = (
            f"the clock in its container is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the host's"
        )
        yield warning(what, "take libfaketime and the like out of the image and of env")


CHECKS = (
    Check("in-start", "a container from the image starts", host=_starts, stage="inside"),
    Check("in-programs", "the image has what transport and launcher need", whole=_programs, stage="inside"),
    Check("in-listen", "containers may listen at the data address", host=_listens, stage="inside"),
    Check("in-login", "main's container logs in to every worker", whole=_login, stage="inside"),
    Check("in-names", "names lead to data addresses in containers", host=_names, stage="inside"),
    Check("in-shm", "/dev/shm is large enough", host=_shm, stage="inside"),
    Check("in-memlock", "ranks may lock memory for RDMA", host=_memlock, stage="inside"),
    Check("in-files", "ranks may open enough files", host=_files, stage="inside"),
    Check("in-gpus", "containers see the GPUs", host=_gpus, stage="inside"),
    Check("in-versions", "libraries are of one version", whole=_versions, stage="inside"),
    Check("in-mounts", "ranks can write, rename and delete on mounts", host=_mounts, stage="inside"),
    Check("in-shared", "a mount is one folder on all hosts, or each its own", whole=_shared, stage="inside"),
    Check("in-clock", "containers have the hosts' time", host=_clock, stage="inside"),
)
