"""Layers of an image, sent one by one, and the layers that a host's engine holds already.

The archive form is one that every engine's `docker load` takes: an OCI layout with a manifest.json beside it.
Engines with the overlay2 store read the second and want layers by chain, the containerd store reads the first
and wants blobs by digest. Both let an archive leave out layers that they hold.
https://github.com/opencontainers/image-spec/blob/main/image-layout.md
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from toolkit.core.command import Command, script
from toolkit.core.disk_space import ASK_ROOM, Room, parse_room
from toolkit.core.engines import PODMAN
from toolkit.protocol.decode import DecodeError, decode, load_first, load_json
from toolkit.protocol.engine import Texts
from toolkit.protocol.frames import FrameError, framed_script, lines_of, read_frames
from toolkit.protocol.names import LABEL_PART, PART_REPOSITORY

# Neighbouring layers up to so many bytes travel together: each load costs a tenth of a second.
JOINED = 2**20

_INDEX = "application/vnd.oci.image.index.v1+json"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"

_LACKING = re.compile(
    r"blobs/sha256/([0-9a-f]{64}): no such file|(?:content )?digest sha256:([0-9a-f]{64}): not found"
)

# `docker images` lists whole images alone, where `docker image inspect` also knows those of the containerd
# store whose layers did not all come. One that goes between the two questions is no error.
_ASK_HOLDINGS = f"""
driver=$(docker info --format '{{{{json .DriverStatus}}}}' 2>/dev/null ||
  docker info --format 'podman {{{{.Store.GraphDriverName}}}}') || exit
say driver "$driver"
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
    """One layer: the digest of its plain tar, as ``sha256:…``, and that tar's bytes."""

    diff_id: str
    size: int


@dataclass(frozen=True)
class Group:
    """Layers that travel in one archive: from ``start`` up to, not including, ``stop``, base first."""

    start: int
    stop: int


@dataclass(frozen=True)
class ImageParts:
    """What an image consists of.

    Args:
        config: its config as it stands in the sender's engine, byte for byte.
        layers: base first.
    """

    config: bytes = field(repr=False)
    layers: tuple[Layer, ...]

    @property
    def diff_ids(self) -> tuple[str, ...]:
        return tuple(layer.diff_id for layer in self.layers)

    def size(self, group: Group) -> int:
        """Return the bytes of a group's layers; one that stands in it twice travels once."""
        return sum(layer.size for layer in self.unlike(group))

    def unlike(self, group: Group) -> tuple[Layer, ...]:
        """Return a group's layers without repetitions."""
        return tuple({layer.diff_id: layer for layer in self.layers[group.start : group.stop]}.values())


def groups_of(sizes: Sequence[int], first: int = 0) -> tuple[Group, ...]:
    """Return how the layers from ``first`` on travel: a large one alone, small neighbours together.

    The bounds are the same whatever ``first`` is, so that hosts which hold different beginnings share the
    reading of what they all lack.
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
    """Return groups for hosts that lack layers from different ones on: each needs a row of whole groups."""
    found: list[Group] = []
    for group in groups_of(sizes, min(firsts)):
        cuts = sorted({group.start, *(first for first in firsts if group.start < first < group.stop)})
        found += [Group(start, stop) for start, stop in zip(cuts, [*cuts[1:], group.stop], strict=True)]
    return tuple(found)


def part_config(parts: ImageParts, stop: int, identity: str) -> bytes:
    """Return the config of an image that holds the first layers and can be thrown away.

    Args:
        stop: how many layers.
        identity: of the whole image, for its label.
    """
    whole = load_json(parts.config)
    config = {
        **{key: whole[key] for key in ("architecture", "variant", "os") if key in whole},
        "created": whole.get("created") or "1970-01-01T00:00:00Z",
        "config": {"Labels": {LABEL_PART: identity}},
        "rootfs": {"type": "layers", "diff_ids": list(parts.diff_ids[:stop])},
        "history": [],
    }
    return json.dumps(config, sort_keys=True).encode()


def metadata(config: bytes, layers: Sequence[Layer], name: str) -> tuple[tuple[str, bytes], ...]:
    """Return the files that make an image of blobs, as (name in the archive, content).

    Args:
        layers: all of the image, also those that the archive leaves out.
        name: repository and tag to load it under, without a registry.
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
    """Return the digest by which blobs are known."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def blob_name(of: str) -> str:
    """Return where a blob stands in an archive."""
    return f"blobs/{of.replace(':', '/')}"


def _text(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def held(diff_ids: Sequence[str], chains: Iterable[Sequence[str]]) -> int:
    """Return how many of an image's first layers a host has that holds images of these layer chains.

    An engine with the overlay2 store knows a layer by its whole chain from the base up, so only a common
    beginning counts.
    """
    same = (
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(diff_ids, chain, strict=False)))
        for chain in chains
    )
    return max(same, default=0)


def lacking(said: str, diff_ids: Sequence[str]) -> int | None:
    """Return the first layer that an engine misses by its own words, None when it misses none."""
    digests = {f"sha256:{one or other}" for one, other in _LACKING.findall(said)}
    return next((number for number, digest in enumerate(diff_ids) if digest in digests), None)


def room_needed(store: str, sizes: Collection[int]) -> int:
    """Return the bytes that a host needs while it loads groups of these sizes.

    An engine writes an archive to its disk before it unpacks it. overlay2 then removes it, so one at a time
    stands beside the layers; the containerd store keeps every blob beside its unpacked layer.
    """
    if store == "containerd":
        return 2 * sum(sizes)
    return sum(sizes) + max(sizes, default=0)


@dataclass(frozen=True)
class Holdings:
    """What a host's engine holds.

    Args:
        store: ``containerd``, ``podman`` or ``overlay2``; what keeps layers as the last does counts as it.
        chains: layer diff ids of each whole image, base first.
        parts: names of what earlier tries left of images on their way.
        room: where images are kept; None when it cannot be seen.
    """

    store: str
    chains: tuple[tuple[str, ...], ...] = ()
    parts: tuple[str, ...] = ()
    room: Room | None = None

    def parts_of(self, identity: str) -> tuple[str, ...]:
        """Return the names of the parts of one image."""
        return tuple(name for name in self.parts if name.startswith(f"{PART_REPOSITORY}:{identity}-"))


def ask_holdings(nonce: str) -> Command:
    """Return the command whose output ``parse_holdings`` reads. It changes nothing.

    Args:
        nonce: delimits the sections; new in every call.
    """
    return script(framed_script(_ASK_HOLDINGS, nonce))


def parse_holdings(data: bytes, nonce: str) -> Holdings:
    """Return the answer of a host.

    Raises:
        DecodeError: it is no answer of an engine.
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
            parts += [name for name in decode(Texts, names or []) if name.startswith(f"{PART_REPOSITORY}:")]
    found = parse_room(sections.get("room", ""))
    # The engine's own folder comes last, that of a containerd beside it before.
    room = (found[0] if store == "containerd" else found[-1]) if found else None
    return Holdings(store, tuple(chains), tuple(sorted(parts)), room)
