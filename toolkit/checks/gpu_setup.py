"""Checks of the layers between GPUs and containers: driver, CUDA, container toolkit, cgroups, fabric.

NVIDIA's tables define which CUDA a driver supports, and its rules which driver an image requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from toolkit.checks.engine import UNUSABLE, engine_info
from toolkit.checks.gpu import (
    GPUS,
    NO_GPU_USED,
    answers,
    label,
    of_cards,
    only_services,
    unwanted,
    used_answers,
    used_gpus,
)
from toolkit.checks.model import Check, Scene, Seen, error, fine, unchecked, warning
from toolkit.cluster.gpus import GPU_SETUP, explain, given_gpus, is_known, service_gpus, usable_groups
from toolkit.core.command import quoted
from toolkit.core.engines import PODMAN
from toolkit.core.finding import Finding
from toolkit.core.printable import counted
from toolkit.errors import NotReady
from toolkit.hostsfile.inventory import Service
from toolkit.image.cuda import (
    CPU_BUILD,
    CPU_IMAGE,
    CUDA_VARIANTS,
    CudaVariant,
    Version,
    cuda_variant,
    fitting_cuda,
)
from toolkit.jobs.slots import SEVERAL_RANKS, Room
from toolkit.network.settings import without_imex
from toolkit.protocol.host_list import host_list

# The driver branch and the newest CUDA that it supports: "CUDA Toolkit and Corresponding Driver Versions",
# https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/. A branch between two rows supports the older CUDA.
BRANCHES: tuple[tuple[int, Version], ...] = (
    *((410, (10, 0)), (418, (10, 1)), (440, (10, 2)), (450, (11, 0)), (455, (11, 1)), (460, (11, 2))),
    *((465, (11, 3)), (470, (11, 4)), (495, (11, 5)), (510, (11, 6)), (515, (11, 7)), (520, (11, 8))),
    *((525, (12, 0)), (530, (12, 1)), (535, (12, 2)), (545, (12, 3)), (550, (12, 4)), (555, (12, 5))),
    *((560, (12, 6)), (565, (12, 7)), (570, (12, 8)), (575, (12, 9)), (580, (13, 0)), (590, (13, 1))),
)
# The first driver that runs programs of a whole CUDA major version, by "minor version compatibility":
# https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html.
FIRST_DRIVER: Mapping[int, int] = {11: 450, **{variant.major: variant.driver for variant in CUDA_VARIANTS}}
# The oldest GPUs (compute capability) that a CUDA major version makes programs for: its release notes.
OLDEST_GPU: Mapping[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}


# Ends with the last component that is a number, such as 45 or 48+deb13, but not 64k.
_KERNEL_VERSION = re.compile(r"(?:.*[.-])?\d+(?:\+[^.-]*)?(?![^.-])")
_TERM = re.compile(r"(cuda|driver|brand|arch)(>=|<=|!=|>|<|=)(.+)")


def version(text: str) -> Version:
    """Return the numbers of a version such as ``550.54.14``; empty when it does not begin with one."""
    found = re.match(r"\d{1,9}(\.\d{1,9})*(?!\d)", text.strip())
    return tuple(map(int, found[0].split("."))) if found else ()


def dotted(numbers: Version) -> str:
    """Return a version with dots between its numbers."""
    return ".".join(map(str, numbers))


def newest_cuda(driver: str) -> Version:
    """Return the newest CUDA that a driver supports; empty if it is older than the table, or unreadable.

    A branch newer than the table supports at least this CUDA; see ``unknown_branch``.
    """
    numbers = version(driver)
    return next((cuda for branch, cuda in reversed(BRANCHES) if numbers and numbers[0] >= branch), ())


def unknown_branch(driver: str) -> bool:
    """Return True if a driver is newer than the table."""
    numbers = version(driver)
    return bool(numbers) and numbers[0] > BRANCHES[-1][0]


def first_driver(cuda: Version) -> int:
    """Return the branch of the oldest driver that runs programs of this CUDA, 0 when it is not known."""
    if cuda[0] in FIRST_DRIVER:
        return FIRST_DRIVER[cuda[0]]
    return next((branch for branch, has in BRANCHES if has >= cuda[:2]), 0)


def required(env: Mapping[str, str]) -> str:
    """Return the condition that an image puts on the driver, as the NVIDIA Container Toolkit reads it.

    Empty if the image has none, or disables it.
    """
    if env.get("NVIDIA_DISABLE_REQUIRE", "").lower() in ("1", "t", "true"):
        return ""
    return env.get("NVIDIA_REQUIRE_CUDA", "").strip()


def image_cuda(env: Mapping[str, str]) -> Version:
    """Return the CUDA version that an image declares; empty if it declares none."""
    declared = re.search(r"cuda>=([\d.]+)", env.get("NVIDIA_REQUIRE_CUDA", ""))
    return version(env.get("CUDA_VERSION", "") or (declared[1] if declared else ""))


def satisfied(condition: str, driver: str) -> bool | None:
    """Return True if a driver meets an image's condition; None if that depends on the brand of the GPU.

    As in https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html:
    alternatives are separated by blanks, the terms of one by commas. The brand of a GPU is not known, so
    the result is None if an alternative holds except for the brand.
    """
    known = {"cuda": newest_cuda(driver), "driver": version(driver)}
    at_least = unknown_branch(driver)
    answers = [_alternative(alternative, known, at_least) for alternative in condition.split()]
    if True in answers:
        return True
    return None if None in answers else False


def _alternative(text: str, known: Mapping[str, Version], at_least: bool) -> bool | None:
    undecided = False
    for term in text.split(","):
        match = _TERM.fullmatch(term)
        if match is None or match[1] not in known:
            undecided = True
        elif not known[match[1]] or not _holds(known[match[1]], match[2], version(match[3])):
            if match[1] != "cuda" or not at_least:
                return False
            undecided = True
    return None if undecided else True


def _holds(left: Version, sign: str, right: Version) -> bool:
    length = max(len(left), len(right))
    a, b = ((*one, *(0,) * (length - len(one))) for one in (left, right))
    results = {">=": a >= b, "<=": a <= b, "!=": a != b, ">": a > b, "<": a < b, "=": a == b}
    return results[sign]


@only_services
def _driver(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    report = answers(seen)
    # A GPU that is passed through to a virtual machine cannot be used on the host.
    bus = [(place, driver) for place, driver in report.pci if not driver.startswith("vfio")]
    if unwanted(seen, scene):
        yield fine(NO_GPU_USED)
    elif report.trouble:
        # If GPUs are listed, unknown words of nvidia-smi can be a mere warning.
        judged = warning if report.cards and not is_known(report.trouble) else error
        yield judged(*explain(report.trouble, seen.host))
    elif len(bus) > len(report.cards) > 0:
        listed = {card.get("pci.bus_id", "")[-12:].lower() for card in report.cards}
        lost = [place for place, _ in bus if place[-12:].lower() not in listed]
        what = (
            f"the PCI bus has {counted(len(bus), 'GPU')}, but nvidia-smi lists {len(report.cards)} "
            f"(missing: {', '.join(lost)})"
        )
        fix = f"on {seen.host}: sudo dmesg | grep -i nvrm  # if a GPU fell off the bus, reboot the host"
        yield warning(what, fix)
    elif bus and not report.cards:
        drivers = ", ".join(sorted({driver for _, driver in bus if driver})) or "none"
        devices = counted(len(bus), "NVIDIA GPU")
        what = f"the PCI bus has {devices}, but nvidia-smi is missing (kernel driver: {drivers})"
        fix = f"on {seen.host}: install the NVIDIA driver  # or set hosts/{seen.host}/gpus to 0 in hosts.yaml"
        yield warning(what, fix)


def _count(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    host = scene.inventory.host(seen.host)
    for service in scene.inventory.services_on(seen.host):
        try:
            service_gpus(host, service, seen.facts)
        except NotReady as refused:
            yield warning(refused.what, refused.fix)
    try:
        given = given_gpus(host, seen.facts)
    except NotReady as refused:
        yield error(refused.what, refused.fix)
        return
    slots = len(given) if host.slots is None else host.slots
    room = Room(seen.host, "", slots, usable_groups(given, seen.facts))
    gpu_of = {uuid: gpu for gpu in seen.facts.gpus for uuid in gpu.usable}
    used = {gpu_of[room.gpus_of((slot,))[0]] for slot in range(slots if given else 0)}
    allowed = {**dict(scene.inventory.env), **dict(host.env)}.get(SEVERAL_RANKS) == "1"
    if allowed or not 0 < len(used) < slots:
        return
    share = f"{slots} slots share {counted(len(used), 'GPU')}"
    if any(gpu.migs for gpu in used):
        what = (
            f"{share} through MIG devices, but NCCL accepts two ranks on one GPU only in version 2.30 or "
            f"newer, and only with {SEVERAL_RANKS}=1"
        )
        fix = (
            f"in hosts.yaml: keep one MIG device of each GPU in hosts/{seen.host}/gpus"
            "  # or train with the backend gloo, or with NCCL 2.30 or newer and "
            f'env: {{{SEVERAL_RANKS}: "1"}}'
        )
    else:
        what = f"{share}, but by default, NCCL refuses two ranks on one GPU"
        fix = f"in hosts.yaml: set hosts/{seen.host}/slots to {len(used)}, or remove this key"
    yield warning(what, fix)


def _with_image(seen: Seen, scene: Scene) -> tuple[Service, ...]:
    """Return the services of a host that use the image of the cluster."""
    return tuple(service for service in scene.inventory.services_on(seen.host) if not service.image)


@only_services
def _cuda(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    used = bool(used_gpus(scene.inventory.host(seen.host), seen.facts, _with_image(seen, scene)))
    if not used or scene.image is None:
        yield unchecked(scene.no_image) if used else fine(NO_GPU_USED)
        return
    env = dict(scene.image.env)
    driver, condition, cuda = seen.facts.gpus[0].driver, required(env), image_cuda(env)
    has = newest_cuda(driver)
    known = f"CUDA {dotted(has)}" if has else "only CUDA versions before 10.0"
    supports = f"driver {driver} supports {known}"
    if not condition and not cuda:
        yield unchecked(f"the image does not declare its CUDA version; {supports}")
        return
    first = first_driver(cuda) if cuda else 0
    newer = f"NVIDIA driver {first} or newer" if first else "an NVIDIA driver of a newer branch"
    install = f"on {seen.host}: install {newer}"
    if condition and satisfied(condition, driver) is False:
        yield error(f"{supports}, but the image needs {condition.split()[0]}", _fix(scene, install))
    elif condition and satisfied(condition, driver) is None:
        yield unchecked(
            f"{supports}, but toolkit cannot evaluate NVIDIA_REQUIRE_CUDA of the image: {condition}"
        )
    elif cuda and first and version(driver)[:1] < (first,) and not condition and not unknown_branch(driver):
        what = f"{supports}, but the image has CUDA {dotted(cuda)}, which needs driver {first} or newer"
        yield warning(what, _fix(scene, install))


def _fix(scene: Scene, install: str) -> str:
    other = _other_variant(scene)
    return f"{other}; or {install}" if other else f"{install}  # or use an image with an older CUDA version"


@of_cards
def _generation(seen: Seen, scene: Scene) -> Iterator[Finding]:
    env = dict(scene.image.env) if scene.image else {}
    cuda = image_cuda(env)
    oldest = OLDEST_GPU.get(cuda[0], ()) if cuda else ()
    own_image = cuda_variant(cuda[0]) if cuda and "TOOLKIT_WITH" in env else None
    arch = seen.facts.arch if seen.facts else ""
    for card in used_answers(seen, scene, _with_image(seen, scene)).cards:
        own = version(card.get("compute_cap", ""))
        if not own or not oldest:
            yield unchecked("the CUDA version of the image or the compute capability of the GPU is not known")
            return
        if own < oldest:
            what = f"{card.get('name')} (compute capability {dotted(own)}) is too old for CUDA {cuda[0]}"
            older = next(
                (str(major) for major in sorted(OLDEST_GPU, reverse=True) if own >= OLDEST_GPU[major]), ""
            )
            fix = f"toolkit run --exclude {seen.host} SCRIPT"
            fix = f"{fix}  # or use an image with CUDA {older}" if older else fix
            yield error(what, _other_variant(scene) or fix, subject=label(card))
        elif own_image is not None and not own_image.runs_on(own, arch):
            what = (
                f"the image has no code for {card.get('name')} (compute capability {dotted(own)}): "
                "torch in the image supports capabilities "
                f"{dotted(own_image.oldest_on(arch))} to {own_image.newest}.x"
            )
            fix = f"toolkit run --exclude {seen.host} SCRIPT"
            yield error(what, _other_variant(scene) or fix, subject=label(card))


def _needed(scene: Scene) -> Iterator[Finding]:
    env = dict(scene.image.env) if scene.image else {}
    if scene.image is None:
        yield unchecked(scene.no_image)
    elif "TOOLKIT_WITH" not in env or not image_cuda(env):
        yield fine("the image is not a toolkit GPU image")
    elif any(host.gpus for host in scene.inventory.hosts) or any(map(_shows_gpu, scene.seen.values())):
        return
    elif missing := [name for name in scene.inventory.names if name not in scene.facts]:
        yield unchecked(f"{host_list(missing)} did not answer, and no other host has a GPU")
    else:
        what = f"the image {scene.inventory.image} is built for CUDA, but no host has an NVIDIA GPU"
        yield warning(what, f"{CPU_BUILD}  # then in hosts.yaml: set image: {CPU_IMAGE}")


def _shows_gpu(seen: Seen) -> bool:
    """Return True if a host shows any sign of an NVIDIA GPU, also of one without a working driver."""
    facts = seen.facts
    return facts is not None and bool(facts.gpus or facts.gpu_trouble or answers(seen).pci)


def fitting_variant(scene: Scene) -> CudaVariant | None:
    """Return the newest CUDA variant of the GPU image that fits all used GPUs, None if none does."""
    services = {name: _with_image(seen, scene) for name, seen in scene.seen.items()}
    used = {
        name: facts
        for name, facts in scene.facts.items()
        if used_gpus(scene.inventory.host(name), facts, services[name])
    }
    drivers = [version(gpu.driver) for facts in used.values() for gpu in facts.gpus]
    cards = [card for name in used for card in used_answers(scene.seen[name], scene, services[name]).cards]
    capabilities = [version(card.get("compute_cap", "")) for card in cards]
    arches = {facts.arch for facts in used.values()}
    return fitting_cuda(drivers, capabilities, arches)


def _other_variant(scene: Scene) -> str:
    """Return the fix for an image with the wrong CUDA, empty if no other variant fits the hosts."""
    cuda = image_cuda(dict(scene.image.env)) if scene.image else ()
    fits = fitting_variant(scene)
    if fits is None or (cuda and fits.major == cuda[0]):
        return ""
    return f"{fits.build}  # then in hosts.yaml: set image: {fits.image}"


@only_services
def _containers(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    report, info = answers(seen), engine_info(seen)
    if not seen.facts.gpus or unwanted(seen, scene):
        yield fine("containers on this host receive no GPU")
        return
    configure = GPU_SETUP[seen.facts.engine]
    if not info.version:
        yield unchecked(UNUSABLE)
    elif "nvidia" in (info.runtimes or {}) or (report.tagged("cdi") and info.cdi_folders):
        return
    elif report.tagged("tool"):
        what = "the NVIDIA Container Toolkit is installed but not registered as a Docker runtime"
        if seen.facts.engine == PODMAN:
            what = (
                "the NVIDIA Container Toolkit is installed, but the host has no CDI specification of its GPUs"
            )
        yield unchecked(f"{what} [in-gpus]", f"on {seen.host}: {configure}")
    else:
        what = "the container engine cannot give GPUs to containers: the NVIDIA Container Toolkit is missing"
        yield error(what, f"on {seen.host}: install nvidia-container-toolkit, then: {configure}")


def cannot_give_gpus(seen: Seen, scene: Scene) -> bool:
    """Return True if a container with GPUs of this host is known to fail at its start."""
    return any(finding.verdict == "error" for finding in _containers(seen, scene))


@of_cards
def _kept(seen: Seen, scene: Scene) -> Iterator[Finding]:
    assert seen.facts is not None
    report, info = answers(seen), engine_info(seen)
    if not info.version:
        yield unchecked(UNUSABLE)
    # https://github.com/NVIDIA/nvidia-container-toolkit/issues/48 and opencontainers/runc#3708.
    elif info.cgroup_driver == "systemd" and not report.tagged("chars"):
        what = (
            "running containers can lose their GPUs at the next `systemctl daemon-reload`, "
            "because the engine uses systemd cgroups and /dev/char has no links to the GPUs"
        )
        fix = "sudo nvidia-ctk system create-dev-char-symlinks --create-all"
        when = "run this command at every boot, for example with a udev rule"
        yield warning(what, f"on {seen.host}: {fix}  # {when}")


@only_services
def _fabric(seen: Seen, scene: Scene) -> Iterator[Finding]:
    if unwanted(seen, scene):
        yield fine(NO_GPU_USED)
        return
    state = "".join(answers(seen).tagged("fabric")[:1])
    if state and state != "active":
        what = f"the fabric manager is {state}, so CUDA cannot start on GPUs with NVSwitches"
        fix = "sudo systemctl enable --now nvidia-fabricmanager  # its version must match the driver"
        yield error(what, f"on {seen.host}: {fix}")


@of_cards
def _next_kernel(seen: Seen, scene: Scene) -> Iterator[Finding]:
    report = answers(seen)
    running, modules = "".join(report.tagged("running")[:1]), report.tagged("module")
    if running not in modules:
        yield unchecked(f"modinfo found no NVIDIA driver module for the running kernel {running}")
        return
    own, flavor = _kernel(running)
    newer = [k for k in report.tagged("kernel") if _kernel(k)[0] > own and _kernel(k)[1] == flavor]
    if newer and (last := max(newer, key=_kernel)) not in modules:
        what = (
            f"the installed kernel {last} has no NVIDIA driver, so ranks cannot use the GPUs after a reboot "
            "into this kernel"
        )
        fix = f"sudo dkms autoinstall -k {quoted(last)}  # or install the driver for this kernel"
        yield warning(what, f"on {seen.host}: {fix}")


def _kernel(name: str) -> tuple[tuple[int, ...], str]:
    """Return the version of a kernel, and its flavor without the release of the distribution.

    >>> _kernel("6.8.0-45-generic")
    ((6, 8, 0, 45), '-generic')
    >>> _kernel("5.14.0-427.13.1.el9_4.x86_64+rt")
    ((5, 14, 0, 427, 13, 1), '.el.x+rt')
    """
    found = _KERNEL_VERSION.match(name)
    end = found.end() if found else 0
    return tuple(map(int, re.findall(r"\d{1,9}", name[:end]))), re.sub(r"[\d_]", "", name[end:])


def _imex(scene: Scene) -> Iterator[Finding]:
    for name in without_imex(scene.facts):
        other = next(host for host, facts in scene.facts.items() if facts.imex)
        what = (
            f"the host has no IMEX channel that user {scene.facts[name].user} can open, but {other} has one, "
            "so NCCL does not use NVLink between hosts"
        )
        fix = (
            f"on {name}: sudo nvidia-modprobe -i 0:1  # lasts until the next reboot; to create the "
            "channel at every boot, set the option NVreg_CreateImexChannel0=1 of the kernel module nvidia"
        )
        yield warning(what, fix, name)


CHECKS = (
    Check(
        "gpu-driver", "nvidia-smi lists all NVIDIA GPUs that the host can use", host=_driver, probes=(GPUS,)
    ),
    Check("gpu-count", "the host has the GPUs that hosts.yaml declares", host=_count),
    Check(
        "gpu-image",
        "at least one host has a GPU if the image is built for CUDA",
        whole=_needed,
        probes=(GPUS,),
    ),
    Check("gpu-cuda", "the driver supports the CUDA version of the image", host=_cuda),
    Check(
        "gpu-generation", "the CUDA version of the image supports the GPUs", host=_generation, probes=(GPUS,)
    ),
    Check(
        "gpu-containers", "the container engine can give GPUs to containers", host=_containers, probes=(GPUS,)
    ),
    Check("gpu-kept", "running containers keep their GPUs", host=_kept, probes=(GPUS,)),
    Check("gpu-fabric", "the fabric manager runs on hosts with NVSwitches", host=_fabric, probes=(GPUS,)),
    Check("gpu-imex", "all hosts have an IMEX channel, or none has one", whole=_imex),
    Check(
        "gpu-next-kernel",
        "the newest installed kernel has an NVIDIA driver",
        host=_next_kernel,
        probes=(GPUS,),
    ),
)
