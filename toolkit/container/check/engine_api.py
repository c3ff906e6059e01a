"""Facts of a Docker engine on its host, through the Engine API on the engine's Unix socket.

The script of the probe (``toolkit/cluster/probe.py``) starts the program once per host, because one process
with a few requests costs a fifth of the ``docker`` commands that print the same. The program writes the
sections of the script, and, to a second descriptor, the engine's data root and the mounted folders.

The exit status is 0 after all sections, and ``LATE`` if the engine did not respond in time. After any other
status the program has printed nothing. Then the script runs the docker commands, whose messages explain the
reason: the socket is missing or forbidden, docker uses another engine, or an answer has an unknown form.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

SOCKET = "/var/run/docker.sock"
LATE, SECONDS = 124, 20
# The newest version of the API that toolkit was tested with. Docker supports old versions for years: 29 knows
# 1.44 to 1.52. An engine that refuses this one makes the script use the docker command.
NEWEST = (1, 45)
MOST_BYTES = 8 << 20  # of one answer
# Variables that make the docker command use another engine, API version or kind of connection.
VARIABLES = ("DOCKER_CONTEXT", "DOCKER_API_VERSION", "DOCKER_TLS", "DOCKER_TLS_VERIFY")
# Keys of the docker command's configuration with the same effect.
KEYS = ("currentContext", "HttpHeaders")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@-")


class Unusable(Exception):
    """The docker command has to be used."""


def socket_of(docker: str) -> str:
    """Return the socket that the docker command of this user connects to.

    Args:
        docker: path of the command.

    Raises:
        Unusable: it is a script, such as that of Podman, or does not use a socket of this host.
    """
    with open(docker, "rb") as file:
        if file.read(4) != b"\x7fELF":
            raise Unusable(docker)
    if any(os.environ.get(name) for name in VARIABLES):
        raise Unusable("environment")
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.environ.get("HOME", "/"), ".docker")
    path = os.path.join(folder, "config.json")
    if os.path.exists(path):
        with open(path, "rb") as file:
            config = json.loads(file.read(MOST_BYTES).decode())
        if any(config.get(key) not in (None, "", {}, "default") for key in KEYS):
            raise Unusable(path)
    address = os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"
    if not address.startswith("unix:///"):
        raise Unusable(address)
    return address[len("unix://") :]


class Engine:
    """The engine at a socket."""

    def __init__(self, path: str) -> None:
        self.path, self.prefix = path, ""
        _, head, _ = self._get("/_ping")
        # Podman offers this API too. Its own command describes it better.
        if not head.get("server", "").startswith("Docker/"):
            raise Unusable("not Docker")
        major, _, minor = head["api-version"].partition(".")
        self.prefix = "/v{}.{}".format(*min(NEWEST, (int(major), int(minor))))

    def ask(self, path: str) -> bytes | None:
        """Return the answer, which is JSON, or None if the object does not exist.

        Raises:
            Unusable: the engine refuses to answer.
        """
        status, _, body = self._get(path)
        if status not in (200, 404):
            raise Unusable(status)
        return body if status == 200 else None

    def listed(self, kind: str, filters: str) -> Any:
        """Return the containers or images that a list contains."""
        body = self.ask(f"/{kind}/json?{filters}")
        if body is None:
            raise Unusable(kind)
        return json.loads(body.decode())

    def described(self, kind: str, names: list[str]) -> list[bytes]:
        """Return the complete description of each container or image that still exists."""
        bodies = []
        for name in names:
            if not _PLAIN.issuperset(name):
                raise Unusable(name)
            body = self.ask(f"/{kind}/{name}/json")
            if body is not None:
                json.loads(body.decode())  # complete, so that no other description becomes unreadable
                bodies.append(body.strip())
        return bodies

    def _get(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body. The engine closes a connection of HTTP 1.0 after its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.connect(self.path)
            link.sendall(f"GET {self.prefix}{path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            data = bytearray()
            while True:
                piece = link.recv(1 << 16)
                if not piece:
                    break
                data += piece
                if len(data) > MOST_BYTES:
                    raise Unusable(path)
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body


def sections(engine: Engine, image: str, repository: str, label: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the sections of the probe, and the data root followed by the mounted folders.

    Args:
        image: its name.
        repository: all images of this repository are described too.
        label: containers have it.
    """
    info = engine.ask("/info")
    if info is None:
        raise Unusable("info")
    words = json.loads(info.decode())
    signal.alarm(SECONDS)
    labeled = engine.listed("containers", f"all=1&filters={_filter('label', label)}")
    containers = engine.described("containers", [one["Id"] for one in labeled])
    told = [words["DockerRootDir"]]
    used = []
    for body in containers:
        container = json.loads(body.decode())
        used.append(container["Image"])
        if container["State"]["Running"]:
            mounted = (mount.get("Source", "") for mount in container.get("Mounts") or ())
            told += [path for path in mounted if path and "\n" not in path]
    found = {"docker": info.strip(), "containers": _array(containers), "unlisted": b""}
    if "io.containerd.snapshotter" in json.dumps(words.get("DriverStatus")):
        # To list images takes long with this store, so one list serves two purposes.
        every = engine.listed("images", "all=1")
        found["listed"] = "\n".join(one["Id"] for one in every).encode()
        marks = (f"{repository}:", f"{repository}@")
        names = [
            one["Id"]
            for one in every
            if any(name.startswith(marks) for name in (*(one["RepoTags"] or ()), *(one["RepoDigests"] or ())))
        ]
    else:
        names = [one["Id"] for one in engine.listed("images", f"filters={_filter('reference', repository)}")]
    # Other users can have removed the names of a container's image.
    found["images"] = _array(engine.described("images", list(dict.fromkeys((image, *names, *used)))))
    return found, told


def _filter(key: str, value: str) -> str:
    """Return the parameter for {"key":["value"]}."""
    if not _PLAIN.issuperset(value):
        raise Unusable(value)
    return f"%7B%22{key}%22%3A%5B%22{value}%22%5D%7D"


def _array(bodies: list[bytes]) -> bytes:
    return b"[" + b",".join(bodies) + b"]"


def main() -> int:
    """Print the sections; the arguments are those of ``sections``, framed by those of the script."""
    nonce, docker, beside, image, repository, label = sys.argv[1:]
    signal.signal(signal.SIGALRM, lambda *_: os._exit(LATE))
    signal.alarm(SECONDS)
    found, told = sections(Engine(socket_of(docker)), image, repository, label)
    lines = "\n|".join(f"{path}|" for path in told).encode(errors="replace")
    signal.alarm(0)
    for name, body in found.items():
        sys.stdout.buffer.write(b"\n%s %s %d\n%s" % (nonce.encode(), name.encode(), len(body), body))
    sys.stdout.buffer.flush()
    with open(int(beside), "wb") as shell:
        shell.write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
