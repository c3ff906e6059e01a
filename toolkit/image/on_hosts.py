"""Images on the hosts that toolkit created: the list for users, and the steps that remove unneeded images.

Both include what partial transfers left behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from toolkit.cluster.ownership import OWN_PROCESSES
from toolkit.core.answers import json_list
from toolkit.core.command import script
from toolkit.core.disk_space import size
from toolkit.core.engines import DOCKER, seconds_of
from toolkit.core.image import image_facts, image_id, image_names, listed_name
from toolkit.core.printable import counted, table
from toolkit.image.layers import held
from toolkit.plan.steps import CANNOT_TELL, Phase, Plan, Run, Step
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.frames import ROW, rows
from toolkit.protocol.names import IDENTITY_REPOSITORY, LABEL_PART, PARTIAL_REPOSITORY

# Images of one flavor that `image prune` keeps on a host: the current one and the previous one.
KEPT = 2

# As in the probe, $1 is the image's name in the hosts file. `docker images` lists only complete images.
QUESTIONS = (
    ("images-listed", "docker images --quiet --all --no-trunc"),
    (
        "images-used",
        ROW
        + r"""
used=$(docker ps --all --quiet --no-trunc)
[ -z "$used" ] || docker inspect --type container --format '{{.Image}} {{.Name}}' $used |
  while read -r image name; do row by "$image" "$name"; done
