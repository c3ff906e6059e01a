"""A registry to pull from: the half of the distribution protocol that `docker pull` speaks, over plain HTTP.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import subprocess
import tarfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.e2e import waiting
from toolkit.core.image import image_arch

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
_CONFIG = "application/vnd.docker.container.image.v1+json"
_LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def tiny_image(content: str, arch: str) -> tuple[bytes, bytes]:
    """The one layer, as a plain tar, and the config of an image that holds one file and runs nowhere."""
    config = {
        "architecture": arch,
        "os": "linux",
        "config": {"Cmd": ["/content"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer := tar_of(content=content.encode()))]},
    }
    return layer, json.dumps(config).encode()


def tar_of(**files: bytes) -> bytes:
    """A tar archive of these files; ``_`` in a name stands for a dot."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in files.items():
            about = tarfile.TarInfo(name.replace("_", "."))
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return packed.getvalue()


class Registry:
    """Holds tiny images; a test moves tags, locks the door, or serves one client something else."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.tags: dict[str, str] = {}
        self.tags_for: dict[str, dict[str, str]] = {}
        self.locked = False
        self.pulls: list[str] = []

    def put(self, tag: str, content: str, host: str = "") -> None:
        """Make ``tag`` an image with one file; for one host only, when one is named."""
        plain, config = tiny_image(content, image_arch(platform.machine()))
        layer = gzip.compress(plain, mtime=0)
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {"mediaType": _CONFIG, "size": len(config), "digest": _digest(config)},
                "layers": [{"mediaType": _LAYER, "size": len(layer), "digest": _digest(layer)}],
            }
        ).encode()
        self.blobs |= {_digest(blob): blob for blob in (layer, config, manifest)}
        tags = self.tags_for.setdefault(host, {}) if host else self.tags
        tags[tag] = _digest(manifest)

    def answer(self, path: str, host: str) -> tuple[int, bytes, str]:
        """Status, body and media type for one request."""
        if self.locked:
            return 401, b'{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}', ""
        words = path.strip("/").split("/")
        if words == ["v2"]:
            return 200, b"{}", "application/json"
        name = words[-1]
        if words[-2] == "manifests":
            name = {**self.tags, **self.tags_for.get(host, {})}.get(name, name)
            self.pulls.append(host)
        if name not in self.blobs:
            return 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}', ""
        return 200, self.blobs[name], _MANIFEST if words[-2] == "manifests" else "application/octet-stream"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # containerd tries TLS first, and falls back only when the answer to that begins with "HTTP/".
    default_request_version = "HTTP/1.1"
    registry: Registry
    host: str

    def do_GET(self) -> None:
        status, body, kind = self.registry.answer(self.path, self.host)
        self.send_response(status)
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        self.send_header("Content-Type", kind or "application/json")
        self.send_header("Content-Length", str(len(body)))
        if status == 200:
            self.send_header("Docker-Content-Digest", _digest(body))
        if status == 401:
            self.send_header("WWW-Authenticate", 'Basic realm="test"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        """Nothing on standard error."""


@contextmanager
def serving(lab: Path, hosts: Iterable[str], port: int) -> Iterator[Registry]:
    """Serve a registry to practice hosts, each of which finds it on this port of its own loopback.

    Docker trusts plain HTTP there without configuration. What leads to it is ssh, forwarding the port.
    """
    registry = Registry()
    settings = yaml.safe_load((lab / "hosts.yaml").read_text())
    with ExitStack() as stack:
        for host in hosts:
            handler = type("Handler", (_Handler,), {"registry": registry, "host": host})
            server = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), handler))
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            stack.enter_context(_forwarded(settings, host, port, server.server_port))
        yield registry


@contextmanager
def _forwarded(settings: dict[str, Any], host: str, port: int, to: int) -> Iterator[None]:
    about = settings["hosts"][host]
    options = (
        "ExitOnForwardFailure=yes",
        f"UserKnownHostsFile={settings['known_hosts']}",
        "IdentitiesOnly=yes",
    )
    argv = [
        "ssh",
        "-F",
        "/dev/null",
        "-N",
        "-R",
        f"127.0.0.1:{port}:127.0.0.1:{to}",
        "-i",
        about["identity_file"],
    ]
    argv += [word for option in options for word in ("-o", option)]
    process = subprocess.Popen([*argv, f"{about['user']}@{about['address']}"])
    try:
        waiting.listens(host, port, "127.0.0.1")
        yield
    finally:
        process.terminate()
        process.wait()
