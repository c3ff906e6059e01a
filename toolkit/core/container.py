"""One container as a value, from which `docker run`, compose and other renderings are made."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

from toolkit.protocol.names import LABEL_DIGEST, LABEL_VERSION

# Labels that describe a container without an effect on it.
_REMARKS = (LABEL_DIGEST, LABEL_VERSION)

# Executes its arguments. In place of the image's ENTRYPOINT, which can print a banner into the output of a
# program, or start another program.
ENTRYPOINT = "env"

# Options of every container that runs one program of an image: only what the program needs, with a limit that
# stops fork bombs.
CONFINED = (
    *("--init", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
    *("--pids-limit", "4096", "--entrypoint", ENTRYPOINT),
)


@dataclass(frozen=True)
class Mount:
    """A bind mount: ``source`` on the host, ``target`` in the container, both absolute."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Ulimit:
    """A resource limit; -1 means unlimited."""

    name: str
    soft: int
    hard: int


@dataclass(frozen=True)
class Container:
    """All settings with which a container starts.

    The code that builds the value sorts pairs, so that equal containers are equal values.

    Args:
        image: a reference to one content digest (see ``toolkit.core.image``).
        entrypoint: the program that receives ``argv`` in place of the image's ENTRYPOINT; empty to keep that.
        user: ``uid:gid`` of the processes.
        groups: supplementary group ids.
        gpus: for ``--gpus``: empty for none, ``all``, or a comma-separated list of indexes or UUIDs.
        cdi: devices by their qualified CDI names, such as ``nvidia.com/gpu=0``.
        shm_bytes: size of /dev/shm in bytes.
        pids: the greatest number of processes and threads.
        userns: for ``--userns``: how the engine maps users; empty for the engine's default.
        stop_seconds: time between SIGTERM and SIGKILL when the engine stops it.
    """

    name: str
    hostname: str
    image: str
    argv: tuple[str, ...]
    user: str
    entrypoint: str = ""
    groups: tuple[int, ...] = ()
    workdir: str = "/"
    env: tuple[tuple[str, str], ...] = ()
    mounts: tuple[Mount, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    gpus: str = ""
    cdi: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    shm_bytes: int = 0
    ulimits: tuple[Ulimit, ...] = ()
    cap_drop: tuple[str, ...] = ("ALL",)
    cap_add: tuple[str, ...] = ()
    security: tuple[str, ...] = ("no-new-privileges",)
    pids: int = 0
    network: str = "host"
    userns: str = ""
    init: bool = True
    stop_seconds: int = 10

    def digest(self) -> str:
        """Return 16 hexadecimal digits that change if, and only if, the container must be recreated.

        A new field of this class does not change the digest of a container in which the field is empty.
        """
        return self._digest

    # A plan uses the digest of each container several times.
    @functools.cached_property
    def _digest(self) -> str:
        content = without_empty(self)
        content["labels"] = [list(pair) for pair in self.labels if pair[0] not in _REMARKS]
        if not content["labels"]:
            del content["labels"]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def labelled(self) -> Container:
        """Return the container with its own digest among its labels."""
        others = tuple(p for p in self.labels if p[0] != LABEL_DIGEST)
        labelled = replace(self, labels=tuple(sorted((*others, (LABEL_DIGEST, self.digest())))))
        vars(labelled)["_digest"] = self._digest  # the same, because this label has no effect
        return labelled


def without_empty(value: Any) -> Any:
    """Return the value without empty fields, so that a new empty field does not change the digest."""
    if isinstance(value, (str, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [without_empty(inner) for inner in value]
    if is_dataclass(value):
        given = ((name, getattr(value, name)) for name in value.__dataclass_fields__)
        return {name: without_empty(inner) for name, inner in given if inner}
    if isinstance(value, dict):
        return {name: without_empty(inner) for name, inner in value.items() if inner}
    return value
