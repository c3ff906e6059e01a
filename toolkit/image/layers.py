"""Layers of an image that are sent one by one, and the layers that a host's engine already has.

The archive has a form that `docker load` of every engine accepts: an OCI layout plus a manifest.json. Engines
with the overlay2 store read manifest.json and identify layers by chain; the containerd store reads the OCI
index and identifies blobs by digest. Both accept an archive without the layers that they already have.
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile

from toolkit.core.command import Command, script
from toolkit.core.disk_space import ASK_ROOM, Room, parse_room
from toolkit.core.engines import PODMAN
from toolkit.core.image import short_name
from toolkit.protocol.decode import DecodeError, decode, decode_json, load_first, load_json
from toolkit.protocol.engine import Containerd, Texts
from toolkit.protocol.frames import FrameError, framed_script, lines_of, read_frames
from toolkit.protocol.names import LABEL_PART, PARTIAL_REPOSITORY

# Adjacent layers of up to this total size in bytes are sent together: each load costs about 0.1 s.
JOINED = 2**20

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"

_LACKING = re.compile(
    r"blobs/sha256/([0-9a-f]{64}): no such file|(?:content )?digest sha256:([0-9a-f]{64}): not found"
)

# `docker images` lists only complete images; `docker image inspect` also knows images of the containerd store
# with missing layers. An image that is removed between the two commands is no error.
_ASK_HOLDINGS = f"""
driver=$(docker info --format '{{{{json .DriverStatus}}}}' 2>/dev/null ||
  docker info --format 'podman {{{{.Store.GraphDriverName}}}}') || exit
say driver "$driver"
say containerd "$(docker info --format '{{{{json .Containerd}}}}' 2>/dev/null)"
ids=$(docker images --quiet --all --no-trunc) || exit
found=
[ -z "$ids" ] ||
  found=$(docker image inspect --format '{{{{json .RootFS.Layers}}}} {{{{json .RepoTags}}}}' $(
    printf '%s\\n' "$ids" | sort -u) 2>/dev/null)
say images "$found"
room() {{
{ASK_ROOM}
}}
say room "$(room)"
"""


@dataclass(frozen=True)
class Layer:
    """One layer: the digest of its plain tar, as ``sha256:…``, and the tar's size in bytes."""

    diff_id: str
    size: int


@dataclass(frozen=True)
class Group:
    """Layers that are sent in one archive: from ``start`` up to, not including, ``stop``, base first."""

    start: int
    stop: int


@dataclass(frozen=True)
class ImageLayers:
    """Config and layers of an image.

    Args:
        config: its config in the sender's engine, byte for byte.
        layers: base first.
    """

    config: bytes = field(repr=False)
    layers: tuple[Layer, ...]

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(layer.diff_id for layer in self.layers)

    def size(self, group: Group) -> int:
        """Return the size of a group's layers in bytes; a repeated layer is sent and counted once."""
        return sum(layer.size for layer in self.unique_layers(group))

    def unique_layers(self, group: Group) -> tuple[Layer, ...]:
        """Return a group's layers without repetitions."""
        return tuple({layer.diff_id: layer for layer in self.layers[group.start : group.stop]}.values())


def groups_of(sizes: Sequence[int], first: int = 0) -> tuple[Group, ...]:
    """Group the layers from ``first`` on for sending: a large layer alone, small adjacent layers together.

    The bounds do not depend on ``first``, so hosts that hold different first layers can share the reading of
    the layers that all of them need.
    """
    found: list[Group] = []
    total = 0
    for number, size in enumerate(sizes):
        joins = found and total + size <= JOINED
        if joins:
            found[-1] = Group(found[-1].start, number + 1)
        else:
            found.append(Group(number, number + 1))
        total = total + size if joins else size
    return tuple(Group(max(g.start, first), g.stop) for g in found if g.stop > first)


def groups_for(sizes: Sequence[int], firsts: Collection[int]) -> tuple[Group, ...]:
    """Return groups for hosts whose first missing layers differ; each host needs a series of whole groups."""
    found: list[Group] = []
    for group in groups_of(sizes, min(firsts)):
        cuts = sorted({group.start, *(first for first in firsts if group.start < first < group.stop)})
        found += [Group(start, stop) for start, stop in zip(cuts, [*cuts[1:], group.stop], strict=True)]
    return tuple(found)


def part_config(parts: ImageLayers, stop: int, identity: str, created: datetime) -> bytes:
    """Return the config of a temporary image that contains the first layers.

    Args:
        stop: the number of layers.
        identity: content digest of the complete image, for the label.
        created: time of the transfer in UTC; overlay2 and Podman store no other time of a loaded image.
    """
    whole = load_json(parts.config)
    config = {
        **{key: whole[key] for key in ("architecture", "variant", "os") if key in whole},
        "created": f"{created:%Y-%m-%dT%H:%M:%SZ}",
        "config": {"Labels": {LABEL_PART: identity}},
        "rootfs": {"type": "layers", "diff_ids": list(parts.diff_ids[:stop])},
        "history": [],
    }
    return json.dumps(config, sort_keys=True).encode()


