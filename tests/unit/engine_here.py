"""A Docker engine on paper: recorded answers of the Engine API at a Unix socket, and of the docker command.

``tests/golden/engine`` has the answers of engines with a running container and one image. Each file was
recorded on a practice host, and does not contain the parts that toolkit does not read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "golden" / "engine"
ENGINES = sorted(path.stem for path in RECORDED.glob("*.json"))

# Unit tests open no socket, so another process serves it. Arguments: socket, answers, log of requests.
_SERVER = r"""
import json, socket, sys, threading, time
answers = json.load(open(sys.argv[2]))
def serve(link):
    data = b""
    while b"\r\n\r\n" not in data:
        data += link.recv(4096)
    path = data.split()[1].decode()
    with open(sys.argv[3], "a") as log:
        log.write(path + "\n")
    plain = path[path.index("/", 1):] if path.startswith("/v1.") else path
    known = answers["api"].get(path) or answers["api"].get(plain)
    status, body = known or (404, {"message": "not found"})
    if status == "silent":
        time.sleep(60)
    text = body if isinstance(body, str) else json.dumps(body) + "\n"
    head = f"HTTP/1.0 {status} X\r\nApi-Version: {answers['api_version']}\r\nServer: {answers['server']}"
    data = f"{head}\r\n\r\n{text}".encode()
    if status == "slow":
        while True:
            link.sendall(b"H")
            time.sleep(0.1)
    link.sendall(data)
    link.close()
with socket.socket(socket.AF_UNIX) as listener:
    listener.bind(sys.argv[1])
    listener.listen(16)
    print("ready", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""


@dataclass(frozen=True)
class Served:
    """A served engine.

    Args:
        address: the value of DOCKER_HOST.
    """

    address: str
    log: Path

    @property
    def requests(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def recorded(engine: str) -> dict[str, Any]:
    """Return the recording of an engine: ``server``, ``api_version``, ``api`` and ``commands``."""
    return dict(json.loads((RECORDED / f"{engine}.json").read_text()))


@contextmanager
def served(folder: Path, answers: Mapping[str, Any]) -> Iterator[Served]:
    """Serve the answers at a socket in the folder.

    Args:
        answers: ``api`` maps a path to status and body; a path without a version is for every version. The
            status ``silent`` never answers; ``slow`` sends a byte every 0.1 s.
    """
    file, log, path = folder / "answers.json", folder / "requests", folder / "engine.sock"
    file.write_text(json.dumps({**answers, "api": {"/_ping": [200, "OK"], **answers["api"]}}))
    argv = [sys.executable, "-I", "-c", _SERVER, str(path), str(file), str(log)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            yield Served(f"unix://{path}", log)
        finally:
            process.kill()


def docker_script(folder: Path, answers: Mapping[str, Any]) -> str:
    """Return a shell script that prints what the docker command of that engine printed."""
    said = answers["commands"]
    texts = {
        "info --format": json.dumps(said["info"], separators=(",", ":")),
        "ps -aq": "\n".join(said["ps"]),
        "inspect *": json.dumps(said["inspect"], indent=4),
        "images -aq": "\n".join(said["images -aq --no-trunc"]),
        "images -q": "\n".join(said["images -q --no-trunc toolkit.local/verified"]),
        "image inspect": json.dumps(said["image inspect"], indent=4),
    }
    lines = ["#!/bin/sh", 'case "$1 $2" in']
    for number, (words, text) in enumerate(texts.items()):
        file = folder / f"said-{number}"
        file.write_text(text + "\n")
        pattern = words if words.endswith("*") else f"'{words}'"
        lines.append(f"  {pattern.replace(' *', chr(92) + ' *')}) cat '{file}' ;;")
    return "\n".join([*lines, "esac"]) + "\n"