""",
    ),
    ("images-held", 'docker image inspect "$1" $(docker images --quiet --all --no-trunc | sort -u)'),
)


@dataclass(frozen=True)
class HeldImage:
    """Image on a host.

    Args:
        names: its tags on the host.
        size: bytes, as the engine reports them.
        since: time of the last tag there, in seconds since the epoch; 0 if unknown.
        created: time of the build, likewise.
        users: names of the containers created from it, including stopped ones.
        whole: whether it is complete; the containerd store can list an image with missing layers.
        part_of: content digest of the image whose partial transfer this is, in progress or left over.
        line: what the builds of one flavor have in common; empty if unknown.
    """

    id: str
    identity: str
    names: tuple[str, ...]
    size: int
    since: float
    diff_ids: tuple[str, ...] = field(repr=False)
    users: tuple[str, ...] = ()
    whole: bool = True
    part_of: str = ""
    line: str = ""
    created: float = 0.0

    @property
    def verified(self) -> bool:
        """True if toolkit sent it and verified its content digest."""
        return any(_is_ours(name) for name in self.names) and not self.part_of

    @property
    def own_names(self) -> tuple[str, ...]:
        """Its names that toolkit assigned."""
        return tuple(name for name in self.names if _is_ours(name) or _is_part(name))


def _is_ours(name: str) -> bool:
    return name.startswith(f"{IDENTITY_REPOSITORY}:")


def _is_part(name: str) -> bool:
    return name.startswith(f"{PARTIAL_REPOSITORY}:")


def parse_held(parts: Mapping[str, str]) -> tuple[HeldImage, ...]:
    """Return all images of a host from its answer to ``QUESTIONS``.

    Args:
        parts: content of each section, by its name.

    Raises:
        DecodeError: the description of an image is not the answer of an engine.
    """
    listed, used, inspected = (parts.get(name, "") for name, _ in QUESTIONS)
    users: dict[str, list[str]] = {}
    for word, cells in rows(used):
        if word == "by" and len(cells) == 2:
            users.setdefault(image_id(cells[0]), []).append(cells[1].lstrip("/"))
    found = {image_id(item.id): item for item in json_list(ImageInspect, inspected)}
    return tuple(
        replace(_held_image(item), users=tuple(sorted(users.get(id_, ()))), whole=id_ in listed.split())
        for id_, item in sorted(found.items())
    )


def _held_image(item: ImageInspect) -> HeldImage:
    facts = image_facts(item)
    labels = (item.config.labels if item.config else None) or {}
    names = image_names(item)
    foreign = [name for name in names if not _is_ours(name) and not _is_part(name)]
    tagged = seconds_of((item.metadata.tagged if item.metadata else None) or "")
    created = seconds_of(item.created or "")
    return HeldImage(
        id=facts.id,
        identity=facts.identity,
        names=names,
        size=facts.size,
        since=tagged or created,
        created=created,
        diff_ids=facts.diff_ids,
        part_of=labels.get(LABEL_PART, "") if any(map(_is_part, names)) else "",
        # If the tag has moved to the next build, only the labels of an image describe it.
        line=labels.get("toolkit.flavor", "") or (foreign[0] if foreign else ""),
    )


# List


@dataclass(frozen=True)
class ImageRow:
    """Row of `image ls`.

    Args:
        kind: ``wanted`` by the hosts file, ``other`` image created by toolkit, or ``part`` of an image.
        state: ``whole``, ``incomplete``, ``absent``, ``unreachable``.
        missing: digests of the layers that the host would have to receive.
        note: further information.
    """

    host: str
    kind: str
    names: tuple[str, ...]
    identity: str
    state: str
    size: int = 0
    since: float = 0.0
    users: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    layers: int = 0
    note: str = ""


def image_rows(
    host: str, images: Sequence[HeldImage], name: str, identity: str, diff_ids: Sequence[str]
) -> tuple[ImageRow, ...]:
    """Return the images on a host that toolkit created, the image of the hosts file first.

    Args:
        name: the image name in the hosts file.
        identity, diff_ids: of the image with that name; empty when they are unknown.
    """
    wanted = [i for i in images if i.identity == identity] if identity else []
    wanted = wanted or [i for i in images if listed_name(name, i.names) and not identity]
    rows = [_row(host, "wanted", image) for image in wanted]
    if not rows:
        there = held(diff_ids, (image.diff_ids for image in images if image.whole))
        lacks, layers = tuple(diff_ids[there:]), len(diff_ids)
        rows = [ImageRow(host, "wanted", (name,), identity, "absent", missing=lacks, layers=layers)]
    others = [i for i in images if i not in wanted and (i.own_names or listed_name(name, i.names))]
    for image in sorted(others, key=lambda i: (bool(i.part_of), -i.since, i.id)):
        row = _row(host, "part" if image.part_of else "other", image)
        note = (
            f"partial transfer of image {image.part_of}, in progress or interrupted" if image.part_of else ""
        )
        rows.append(replace(row, note=note))
    return tuple(rows)


def _row(host: str, kind: str, image: HeldImage) -> ImageRow:
    return ImageRow(
        host,
        kind,
        image.names,
        image.identity,
        "whole" if image.whole else "incomplete",
        image.size,
        image.since,
        image.users,
        layers=len(image.diff_ids),
    )


def images_text(rows: Iterable[ImageRow]) -> str:
    """Format the list of images as a table."""
    cells = [
        (
            row.host,
            row.names[0] if row.kind == "wanted" and row.state in ("absent", "unreachable") else _names(row),
            row.identity,
            _state(row),
            size(row.size) if row.size else "",
            f"{datetime.fromtimestamp(row.since, timezone.utc):%Y-%m-%d %H:%M}" if row.since else "",
            ", ".join(row.users),
            row.note,
        )
        for row in rows
    ]
    return table(("host", "image", "identity", "state", "size", "since (UTC)", "used by", "note"), cells)


def _names(row: ImageRow) -> str:
    # The tag that repeats the content digest of the next column is printed only if it is the only tag.
    other = [name for name in row.names if row.identity not in name]
    return ", ".join(other or row.names) or "(no name)"


def _state(row: ImageRow) -> str:
    if row.state == "absent" and row.layers:
        return f"absent, {len(row.missing)} of {counted(row.layers, 'layer')} missing"
    return row.state


# Removal

# Arguments: the image's Id, then its names. Checked again, because a container could have been created since.
_REMOVE = r"""
id=$1; shift
used=$(docker ps --all --quiet --filter "ancestor=$id") || exit
[ -z "$used" ] || { echo "a container uses the image: $used" >&2; exit 1; }
for name; do ! docker image inspect "$name" >/dev/null 2>&1 || docker rmi "$name" >/dev/null || exit; done
"""
_GONE = 'for name; do ! docker image inspect "$name" >/dev/null 2>&1 || exit 1; done'

# Every program that receives an image has the image's content digest in its environment, which other users
# can neither read nor forge. While such a program runs, its partial images look like those of a broken
# transfer. Argument of each function: the image's content digest. `short_name` describes the prefixes.
PARTS = (
    OWN_PROCESSES
    + r"""