def metadata(config: bytes, layers: Sequence[Layer], name: str) -> tuple[tuple[str, bytes], ...]:
    """Return the metadata files that turn blobs into an image, as (name in the archive, content).

    Args:
        layers: all layers of the image, including those that the archive omits.
        name: repository and tag for the load, without a registry.
    """
    manifest = _text(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": {"mediaType": _CONFIG, "digest": digest(config), "size": len(config)},
            "layers": [{"mediaType": _LAYER, "digest": one.diff_id, "size": one.size} for one in layers],
        }
    )
    index = _text(
        {
            "schemaVersion": 2,
            "mediaType": _INDEX,
            "manifests": [
                {
                    "mediaType": _MANIFEST,
                    "digest": digest(manifest),
                    "size": len(manifest),
                    "annotations": {
                        "io.containerd.image.name": f"docker.io/library/{name}",
                        "org.opencontainers.image.ref.name": name.rpartition(":")[2],
                    },
                }
            ],
        }
    )
    blobs = [blob_name(one.diff_id) for one in layers]
    docker = [{"Config": blob_name(digest(config)), "RepoTags": [name], "Layers": blobs}]
    return (
        ("oci-layout", b'{"imageLayoutVersion":"1.0.0"}'),
        (blob_name(digest(config)), config),
        (blob_name(digest(manifest)), manifest),
        ("index.json", index),
        ("manifest.json", _text(docker)),
    )


def digest(data: bytes) -> str:
    """Return the digest that identifies a blob."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_name(of: str) -> str:
    """Return the path of a blob in an archive."""
    return f"blobs/{of.replace(':', '/')}"


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def held(diff_ids: Sequence[str], chains: Iterable[Sequence[str]]) -> int:
    """Return the number of an image's first layers that a host has which holds images with these chains.

    The overlay2 store identifies a layer by its complete chain from the base, so only common first layers
    count.
    """
    same = (
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(diff_ids, chain, strict=False)))
        for chain in chains
    )
    return max(same, default=0)


def lacking(message: str, diff_ids: Sequence[str]) -> int | None:
    """Return the first layer that an engine reports as missing, None if it reports none."""
    digests = {f"sha256:{one or other}" for one, other in _LACKING.findall(message)}
    return next((number for number, digest in enumerate(diff_ids) if digest in digests), None)


def room_needed(store: str, sizes: Collection[int]) -> int:
    """Return the disk space in bytes that a host needs to load groups of these sizes.

    An engine writes an archive to its disk before it unpacks it. The overlay2 store then deletes the archive,
    so one archive at a time needs space besides the layers. The containerd store keeps every blob in addition
    to its unpacked layer.
    """
    if store == "containerd":
        return 2 * sum(sizes)
    return sum(sizes) + max(sizes, default=0)


@dataclass(frozen=True)
class Holdings:
    """Images and free space of a host's engine.

    Args:
        store: ``containerd``, ``podman`` or ``overlay2``, which includes stores that behave like it.
        chains: layer diff ids of each complete image, base first.
        parts: names of the partial images that earlier transfers left.
        room: free space of the image store; None when it is unknown.
    """

    store: str
    chains: tuple[tuple[str, ...], ...] = ()
    parts: tuple[str, ...] = ()
    room: Room | None = None

    def parts_of(self, identity: str) -> tuple[str, ...]:
        """Return the names of the partial images of one image."""
        return tuple(name for name in self.parts if name.startswith(f"{PARTIAL_REPOSITORY}:{identity}-"))


def holdings_command(nonce: str) -> Command:
    """Return the command whose output ``parse_holdings`` reads. It changes nothing.

    Args:
        nonce: delimiter of the sections; different for every call.
    """
    return script(framed_script(_ASK_HOLDINGS, nonce))


def _has_own_containerd(text: str) -> bool:
    """Return True if an engine has started its own containerd; its socket is in a folder of Docker."""
    return text.startswith("{") and "docker" in decode_json(Containerd, text).address


def parse_holdings(data: bytes, nonce: str) -> Holdings:
    """Parse the answer of a host.

    Raises:
        DecodeError: the text is not the answer of an engine.
    """
    try:
        sections = read_frames(data, nonce)
    except FrameError as error:
        raise DecodeError("", str(error)) from error
    driver = sections.get("driver", "")
    store = "containerd" if "io.containerd.snapshotter" in driver else "overlay2"
    store = PODMAN if driver.startswith(f"{PODMAN} ") else store
    chains: list[tuple[str, ...]] = []
    parts: list[str] = []
    for line in lines_of(sections.get("images", "")):
        if line.startswith(("[", "null")):
            layers, end = load_first(line)
            names, _ = load_first(line, end + 1)
            chains.append(decode(Texts, layers or []))
            short = map(short_name, decode(Texts, names or []))
            parts += [name for name in short if name.startswith(f"{PARTIAL_REPOSITORY}:")]
    found = parse_room(sections.get("room", ""))
    # The engine's folder comes last, after that of a separate containerd. The data of a containerd that the
    # engine has started is below the engine's folder.
    separate = store == "containerd" and not _has_own_containerd(sections.get("containerd", ""))
    room = (found[0] if separate else found[-1]) if found else None
    return Holdings(store, tuple(chains), tuple(sorted(parts)), room)
