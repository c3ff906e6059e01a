"""An image's identity: what it holds and how it starts, whatever the engine or store calls it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The fields of an image's config that decide how a container from it behaves. Engines of different
# ages add others (Hostname, Image, OnBuild …) and write absent ones as null, "", [] or {}.
_CONFIG = ("Env", "Entrypoint", "Cmd", "WorkingDir", "User", "Labels", "StopSignal", "Volumes")


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


def identity(inspect: Mapping[str, Any]) -> str:
    """Return the identity of an image from its ``docker image inspect`` object.

    Made from platform, layer diff ids and the parts of the config that matter, because image Ids of
    the overlay2 and the containerd store differ for the very same image.
    """
    config = inspect.get("Config") or {}
    kept = {key: config.get(key) for key in _CONFIG if config.get(key)}
    layers = (inspect.get("RootFS") or {}).get("Layers") or []
    subject = [inspect.get("Os"), inspect.get("Architecture"), layers, kept]
    return hashlib.sha256(json.dumps(subject, sort_keys=True).encode()).hexdigest()[:16]


def config_identity(config: Mapping[str, Any]) -> str:
    """Return the identity of an image from its config file.

    https://github.com/opencontainers/image-spec/blob/main/config.md
    """
    return identity(
        {
            "Os": config.get("os"),
            "Architecture": config.get("architecture"),
            "Config": config.get("config"),
            "RootFS": {"Layers": (config.get("rootfs") or {}).get("diff_ids")},
        }
    )


def image_id(text: str) -> str:
    """Return an engine's Id of an image with its algorithm in front, which Podman leaves out."""
    return f"sha256:{text}" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def image_names(inspect: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what an engine calls an image, by tag."""
    # Podman's word for a name of no registry.
    return tuple(str(name).removeprefix("localhost/") for name in inspect.get("RepoTags") or ())


def image_facts(inspect: Mapping[str, Any]) -> ImageFacts:
    """Return the facts of an image from its ``docker image inspect`` object."""
    env = ((inspect.get("Config") or {}).get("Env")) or []
    return ImageFacts(
        id=image_id(str(inspect.get("Id", ""))),
        identity=identity(inspect),
        diff_ids=tuple((inspect.get("RootFS") or {}).get("Layers") or ()),
        tags=(*image_names(inspect), *(inspect.get("RepoDigests") or ())),
        env=tuple((line.partition("=")[0], line.partition("=")[2]) for line in env),
        size=int(inspect.get("Size") or 0),
        arch=str(inspect.get("Architecture") or ""),
    )


# What `uname -m` says, in the words of images (https://go.dev/doc/install/source#environment).
_ARCHES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "armv6l": "arm", "i686": "386"}


def image_arch(machine: str) -> str:
    """Return a machine's processor, as ``uname -m`` says it, in the words of images."""
    return _ARCHES.get(machine, machine)
