"""Images made of layers that tests choose, on top of one that can run Python; engines to send them from."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import socket
import subprocess
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from tests.e2e.world import on, outer
from toolkit.core.image import config_identity, image_facts
from toolkit.image.archive import archive
from toolkit.image.layer_reader import LayerReader
from toolkit.image.layers import ImageLayers, Layer, digest, metadata
from toolkit.protocol.decode import decode
from toolkit.protocol.engine import ImageInspect
from toolkit.remote.engine import Engine

NAME = "toolkit-images"
# The image's first layers: Debian, and Python with its ssh. They run alone.
TOOLS = 4


@dataclass(frozen=True)
class Made:
    """An image that this machine's engine holds."""

    tag: str
    identity: str
    parts: ImageLayers

    @property
    def size(self) -> int:
        """Bytes of the layers above the base."""
        return sum(layer.size for layer in self.parts.layers[TOOLS:])


def base_parts() -> ImageLayers:
    """The layers and the configuration of toolkit:cpu."""
    engine = Engine.connect()
    image = engine.image("toolkit:cpu")
    assert image is not None, "make image-cpu"
    return LayerReader(engine.client, image.id, image.diff_ids).describe(image.identity)


def layer(name: str, size: int, seed: int = 0) -> bytes:
    """The tar of one file of bytes that cannot be compressed."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        info = tarfile.TarInfo(f"made/{name}")
        info.size = size
        tar.addfile(info, io.BytesIO(random.Random(f"{name} {seed}").randbytes(size)))
    return out.getvalue()


def make(
    base: ImageLayers,
    tag: str,
    layers: Sequence[bytes],
    tools: int = TOOLS,
    config: Mapping[str, object] | None = None,
    **labels: str,
) -> Made:
    """Load an image made of the first N layers of the base, and these layers, into this machine's engine.

    Args:
        config: keys of the image's configuration that replace those of the test.
    """
    own = tuple(Layer(digest(one), len(one)) for one in layers)
    whole = (*base.layers[:tools], *own)
    conf = json.loads(base.config)
    env = [line for line in conf["config"]["Env"] if line.startswith("PATH=")]
    about = {
        **{key: conf[key] for key in ("architecture", "os")},
        "created": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        "config": {"Env": env, "Labels": {"toolkit.flavor": "images", **labels}, **(config or {})},
        "rootfs": {"type": "layers", "diff_ids": [one.diff_id for one in whole]},
        "history": [],
    }
    config = json.dumps(about).encode()
    contents = {one.diff_id: data for one, data in zip(own, layers, strict=True)}
    parts = ImageLayers(config, whole)
    sent = tuple({one.diff_id: one for one in own}.values())
    data = archive(sent, (contents[one.diff_id] for one in sent), metadata(config, whole, f"{NAME}:{tag}"))
    subprocess.run(["docker", "load", "-q"], input=b"".join(data), check=True, capture_output=True)
    made = Made(f"{NAME}:{tag}", config_identity(about), parts)
    found = Engine.connect().image(made.tag)
    assert found is not None and found.identity == made.identity
    return made


def inspect(host: str, name: str) -> dict[str, object]:
    (found,) = json.loads(on(host, "docker", "image", "inspect", name))
    return dict(found)


def is_whole(host: str, made: Made) -> bool:
    """The host has it under its name, runs it, and gives all of it back."""
    names = f'docker images -q --filter reference="{made.tag}"'
    look = f'docker save "{made.tag}" | wc -c; docker run --rm --network none "{made.tag}" wc -c /made/last'
    listed = on(host, "sh", "-c", names).split()
    saved, counted = on(host, "sh", "-c", look).splitlines()[:2]
    least = sum(one.size for one in made.parts.layers)
    facts = image_facts(decode(ImageInspect, inspect(host, made.tag)))
    return (
        bool(listed)
        and int(saved) > least
        and facts.identity == made.identity
        and counted.endswith("/made/last")
    )


# Of the interface with the host's own address; hosts give it different names.
CARD = "card=$(ip -o -4 addr | awk '$2 !~ /^(lo|docker|br-)/ {print $2; exit}')"


def received(host: str, way: str = "rx") -> int:
    """Bytes that came in over the host's network interface so far; ``tx`` for those that went out."""
    return int(on(host, "sh", "-c", f"{CARD}; cat /sys/class/net/$card/statistics/{way}_bytes"))


def parts_on(host: str) -> list[str]:
    """Names of the parts of images on a host."""
    return on(host, "docker", "images", "--format", "{{.Tag}}", "toolkit-part").split()


def readers() -> str:
    """Containers of this machine's engine that read layers of these tests' images.

    Those of other images belong to tests that run at the same time on another lab.
    """
    ask = ["docker", "ps", "--all", "--quiet", "--filter", "label=toolkit.reader"]
    found = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    own = ["docker", "images", "--quiet", "--no-trunc", NAME]
    images = set(subprocess.run(own, check=True, capture_output=True, text=True).stdout.split())
    # One that ends meanwhile is missing from the answer, which is what is asked.
    of = ["docker", "inspect", "--format", "{{.Id}} {{.Image}}", *found]
    said = subprocess.run(of, capture_output=True, text=True).stdout if found else ""
    # For one that is gone docker prints an empty line.
    rows = [line for line in said.splitlines() if line.strip()]
    return "".join(f"{line}\n" for line in rows if line.split()[-1] in images)


def forget(host: str) -> None:
    """Remove every image of these tests from a host, base included where nothing else has it."""
    text = (
        "for image in $(for made in images line; do "
        "docker images -q --no-trunc --filter label=toolkit.flavor=$made; done | sort -u) "
        f"$(docker images -q --no-trunc toolkit-part) $(docker images -q --no-trunc {NAME}); "
        "do docker rmi -f $image; done; true"
    )
    on(host, "sh", "-c", text)


@contextmanager
def engine_of(host: str, folder: Path) -> Iterator[str]:
    """A socket here that leads to a practice host's engine; returns what DOCKER_HOST is to be."""
    path = folder / f"{host}.sock"
    door = socket.socket(socket.AF_UNIX)
    door.bind(str(path))
    door.listen()

    def serve() -> None:
        while True:
            try:
                caller, _ = door.accept()
            except OSError:
                return
            words = ["docker", "exec", "-i", outer(host), "docker", "system", "dial-stdio"]
            env = {key: value for key, value in os.environ.items() if key != "DOCKER_HOST"}
            process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
            for work in (_to, _from):
                threading.Thread(target=work, args=(caller, process), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"unix://{path}"
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()


def _to(caller: socket.socket, process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    try:
        while data := caller.recv(65536):
            process.stdin.write(data)
            process.stdin.flush()
    except OSError:
        pass
    finally:
        process.stdin.close()


def _from(caller: socket.socket, process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    try:
        while data := os.read(process.stdout.fileno(), 65536):
            caller.sendall(data)
    except OSError:
        process.kill()
    finally:
        process.wait()
        # While the other thread waits in recv, close alone does not end the connection.
        with contextlib.suppress(OSError):
            caller.shutdown(socket.SHUT_RDWR)
        caller.close()
