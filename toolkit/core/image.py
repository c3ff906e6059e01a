"""An image's identity: what it holds and how it starts, whatever the engine or store calls it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageConfig, ImageInspect, OciConfig


@dataclass(frozen=True)
class ImageFacts:
    """One image as a host's engine reports it.

    Args:
        id: the engine's own Id: config digest (overlay2 store) or manifest digest (containerd store).
        identity: 16 hexadecimal digits, equal for equal images on every engine and store.
        diff_ids: digests of the uncompressed layers, base first.
        tags: references under which the engine knows it, by tag and by digest.
        env: its ENV lines as pairs.
        size: bytes as the engine reports them; the two stores count differently.
        arch: the processor it is for, in Go's words: amd64, arm64 …
    """

    id: str
    identity: str
    diff_ids: tuple[str, ...]
    tags: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    size: int = 0
    arch: str = ""


def image_identity(image: ImageInspect) -> str:
    """Return the identity of an image from its ``docker image inspect`` object.

    Made from platform, layer diff ids and the parts of the config that matter, because image Ids of
    the overlay2 and the containerd store differ for the very same image.
    """
    layers = image.rootfs.layers if image.rootfs else None
    return _identity(image.os, image.arch, layers or (), image.config or ImageConfig())


def config_identity(config: object) -> str:
    """Return the identity of an image from the JSON of its config file.

    Raises:
        DecodeError: it is no such file.
    """
    image = decode(OciConfig, config)
    layers = image.rootfs.diff_ids if image.rootfs else None
    return _identity(image.os, image.architecture, layers or (), image.config or ImageConfig())


def _identity(os: str | None, arch: str | None, layers: Sequence[str], config: ImageConfig) -> str:
    fields = {
        "Env": config.env,
        "Entrypoint": config.entrypoint,
        "Cmd": config.cmd,
        "WorkingDir": config.workdir,
        "User": config.user,
        "Labels": config.labels,
        "StopSignal": config.stop_signal,
        "Volumes": config.volumes,
    }
    subject = [os, arch, layers, {key: value for key, value in fields.items() if value}]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def image_id(text: str) -> str:
    """Return an engine's Id of an image with its algorithm in front, which Podman leaves out."""
    return f"sha256:{text}" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def image_names(image: ImageInspect) -> tuple[str, ...]:
    """Return what an engine calls an image, by tag."""
    # Podman's word for a name of no registry.
    return tuple(name.removeprefix("localhost/") for name in image.tags or ())


def image_facts(image: ImageInspect) -> ImageFacts:
    """Return the facts of an image from its ``docker image inspect`` object."""
    env = (image.config.env if image.config else None) or ()
    return ImageFacts(
        id=image_id(image.id),
        identity=image_identity(image),
        diff_ids=(image.rootfs.layers if image.rootfs else None) or (),
        tags=(*image_names(image), *(image.digests or ())),
        env=tuple((line.partition("=")[0], line.partition("=")[2]) for line in env),
        size=image.size or 0,
        arch=image.arch or "",
    )


# What `uname -m` says, in the words of images (https://go.dev/doc/install/source#environment).
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}


def image_arch(machine: str) -> str:
    """Return a machine's processor, as ``uname -m`` says it, in the words of images."""
    return _ARCHES.get(machine, machine)
