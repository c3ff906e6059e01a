"""The content digest of an image: layers and start settings, independent of engine and image store."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from toolkit.core.engines import DOCKER, PODMAN
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageConfig, ImageInspect, OciConfig
from toolkit.protocol.names import PARTIAL_REPOSITORY

# The user's own requirements among the additions in a toolkit image.
OWN = "own"
_HUB = "docker.io"  # Docker Hub
# The fix if the engine of the user's machine did not respond in time.
LATE_FIX = "docker info  # if this command hangs: sudo systemctl restart docker"


def missing_fix(tag: str) -> str:
    """Return the command that provides an image that neither your machine nor a host has.

    >>> missing_fix("toolkit:gpu-cuda12")
    'toolkit image build --cuda 12  # or set image: in hosts.yaml to an image that your machine has'
    """
    return f"{obtain_command(tag)}  # or set image: in hosts.yaml to an image that your machine has"


def obtain_command(tag: str) -> str:
    """Return the command that builds an image of toolkit, or pulls another image."""
    return build_command(tag) if tag.partition(":")[0] == "toolkit" else f"docker pull {tag}"


def unsendable(tag: str, host: str, engine: str, silence: str) -> tuple[str, str]:
    """Return the error and the fix of a host without an image that your machine cannot send.

    Args:
        engine: container engine of the host.
        silence: the reason why it is unknown if your machine has the image; empty if it has none.
    """
    reason = silence or "the engine of your machine has no copy to send"
    what = f"the image {tag} is missing, and {reason}"
    if silence:
        return what, LATE_FIX
    fix = f"{missing_fix(tag)}; or load the image on {host}: {engine} load -i FILE"
    return what, fix


def build_command(tag: str) -> str:
    """Return the command that builds an image of toolkit with this name."""
    name, _, kind = tag.partition(":")
    if name == "toolkit" and kind in ("cpu", "gpu"):
        return f"toolkit image build --flavor {kind}"
    if name == "toolkit" and kind.startswith("gpu-cuda"):
        return f"toolkit image build --cuda {kind.removeprefix('gpu-cuda')}"
    return f"toolkit image build --tag {tag}"


@dataclass(frozen=True)
class ImageFacts:
    """One image as a host's engine reports it.

    Args:
        id: the engine's own Id: config digest (overlay2 store) or manifest digest (containerd store).
        identity: 16 hexadecimal digits, equal for equal images on every version and store of an engine.
        diff_ids: digests of the uncompressed layers, base first.
        tags: references under which the engine knows it, by tag and by digest.
        env: its ENV lines as pairs.
        size: bytes as the engine reports them; the two stores count differently.
        entrypoint: its ENTRYPOINT; user: its USER. Containers of toolkit use neither.
        arch: the processor it is for, in Go's words: amd64, arm64 …
    """

    id: str
    identity: str
    diff_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    size: int = 0
    arch: str = ""
    entrypoint: tuple[str, ...] = ()
    user: str = ""


def image_identity(image: ImageInspect, engine: str = DOCKER) -> str:
    """Return the identity of an image from its ``docker image inspect`` object.

    Made from platform, layer diff ids and the parts of the config that matter, because image Ids of
    the overlay2 and the containerd store differ for the very same image.

    Args:
        engine: of the cluster's hosts.
    """
    layers = image.rootfs.layers if image.rootfs else None
    return _identity(image.os, image.arch, layers or (), image.config or ImageConfig(), engine)


def config_identity(config: object, engine: str = DOCKER) -> str:
    """Return the identity of an image from the JSON of its config file.

    Args:
        engine: of the cluster's hosts.

    Raises:
        DecodeError: it is no such file.
    """
    image = decode(OciConfig, config)
    layers = image.rootfs.diff_ids if image.rootfs else None
    return _identity(image.os, image.architecture, layers or (), image.config or ImageConfig(), engine)


def _identity(
    os: str | None, arch: str | None, layers: Sequence[str], config: ImageConfig, engine: str
) -> str:
    """Hash what decides how a container made from an image behaves.

    These are all fields that Docker merges into the config of a new container: `merge` in moby's
    daemon/commit.go, in 20.10 as in 26.1. Podman applies no others. Left out on purpose:

    - Hostname, Domainname, AttachStdin, AttachStdout, AttachStderr, Tty, OpenStdin, StdinOnce, Image,
      NetworkDisabled, MacAddress, StopTimeout: settings of containers. No engine takes them from an image,
      and engines differ in which of them they report.
    - Shell and OnBuild: for builds upon the image. `merge` skips them, and Podman does not report them.
    - ArgsEscaped: for Windows. Builders also set it on Linux, where it has no effect.
    - Healthcheck.StartInterval: 20.10 and Podman 4 neither apply nor report it.
    - Healthcheck, if the hosts have Podman: it depends on the format in which the image came there. Podman
      drops it from OCI images, the format in which toolkit sends.
    - Unknown fields: an engine does not report what it does not know, so a config file and an inspect of the
      same image would differ.
    """
    check = config.healthcheck if engine == DOCKER else None
    fields = {
        "Env": config.env,
        "Entrypoint": config.entrypoint,
        "Cmd": config.cmd,
        "WorkingDir": config.workdir,
        "User": config.user,
        "Labels": config.labels,
        "StopSignal": config.stop_signal,
        "Volumes": config.volumes,
        # A port without a protocol is a TCP port; some engines write that out.
        "ExposedPorts": sorted(p if "/" in p else f"{p}/tcp" for p in config.exposed_ports or ()),
        "Healthcheck": {key: value for key, value in vars(check).items() if value} if check else None,
    }
    subject = [os, arch, layers, {key: value for key, value in fields.items() if value}]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def image_id(text: str) -> str:
    """Return an engine's Id of an image with its algorithm in front, which Podman leaves out."""
    return f"sha256:{text}" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def registry_of(image: str) -> str:
    """Return the registry's host and port: the first component if it names a host, else Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and (first == "localhost" or set(first) & {".", ":"}) else _HUB


def with_registry(image: str) -> str:
    """Return the name with its registry.

    >>> with_registry("debian:12"), with_registry("reg.example.com/a:1")
    ('docker.io/library/debian:12', 'reg.example.com/a:1')
    """
    if registry_of(image) != _HUB or image.startswith(f"{_HUB}/"):
        return image
    return f"{_HUB}/{'' if '/' in image else 'library/'}{image}"


def pull_name(image: str, engine: str) -> str:
    """Return the name by which a host with this engine pulls an image. Podman has no default registry."""
    return with_registry(image) if engine == PODMAN else image


def listed_name(image: str, tags: Collection[str]) -> str:
    """Return the tag, of those of an image, that a name in hosts.yaml refers to; empty without one.

    Podman lists a name without a registry below localhost/ if the image was built, loaded or sent, and below
    docker.io/ if it was pulled. ``short_name`` removes localhost/.
    """
    names = (image, image.removeprefix("localhost/"), with_registry(image))
    return next((name for name in names if name in tags), "")


def image_names(image: ImageInspect) -> tuple[str, ...]:
    """Return the names under which an engine lists an image, by tag."""
    return tuple(map(short_name, image.tags or ()))


def short_name(name: str) -> str:
    """Return a listed name without the prefix that Podman adds to a name without a registry.

    Podman lists a partial image below docker.io/library/ after loading it. Other images keep this prefix,
    see ``listed_name``.

    >>> short_name("localhost/toolkit:gpu"), short_name("docker.io/library/toolkit-part:x-1")
    ('toolkit:gpu', 'toolkit-part:x-1')
    """
    name = name.removeprefix("localhost/")
    part = name.removeprefix(f"{_HUB}/library/")
    return part if part.startswith(f"{PARTIAL_REPOSITORY}:") else name


def image_facts(image: ImageInspect, engine: str = DOCKER) -> ImageFacts:
    """Return the facts of an image from its ``docker image inspect`` object.

    Args:
        engine: of the cluster's hosts.
    """
    config = image.config or ImageConfig()
    env = config.env or ()
    return ImageFacts(
        id=image_id(image.id),
        identity=image_identity(image, engine),
        diff_ids=(image.rootfs.layers if image.rootfs else None) or (),
        tags=(*image_names(image), *(image.digests or ())),
        env=tuple((line.partition("=")[0], line.partition("=")[2]) for line in env),
        size=image.size or 0,
        arch=image.arch or "",
        entrypoint=config.entrypoint or (),
        user=config.user or "",
    )


# Output of `uname -m`, and the name in images (https://go.dev/doc/install/source#environment).
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}


def image_arch(machine: str) -> str:
    """Return the name in images for the processor that ``uname -m`` printed."""
    return _ARCHES.get(machine, machine)


def machine_of(arch: str) -> str:
    """Return the output of ``uname -m`` for the name of a processor in images."""
    return next((machine for machine, name in _ARCHES.items() if name == arch), arch)
