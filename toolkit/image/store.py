"""What a host's engine holds before an image is sent to it, as one round trip reports it."""

from __future__ import annotations

from dataclasses import dataclass

from toolkit.core.command import Command, script
from toolkit.core.disk_space import ASK_ROOM, Room, parse_room
from toolkit.core.engines import PODMAN
from toolkit.protocol.decode import DecodeError, decode, load_first
from toolkit.protocol.engine import Texts
from toolkit.protocol.frames import FrameError, framed_script, lines_of, read_frames
from toolkit.protocol.names import PART_REPOSITORY

# `docker images` lists whole images alone, where `docker image inspect` also knows those of the containerd
# store whose layers did not all come. One that goes between the two questions is no error.
_ASK = f"""
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
    return script(framed_script(_ASK, nonce))


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
