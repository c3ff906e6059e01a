"""What is known of every ordered pair of hosts: connections from inside containers, else from the hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolkit.checks.model import Scene
from toolkit.cluster.pairs import CONNECT_SECONDS, FIRST_EPHEMERAL_PORT
from toolkit.cluster.ports import FIRST_MASTER_PORT

# In what words a connection failed. A refusal is a fault only where one of our programs listened.
_FAULTS = {
    "timeout": f"dropped, no answer within {CONNECT_SECONDS:g} s",
    "unreachable": "rejected as unreachable",
    "mute": "opened, then silent",
    "stranger": "answered by another program",
}
_REJECTED = "rejected, though a program listens there"


@dataclass(frozen=True)
class Pair:
    """One ordered pair.

    Args:
        tried: what came of each kind of port: ``worker``, ``master``, ``any``; empty when nothing was tried.
        listened: whether a program of ours listened on the far side.
        faults: for each kind that failed how it did, in words.
    """

    source: str
    target: str
    tried: Mapping[str, str]
    listened: bool

    @property
    def faults(self) -> dict[str, str]:
        words = {**_FAULTS, "refused": _REJECTED} if self.listened else _FAULTS
        return {kind: words[answer] for kind, answer in self.tried.items() if answer in words}


def pairs(scene: Scene) -> Iterator[Pair]:
    """Yield every ordered pair of hosts that answered and have an address for ranks."""
    hosts = [name for name in scene.facts if name in scene.paths]
    for source in hosts:
        looked = scene.inside.get(source)
        seen = looked.report.pairs if looked else {}
        for target in hosts:
            if source == target:
                continue
            if told := seen.get(target):
                tried = {kind: result.answer for kind, result in told.items()}
                yield Pair(source, target, tried, True)
            else:
                yield Pair(source, target, _plain(scene, source, target), False)


def _plain(scene: Scene, source: str, target: str) -> dict[str, str]:
    address = scene.paths[target].address
    return {
        _kind(scene, port): answer
        for (host, to, port), answer in scene.evidence.tries.items()
        if (host, to) == (source, address)
    }


def _kind(scene: Scene, port: int) -> str:
    if port == scene.port:
        return "worker"
    return "master" if FIRST_MASTER_PORT <= port < FIRST_EPHEMERAL_PORT else "any"


def ports_text(scene: Scene, kinds: Mapping[str, str], tried: Mapping[str, str]) -> str:
    """Return the ports of these kinds for people."""
    names = {
        "worker": f"port {scene.port}",
        "master": f"port {FIRST_MASTER_PORT}",
        "any": "ports that the kernel gives out",
    }
    return "all ports" if len(kinds) == len(tried) > 1 else " and ".join(names[kind] for kind in kinds)