parts() {
  names=$(docker images --filter "label=toolkit.part=$1" --format '{{.Repository}}:{{.Tag}}') || return
  printf '%s\n' "$names" | sed -n 's,^localhost/,,; s,^docker\.io/library/,,; /^toolkit-part:/p'
}
doubt() {
  pids=$(with_variable "TOOLKIT_RELAY=$1" | tr -dc '0-9\n')
  [ -z "$pids" ] ||
    echo "cannot check for partial transfers of image $1: a transfer of the image to this host runs as pid" \
      $pids
}
refuse() { echo "$1" >&2; exit @cannot_tell@; }
""".replace("@cannot_tell@", str(CANNOT_TELL))
)

# Arguments: the image's content digest, then the names of its partial images.
_REMOVE_PART = rf"""{PARTS}
doubt=$(doubt "$1")
[ -z "$doubt" ] || refuse "$doubt"
shift
for name; do ! docker image inspect "$name" >/dev/null 2>&1 || docker rmi "$name" >/dev/null || exit; done
"""


def plan_prune(hosts: Mapping[str, Sequence[HeldImage]], wanted: str, engine: str = DOCKER) -> Plan:
    """Return the plan that removes images created by toolkit: partial ones, and old builds of each flavor.

    The newest ``KEPT`` builds stay. An image that a container uses, or with a name that toolkit did not
    assign, stays as well.

    Args:
        hosts: all images of each host, by host name.
        wanted: content digest of the image that the hosts file names, which stays; empty if unknown.
        engine: container engine of the hosts.
    """
    steps = tuple(
        step for host, images in hosts.items() for step in _prune_steps(host, images, wanted, engine)
    )
    return Plan("image prune", (Phase("images", steps),) if steps else ())


def _prune_steps(host: str, images: Sequence[HeldImage], wanted: str, engine: str) -> Iterator[Step]:
    for image in sorted(images, key=lambda i: i.id):
        if image.part_of and not image.users:
            yield remove_partial_image(host, image.part_of, image.own_names, "toolkit image prune")
    lines: dict[str, list[HeldImage]] = {}
    # By build time: tagging an old image again does not make it newer.
    for image in sorted(images, key=lambda i: (-i.created, -i.since, i.id)):
        if image.verified:
            lines.setdefault(image.line, []).append(image)
    for line, found in lines.items():
        for image in found[KEPT:]:
            named = set(image.names) - set(image.own_names)
            if not named and not image.users and image.identity != wanted:
                # Only names have colons.
                about = f" of {'' if ':' in line else 'flavor '}{line}" if line else ""
                yield _prune_step(host, image, f"toolkit keeps the {KEPT} newest images{about}", engine)


def _prune_step(host: str, image: HeldImage, why: str, engine: str) -> Step:
    names = image.own_names
    return Run(
        host,
        f"remove image {names[0]}",
        script(_REMOVE, image.id, *names),
        unless=script(_GONE, *names),
        fix=f"on {host}: {engine} ps --all --filter ancestor={names[0]}  # lists the containers of the image",
        why=why,
    )


def remove_partial_image(host: str, identity: str, names: Sequence[str], again: str) -> Step:
    """Return the step that removes a partial image, unless a transfer of the image is in progress.

    Args:
        identity: content digest of the image.
        names: names of the partial image.
        again: the command to run again after such a transfer.
    """
    return Run(
        host,
        f"remove image {names[0]}",
        script(_REMOVE_PART, identity, *names),
        unless=script(_GONE, *names),
        unsure=f"{again}  # after the transfer of the image has finished",
        why=f"left by an incomplete transfer of image {identity}",
    )
