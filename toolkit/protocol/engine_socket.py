"""Docker's Engine API on the Unix socket of this machine.

Programs on hosts and the client use it: a few requests cost a fifth of the ``docker`` commands with the same
answers, and Docker's SDK takes 0.15 s to import. If the docker command would connect in another way, such as
with a context or over TCP, ``Unusable`` is raised; the caller then uses the command or the SDK.
"""

from __future__ import annotations

import json
import os
import socket
import time

TYPE_CHECKING = False  # typing takes 2 ms to import on a host
if TYPE_CHECKING:
    from typing import Any

SOCKET = "/var/run/docker.sock"
# The newest version of the API that toolkit was tested with. Docker supports old versions for years: 29 knows
# 1.44 to 1.52. An engine that refuses this one makes the caller use the docker command.
NEWEST = (1, 45)
MOST_BYTES = 8 << 20  # of one answer
# Variables that make the docker command use another engine, API version or kind of connection.
VARIABLES = ("DOCKER_CONTEXT", "DOCKER_API_VERSION", "DOCKER_TLS", "DOCKER_TLS_VERIFY")
# Keys of the docker command's configuration with the same effect.
KEYS = ("currentContext", "HttpHeaders")
# Equivalent docker commands, by the start of a path.
COMMANDS = (
    ("/containers/json", "ps"),
    ("/containers/", "inspect"),
    ("/images/json", "images"),
    ("/images/", "image inspect"),
)
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:/@-")


class Unusable(Exception):
    """The docker command must be used instead."""


def socket_of(docker: str) -> str:
    """Return the socket that the docker command of this user connects to.

    Args:
        docker: path of the command.

    Raises:
        Unusable: it is a script, such as that of Podman, or does not use a socket of this machine.
    """
    with open(docker, "rb") as file:
        if file.read(4) != b"\x7fELF":
            raise Unusable(docker)
    return configured_socket()


def configured_socket() -> str:
    """Return the socket in the user's environment and Docker configuration.

    Raises:
        Unusable: they name another kind of connection, or a context.
        ValueError: the configuration is invalid.
    """
    if any(os.environ.get(name) for name in VARIABLES):
        raise Unusable("environment")
    folder = os.environ.get("DOCKER_CONFIG") or os.path.join(os.environ.get("HOME", "/"), ".docker")
    path = os.path.join(folder, "config.json")
    if os.path.exists(path):
        with open(path, "rb") as file:
            config = json.loads(file.read(MOST_BYTES).decode())
        if not isinstance(config, dict):
            config = {}  # the docker command ignores it with a warning
        if any(config.get(key) not in (None, "", {}, "default") for key in KEYS):
            raise Unusable(path)
    address = os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"
    if not address.startswith("unix:///"):
        raise Unusable(address)
    return address[len("unix://") :]


class EngineSocket:
    """The engine at a socket.

    Args:
        path: of the socket.
        seconds: for all answers, see ``allow``.

    Raises:
        Unusable: the engine is not Docker, or refuses to answer.
        OSError: the socket is missing or forbidden; TimeoutError with the words of the docker command if the
            engine did not respond in time.
        ValueError, KeyError: an answer has an unknown form.
    """

    def __init__(self, path: str, seconds: float) -> None:
        self.path = path
        self.allow(seconds)
        _, head, _ = self._get("/_ping", "")
        # Podman offers this API too. Its own command describes it better.
        if not head.get("server", "").startswith("Docker/"):
            raise Unusable("not Docker")
        major, _, minor = head["api-version"].partition(".")
        self.prefix = "/v{}.{}".format(*min(NEWEST, (int(major), int(minor))))

    def allow(self, seconds: float) -> None:
        """Raise TimeoutError for answers that are not complete after this time from now."""
        self._until = time.monotonic() + seconds

    def ask(self, path: str) -> bytes | None:
        """Return the answer, which is JSON, or None if the object does not exist.

        Raises:
            Unusable: the engine refuses to answer.
        """
        status, _, body = self._get(path, self.prefix)
        if status not in (200, 404):
            raise Unusable(status)
        return body if status == 200 else None

    def info(self) -> bytes:
        """Return the engine's description of itself, in the newest version of its API.

        In an older version, engines leave out newer fields, such as their containerd and CDI devices.

        Raises:
            Unusable: the engine refuses to answer.
        """
        status, _, body = self._get("/info", "")
        if status != 200:
            raise Unusable(status)
        return body

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
            if not PLAIN.issuperset(name):
                raise Unusable(name)
            body = self.ask(f"/{kind}/{name}/json")
            if body is not None:
                json.loads(body.decode())  # complete, so that no other description becomes unreadable
                bodies.append(body.strip())
        return bodies

    def _get(self, path: str, prefix: str) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body; an empty prefix means the engine's newest version of the API."""
        try:
            data = self._answer(prefix + path)
        except OSError as error:
            # Before Python 3.10, the error of a socket is not a TimeoutError.
            if time.monotonic() >= self._until:
                command = next((command for start, command in COMMANDS if path.startswith(start)), "info")
                raise TimeoutError(command) from error
            raise
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, _, value in pairs}, body

    def _answer(self, path: str) -> bytes:
        """Return what the engine sends. It closes a connection of HTTP 1.0 after its answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            self._limit(link)
            link.connect(self.path)
            link.sendall(f"GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
            data = bytearray()
            while True:
                self._limit(link)
                piece = link.recv(1 << 16)
                if not piece:
                    return bytes(data)
                data += piece
                if len(data) > MOST_BYTES:
                    raise Unusable(path)

    def _limit(self, link: socket.socket) -> None:
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError(self.path)
        link.settimeout(left)
