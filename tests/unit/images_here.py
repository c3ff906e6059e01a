"""A sender's engine in this process, and hosts whose engines a program plays, of both stores."""

from __future__ import annotations

import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit import fake_docker
from tests.unit.hosts_here import HostHere, execute
from toolkit.core.command import Command, Result
from toolkit.core.engines import DOCKER
from toolkit.core.image import ImageFacts, config_identity
from toolkit.core.report import Outcome
from toolkit.core.runner import Sink
from toolkit.errors import Unreachable
from toolkit.image import source as image_source
from toolkit.image.archive import archive
from toolkit.image.layer_reader import Unreadable
from toolkit.image.layers import ImageLayers, Layer, digest, metadata
from toolkit.plan.steps import Phase, Plan, SendImage
from toolkit.protocol.names import PARTIAL_REPOSITORY, identity_reference

STORES = ("overlay2", "containerd")
MIB = 2**20
# A large layer, two small ones that travel together, one that is empty, a large one.
LAYERS = (b"a" * 2 * MIB, b"b" * 1000, b"c" * 2000, b"", b"d" * 3 * MIB)


def config(layers: Sequence[bytes], **more: Any) -> bytes:
    diff_ids = [digest(layer) for layer in layers]
    about = {"architecture": "amd64", "os": "linux", "config": {"Env": ["A=b"], **more}, "history": []}
    return json.dumps({**about, "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()


class Sender:
    """This machine's engine with one image: its layers can be read, and what was read is counted."""

    client = None

    def __init__(self, layers: Sequence[bytes] = LAYERS) -> None:
        self.layers, self.config = tuple(layers), config(layers)
        self.identity = config_identity(json.loads(self.config))
        self.parts = ImageLayers(self.config, tuple(Layer(digest(one), len(one)) for one in layers))
        self.read: list[tuple[int, ...]] = []
        self.saved = 0
        self.unreadable = self.flips = False
        self.odd = False  # the first export is
        self.built: tuple[str, ...] = (digest(self.config),)

    # As toolkit.remote.engine.Engine

    def image(self, name: str, engine: str = DOCKER) -> ImageFacts | None:
        known = ImageFacts(
            digest(self.config), self.identity, self.parts.diff_ids, size=sum(map(len, self.layers))
        )
        return known if name in ("toolkit:cpu", known.id) else None

    def save(self, name: str) -> Iterator[bytes]:
        self.saved += 1
        if self.odd and self.saved == 1:
            yield b"no archive"
            return
        about = dict(metadata(self.config, self.parts.layers, "x:y"))
        index, docker = json.loads(about["index.json"]), json.loads(about["manifest.json"])
        del index["manifests"][0]["annotations"], docker[0]["RepoTags"]
        about |= {
            "index.json": json.dumps(index).encode(),
            "manifest.json": json.dumps([{**docker[0], "RepoTags": None}]).encode(),
        }
        unique = {layer.diff_id: data for layer, data in zip(self.parts.layers, self.layers, strict=True)}
        layers = {layer.diff_id: layer for layer in self.parts.layers}
        yield from archive(tuple(layers.values()), unique.values(), tuple(about.items()))

    # As toolkit.image.layer_reader.LayerReader

    def reader(self, client: object, image: str, diff_ids: Sequence[str]) -> Sender:
        return self

    def describe(self, identity: str, engine: str = DOCKER) -> ImageLayers:
        if self.unreadable:
            raise Unreadable("layers of the storage driver zfs cannot be read")
        return self.parts

    def numbers(self, numbers: Sequence[int]) -> Iterator[bytes]:
        self.read.append(tuple(numbers))
        for number in numbers:
            data = self.layers[number]
            if self.flips:
                data = data[:-1] + b"!"
            yield from (data[i : i + 100_000] for i in range(0, len(data), 100_000))

    def close(self) -> None:
        pass


class Host(HostHere):
    """This machine with an engine of its own on paper; its connection can break."""

    def __init__(self, name: str, folder: Path, store: str) -> None:
        super().__init__(name)
        self.state = folder / f"{name}.json"
        self.state.write_text(json.dumps({"store": store, "images": {}, "blobs": []}))
        self.breaks_after: int | None = None
        self.alters: Callable[[bytes], bytes] = lambda data: data

    def run(self, command: Command, timeout: float | None = None) -> Result:
        if self.breaks_after == 0:
            raise Unreachable("the connection was lost", "again", self.name)
        path = f"PATH={self.state.parent / 'bin'}:{os.environ['PATH']}"
        return super().run(command.within("env", f"FAKE_DOCKER={self.state}", path), timeout)

    def stream(
        self,
        command: Command,
        sink: Sink,
        source: Iterable[bytes] | None = None,
        silence: float | None = None,
    ) -> Result:
        if self.breaks_after is not None and "load" in command.argv:
            self.breaks_after -= 1
        return super().stream(command, sink, source if source is None else [self.alters(b"".join(source))])

    @property
    def store(self) -> fake_docker.Store:
        return fake_docker.Store(self.state)

    @property
    def images(self) -> dict[str, dict[str, Any]]:
        return self.store.images

    @property
    def names(self) -> set[str]:
        return {name for image in self.images.values() for name in image["names"]}

    def loads(self) -> list[int]:
        """Bytes of each archive since the last time that this was asked."""
        log = self.state.with_suffix(".loads")
        found = [int(line) for line in log.read_text().split()] if log.is_file() else []
        log.unlink(missing_ok=True)
        return found

    def put(self, image: str, conf: bytes, *names: str, blobs: Sequence[str] = ()) -> None:
        """Let the host have an image."""
        state = json.loads(self.state.read_text())
        state["images"][image] = {"names": list(names), "config": json.loads(conf), "blobs": list(blobs)}
        state["blobs"] += blobs
        self.state.write_text(json.dumps(state))


def use(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> Sender:
    class Reader:
        def __init__(self, client: object, image: str, diff_ids: Sequence[str]) -> None:
            self.describe, self.read, self.close = sender.describe, sender.numbers, sender.close

    monkeypatch.setattr(image_source, "LayerReader", Reader)
    monkeypatch.setattr(image_source, "built_images", lambda: sender.built)
    monkeypatch.setattr(image_source.Engine, "connect", lambda: sender)
    # An export would leave its folder in this user's cache.
    monkeypatch.setenv("TMPDIR", tempfile.gettempdir())
    return sender


@contextmanager
def engines(folder: Path) -> Iterator[Callable[..., Host]]:
    """Give a function that makes hosts, whose engines answer from here."""
    (folder / "bin").mkdir()
    docker = folder / "bin" / "docker"
    docker.write_text(fake_docker.CLIENT)
    docker.chmod(0o755)
    os.mkfifo(folder / "calls")
    # Open for both, so that it has no end between two programs.
    calls = os.open(folder / "calls", os.O_RDWR)
    server = threading.Thread(target=fake_docker.serve, args=(folder, calls))
    server.start()
    try:
        yield lambda name, store, kind=Host: kind(name, folder, store)
    finally:
        (folder / "calls").write_text("\n")
        server.join()


def send(sender: Sender, *hosts: Host, engine: str = "docker") -> list[Outcome]:
    steps = tuple(SendImage(host.name, "send", "toolkit:cpu", sender.identity) for host in hosts)
    plan = Plan("p", (Phase("image", steps),))
    return list(execute(plan, {host.name: host for host in hosts}, engine=engine).outcomes)


def arrived(sender: Sender, host: Host) -> bool:
    """The image is there under its names and whole, and nothing besides what was there before."""
    found = [image for image in host.images.values() if "toolkit:cpu" in image["names"]]
    return (
        len(found) == 1
        and found[0]["names"] == [identity_reference(sender.identity), "toolkit:cpu"]
        and config_identity(found[0]["config"]) == sender.identity
        and host.store.whole(found[0])
        and not any(name.startswith(PARTIAL_REPOSITORY) for name in host.names)
    )
