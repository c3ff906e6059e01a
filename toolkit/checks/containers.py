"""Checks of the environment that ranks have inside a container of the image on each host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise

from toolkit.checks.gpu_setup import cannot_give_gpus
from toolkit.checks.model import Check, Scene, Seen, error, fine, grouped, groups_text, unchecked, warning
from toolkit.checks.mounts import access, lost_source, unwritable
from toolkit.cluster.gpus import GPU_SETUP, PERSIST, given_gpus, usable_uuids
from toolkit.core.causes import cause_of, misses_python
from toolkit.core.command import quoted
from toolkit.core.container import mount_argument
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.env_lint.lint import lint_nccl
from toolkit.errors import NotReady
from toolkit.hostsfile.checks import without_ssh
from toolkit.hostsfile.errors import path_text
from toolkit.launchers import NEEDS
from toolkit.protocol.probes import Limits
from toolkit.protocol.transport import (
    AUTO,
    EXEC,
    INSTEAD,
    NO_SSH,
    NOT_FOUND,
    WITHOUT_SSH,
    needs_of,
    transport_for,
    transport_text,
    without_sshd,
)

# Smaller sizes broke jobs of several ranks; this size fixed one of these jobs (pytorch/torchtitan#853).
LEAST_SHM = 1024**3
# Data loaders hold a file descriptor for each tensor in transit; with fewer they fail early.
LEAST_FILES = 1024
_CLOCK_SECONDS = 1.0
_NCCL = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
# Launchers that fixes propose, in order of preference.
_BY_EXEC = ("mpirun", "torchrun", "python")
_BY_SSH = ("horovodrun", *_BY_EXEC)
_LISTEN_FIX = "the host must have the address, and the port must be at least ip_unprivileged_port_start"
_SHM_FIX = "in hosts.yaml: set shm_size: 8g  # then: toolkit up"


def _starts(seen: Seen, scene: Scene) -> Iterator[Finding]:
    looked = scene.inside.get(seen.host)
    if looked is None:
        yield unchecked(scene.no_look(seen.host))
    elif looked.status == NOT_FOUND and misses_python(looked.error):
        what = f"the image {scene.inventory.image} has no python3, which toolkit requires"
        yield error(what, _build(scene))
    elif looked.error and cannot_give_gpus(seen, scene):
        yield unchecked("the container engine cannot give GPUs to containers [gpu-containers]")
    elif looked.error and (source := lost_source(seen, scene)):
        yield unchecked(f"the mount source {source} is missing or does not respond [mount-there]")
    elif looked.error and (known := cause_of(looked.error, seen.host)):
        yield error(f"the test program failed: {known.what}", known.fix)
    elif looked.error:
        mounts = [word for mount in scene.inventory.mounts for word in ("--mount", mount_argument(mount))]
        engine = scene.inventory.engine
        words = (engine, "run", "--rm", "--network", "host", *mounts, scene.inventory.image, "true")
        fix = f"on {seen.host}: {quoted(*words)}  # tests the image and the mounts without toolkit"
        yield error(f"the test program failed: {looked.error}", fix)


def _build(scene: Scene) -> str:
    """Return the command that builds an image with all tools, and the line of hosts.yaml that names it."""
    flavor = "gpu" if any(facts.gpus for facts in scene.facts.values()) else "cpu"
    return f"toolkit image build --flavor {flavor}  # then in hosts.yaml: set image: toolkit:{flavor}"


def _programs(scene: Scene) -> Iterator[Finding]:
    reports = [looked.report for looked in scene.inside.values() if not looked.error]
    if not reports:
        yield unchecked("no test program reported the programs of the image")
        return
    file = scene.inventory
    lacks = {name for report in reports for name in report.lacks}

    def meets(launcher: str) -> bool:
        return not lacks.intersection(NEEDS.get(launcher, ()))

    def instead(launchers: Iterable[str], launcher: str) -> str:
        """Return the launcher itself if the image has it, otherwise the first one that the image has."""
        return next(filter(meets, dict.fromkeys((launcher, *launchers))), "python")

    onto = f"toolkit image build --onto {file.image}  # then in hosts.yaml: set image: to the built image"
    transport = file.transport
    if transport == AUTO and len(file.hosts) > 1:
        transport = transport_for(lacks)
        yield fine(f"transport: auto selects {transport_text(transport)}")
        for path, fault in (
            without_ssh("auto", file.worker_port_fixed, bool(file.spares)) if transport == EXEC else ()
        ):
            key, (why, _, _) = path_text(path), fault.partition("; ")
            fix = f"in hosts.yaml: remove {key}  # or build another image: {onto}"
            yield error(f"{why} ({NO_SSH})", fix, subject=key)
    named = INSTEAD.get(file.launcher, file.launcher)
    exec_launcher = instead(_BY_EXEC, named if named in (*_BY_EXEC, "auto") else _BY_EXEC[0])
    if missing := [name for name in needs_of(file.transport, len(file.hosts)) if name in lacks]:
        launcher = exec_launcher if exec_launcher != file.launcher else ""
        what = f"the image {file.image} has no {' and no '.join(missing)}, which transport: ssh needs"
        yield error(what, without_sshd(file.image, launcher), subject="transport")
    if transport == EXEC != file.transport and file.launcher not in (*WITHOUT_SSH, "auto"):
        what = f"launcher: {file.launcher} requires SSH, but transport is {transport_text(EXEC)}"
        fix = f"in hosts.yaml: set launcher: {exec_launcher}  # or build another image: {onto}"
        yield error(what, fix, subject="launcher")
    elif missing := [name.removeprefix("python:") for name in NEEDS.get(file.launcher, ()) if name in lacks]:
        what = (
            f"the image {file.image} has no {' and no '.join(missing)}, which launcher: {file.launcher} needs"
        )
        other = instead(_BY_EXEC if transport == EXEC else _BY_SSH, named)
        fix = f"in hosts.yaml: set launcher: {other}  # or build another image: {_build(scene)}"
        yield error(what, fix, subject="launcher")


def _listens(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    report = scene.inside[seen.host].report
    for kind, fault in report.faults.items():
        port = {"worker": str(scene.port), "any": "any port"}.get(kind, "MASTER_PORT")
        address = scene.paths[seen.host].address
        what = f"a container cannot listen on {address} ({port}): {fault}"
        if kind in report.taken:
            # The port was free a moment ago: another `toolkit check` can use it, or a program only bound it.
            yield warning(
                what,
                f"toolkit check  # repeats the test; on {seen.host}, ss -tanp lists the used ports",
                subject=port,
            )
        else:
            yield error(
                what,
                f"on {seen.host}: ip -4 addr; sysctl net.ipv4.ip_unprivileged_port_start  # {_LISTEN_FIX}",
                subject=port,
            )


def _login(scene: Scene) -> Iterator[Finding]:
    if scene.inventory.in_parts:
        yield fine("with transport: exec, containers do not log in to each other")
        return
    main = scene.inside.get(scene.inventory.main)
    if main is None or not main.up or main.error:
        why = scene.no_look(scene.inventory.main) or "the main container is not running"
        yield unchecked(f"toolkit did not test logins between containers: {why}")
        return
    for name, result in main.report.logins.items():
        if result.error and name in scene.inventory.names:
            what = f"the main container cannot log in to the worker container: {result.error}"
            again = "if the login still fails, open the worker port in the firewall"
            yield error(what, f"toolkit down && toolkit up  # {again}", name)


def _names(seen: Seen, scene: Scene) -> Iterator[Finding]:
    looked = scene.inside.get(seen.host)
    if looked is None or looked.error or not looked.up:
        yield unchecked(scene.no_look(seen.host) or "the cluster has no running container on this host")
        return
    for name, found in looked.report.names.items():
        path = scene.paths.get(name)
        if path and found != (path.address,):
            where = ", ".join(found) or "no address"
            loop = " (loopback)" if any(address.startswith("127.") for address in found) else ""
            what = f"in the container, the name {name} resolves to {where}{loop} instead of {path.address}"
            yield error(what, "toolkit up", subject=name)


def _shm(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    size = scene.inside[seen.host].report.shm
    if size < LEAST_SHM:
        what = (
            f"/dev/shm in containers has {size // 2**20} MiB; NCCL and data loaders can fail with less than "
            f"{LEAST_SHM // 2**20} MiB"
        )
        yield warning(what, _SHM_FIX)


def _limits(scene: Scene, host: str) -> Limits:
    """Return the limits of an SSH session in the container, or of a container if the cluster is not up."""
    main = scene.inside.get(scene.inventory.main)
    login = main.report.logins.get(host) if main else None
    if login is None or login.memlock is None or login.nofile is None:
        return scene.inside[host].report.limits
    return Limits(login.memlock, login.nofile)


def _memlock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    if not seen.facts.infiniband:
        yield fine("the host has no RDMA devices for containers")
        return
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    size = _limits(scene, seen.host).memlock
    if size >= 0:
        what = f"ranks can lock only {size // 1024} KiB of memory, but RDMA can need more"
        # The limit of the container takes precedence over the default of the engine.
        yield error(what, "in hosts.yaml: set ulimits: {memlock: unlimited}  # then: toolkit up")


def _files(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    number = _limits(scene, seen.host).nofile
    if 0 <= number < LEAST_FILES:
        what = (
            f"ranks can open only {number} files, but data loaders and connections can need {LEAST_FILES} or "
            "more"
        )
        yield warning(what, "in hosts.yaml: set ulimits: {nofile: 65536}  # then: toolkit up")


def _gpus(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    try:
        given = given_gpus(scene.inventory.host(seen.host), seen.facts)
    except NotReady:
        yield unchecked("the host does not have the GPUs that hosts.yaml declares [gpu-count]")
        return
    wanted = usable_uuids(given, seen.facts)
    if not wanted:
        yield fine("containers on this host receive no GPU")
        return
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    report = scene.inside[seen.host].report
    if report.gpu_error:
        what = f"nvidia-smi in the container failed: {report.gpu_error}"
        yield unchecked(what, f"on {seen.host}: {PERSIST}")
        return
    found = report.gpus
    # A GPU cannot be used as a whole if the list has parts of it, which follow it.
    usable = [
        a for a, b in pairwise((*(found or ()), "")) if not (a.startswith("GPU") and b.startswith("MIG"))
    ]
    if len(usable) < len(wanted):
        has = "the container has no nvidia-smi"
        if found is not None:
            has = f"nvidia-smi in the container lists {_devices(usable)}"
        what = f"a container on the host should have {_devices(wanted)}, but {has}"
        yield error(what, f"on {seen.host}: {GPU_SETUP[seen.facts.engine]}  # then: toolkit up")


def _devices(found: Collection[str]) -> str:
    """Return the number of GPUs and of MIG devices; each word begins with GPU or MIG."""
    migs = sum(1 for word in found if word.startswith("MIG"))
    gpus = counted(len(found) - migs, "GPU")
    if not migs:
        return gpus
    parts = counted(migs, "MIG device")
    return f"{gpus} and {parts}" if len(found) > migs else parts


def _versions(scene: Scene) -> Iterator[Finding]:
    by_host = {name: looked.report.versions for name, looked in scene.inside.items() if not looked.error}
    if not by_host:
        yield unchecked("no test program reported the versions of the libraries")
    for program in sorted({p for versions in by_host.values() for p in versions}):
        by_version = grouped((name, versions.get(program, "missing")) for name, versions in by_host.items())
        if len(by_version) > 1:
            what = f"the version of {program} differs: {groups_text(by_version)}"
            fix = "toolkit down && toolkit up  # recreates all containers from the same image"
            yield error(what, fix, subject=program)


def _variables(scene: Scene) -> Iterator[Finding]:
    reports = [looked.report.versions for looked in scene.inside.values() if not looked.error]
    if not reports:
        yield unchecked("no test program reported the version of NCCL")
    found = {version for versions in reports for name, version in versions.items() if name in _NCCL}
    for finding in dict.fromkeys(each for nccl in sorted(found) for each in lint_nccl(scene.inventory, nccl)):
        yield warning(finding.what, finding.fix, finding.host, finding.subject)


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
            yield unchecked(f"ranks cannot write to {mount.source} [mount-access]", subject=mount.source)
        else:
            yield unwritable(seen, mount, faults[mount.target])


def _shared(scene: Scene) -> Iterator[Finding]:
    by_host = {name: looked.report.shared for name, looked in scene.inside.items() if not looked.error}
    targets = {t: m.source for m in scene.inventory.mounts if not m.read_only for t in [m.target]}
    if targets and not by_host:
        yield unchecked("no test program reported the files of the mounts")
    for target, source in targets.items():
        seen = {name: set(shared.get(target, ())) - {name} for name, shared in by_host.items()}
        alone = sorted(name for name, others in seen.items() if not others)
        if alone and len(alone) < len(seen):
            rest = ", ".join(name for name in seen if name not in alone)
            what = f"{source} is one shared folder on {rest}, but a separate folder on {', '.join(alone)}"
            yield warning(what, f"on {alone[0]}: mount the shared file system", alone[0], source)


def _clock(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if why := scene.no_look(seen.host):
        yield unchecked(why)
        return
    looked = scene.inside[seen.host]
    off = looked.ahead - (seen.ahead or 0.0)
    if abs(off) - looked.doubt - seen.doubt > _CLOCK_SECONDS:
        what = (
            f"the clock in the container is {abs(off):.1f} s {'ahead of' if off > 0 else 'behind'} the clock "
            "of the host"
        )
        yield warning(
            what,
            "in the image: remove libfaketime or a similar program  # in hosts.yaml: remove its variables",
        )


CHECKS = (
    Check("in-start", "the test program runs in a container of the image", host=_starts, stage="inside"),
    Check(
        "in-programs",
        "the image has the programs that transport and launcher need",
        whole=_programs,
        stage="inside",
    ),
    Check("in-listen", "containers can listen on the data address", host=_listens, stage="inside"),
    Check(
        "in-login", "the main container can log in to every worker container", whole=_login, stage="inside"
    ),
    Check("in-names", "in containers, host names resolve to data addresses", host=_names, stage="inside"),
    Check("in-shm", "/dev/shm is large enough", host=_shm, stage="inside"),
    Check("in-memlock", "ranks can lock memory for RDMA", host=_memlock, stage="inside"),
    Check("in-files", "ranks can open enough files", host=_files, stage="inside"),
    Check("in-gpus", "containers have the expected number of GPUs", host=_gpus, stage="inside"),
    Check(
        "in-versions",
        "Python and libraries have the same versions on all hosts",
        whole=_versions,
        stage="inside",
    ),
    Check(
        "in-variables",
        "NCCL in the image supports the NCCL variables in env",
        whole=_variables,
        stage="inside",
    ),
    Check(
        "in-mounts",
        "ranks can write, rename and delete files on mounts that are not read-only",
        host=_mounts,
        stage="inside",
    ),
    Check(
        "in-shared",
        "each writable mount is shared by all hosts or by none",
        whole=_shared,
        stage="inside",
    ),
    Check(
        "in-clock",
        "the clock of each container agrees with the clock of the host",
        host=_clock,
        stage="inside",
    ),
)
