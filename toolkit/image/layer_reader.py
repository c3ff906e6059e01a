"""Layers out of this machine's engine one by one, through short-lived containers of the image itself.

What such a container gets: the program transfer.image_layers as its command line, the engine's folders with
layers read-only, no network, no capability but to read what belongs to others. It ends with its standard
input.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import select
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import docker.errors
import requests.exceptions
from docker.types import Mount
from docker.utils.socket import read as read_socket

from toolkit.core.engines import DOCKER
from toolkit.core.host_programs import packed
from toolkit.core.image import config_identity
from toolkit.errors import ImageError
from toolkit.image.layers import ImageParts, Layer
from toolkit.protocol.decode import MOST_BYTES, decode_json, load_json
from toolkit.protocol.relay import LayersSeen

_CHUNK = 2**18
_LAST_WORDS = 1.0  # seconds
# The right to read what belongs to others brings the right to open any file of the host by a handle, wherever
# it is mounted. Neither that nor a change of mounts or of namespaces is needed to read.
_FORBIDDEN = (
    *(
        "open_by_handle_at",
        "name_to_handle_at",
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "setns",
        "unshare",
    ),
    *("open_tree", "move_mount", "fsopen", "fsmount", "fspick", "fsconfig", "mount_setattr", "quotactl"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd", "bpf", "perf_event_open"),
    *("userfaultfd", "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module"),
    *("finit_module", "delete_module", "io_uring_setup", "socket", "socketpair", "connect", "bind"),
)
_SECCOMP = json.dumps(
    {
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{"names": _FORBIDDEN, "action": "SCMP_ACT_ERRNO", "errnoRet": errno.EPERM}],
    }
)
# Where containerd keeps its data: beside the engine, below it, in Docker Desktop's machine.
_CONTAINERD = ("/var/lib/containerd", "{root}/containerd/daemon", "/var/lib/desktop-containerd/daemon")
_FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class Unreadable(ImageError):
    """The engine's layers cannot be read one by one; the image must be saved whole."""


class LayerReader:
    """Reads the layers of one image, which is fixed by its Id and its diff ids.

    Args:
        client: of the engine.
        image: the engine's Id of the image.
        diff_ids: of its layers, base first.
    """

    def __init__(self, client: Any, image: str, diff_ids: Sequence[str]) -> None:
        self._client, self._image, self._diff_ids = client, image, tuple(diff_ids)
        self._store = ""
        self._mounts: list[Mount] = []
        self._running: set[_Output] = set()

    def describe(self, identity: str, engine: str = DOCKER) -> ImageParts:
        """Return what the image consists of; finds out on the way how its layers can be read.

        Args:
            engine: of the cluster's hosts.

        Raises:
            Unreadable: with the reason.
        """
        last: Unreadable | None = None
        for store, mounts in self._ways():
            self._store, self._mounts = store, mounts
            try:
                with self._run("describe") as output:
                    said = decode_json(LayersSeen, _line(output))
                config = base64.b64decode(said.config)
                if config_identity(load_json(config), engine) != identity:
                    raise Unreadable("its config is not that of the image")
                pairs = zip(self._diff_ids, said.sizes, strict=True)
                return ImageParts(config, tuple(Layer(diff_id, size) for diff_id, size in pairs))
            except Unreadable as error:
                last = last or error
            except ValueError as error:
                last = last or Unreadable(f"the reader's answer makes no sense: {error}")
        raise last or Unreadable("the engine has no layers")

    def _ways(self) -> Iterator[tuple[str, list[Mount]]]:
        try:
            info = self._client.info()
        except _FAULTS as error:
            raise Unreadable(f"the engine does not say where it keeps layers: {error}") from error
        root = str(info.get("DockerRootDir") or "")
        driver = str(info.get("Driver") or "")
        if "io.containerd.snapshotter" in str(info.get("DriverStatus")):
            for place in _CONTAINERD:
                content = f"{place.format(root=root)}/io.containerd.content.v1.content"
                yield "containerd", [_mount(content, "/store/content")]
        elif driver == "overlay2":
            # Only these two: below the root stand the mounted file systems of running containers as well.
            yield (
                "overlay2",
                [
                    _mount(f"{root}/image/overlay2", "/store/image"),
                    _mount(f"{root}/overlay2", "/store/layers"),
                ],
            )
        else:
            raise Unreadable(f"the engine keeps layers with {driver or 'an unknown driver'}")

    def read(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield the plain tars of some layers, one behind the other, each checked against its diff id.

        The last bytes of a layer come only when all of it has proved right.

        Raises:
            Unreadable: the engine gives other bytes, or none.
        """
        with self._run("read", ",".join(map(str, numbers))) as output:
            yield from output

    def _run(self, *words: str) -> _Output:
        config = {
            "entrypoint": ["python3"],
            # -I -S: nothing of the image's own start files or modules takes part.
            "command": [
                *("-I", "-S", "-c", packed("transfer.image_layers")),
                *(self._store, words[0], self._image, *words[1:], *self._diff_ids),
            ],
            "user": "0:0",
            "working_dir": "/",
            "stdin_open": True,
            "labels": {"toolkit.reader": "1"},
            "healthcheck": {"test": ["NONE"]},
        }
        limits = {
            "network_mode": "none",
            "read_only": True,
            "cap_drop": ["ALL"],
            # Files in layers belong to all kinds of users, and some may be read by nobody else.
            "cap_add": ["DAC_READ_SEARCH"],
            # label=disable: SELinux would keep every container out of the engine's folders.
            "security_opt": ["no-new-privileges", "label=disable", f"seccomp={_SECCOMP}"],
            # The folders belong to the root of the host, not to that of containers, where the two differ.
            "userns_mode": "host",
            "pids_limit": 64,
            "mounts": self._mounts,
            "auto_remove": True,
            # Otherwise the engine would write every byte to a log on its disk.
            "log_config": {"Type": "none"},
        }
        try:
            host_config = self._client.api.create_host_config(**limits)
            made = self._client.api.create_container(self._image, host_config=host_config, **config)
        except _FAULTS as error:
            raise Unreadable(_words(error)) from error
        output = _Output(self._client, made["Id"], self._running.discard)
        self._running.add(output)
        return output

    def close(self) -> None:
        """End what still reads."""
        for output in list(self._running):
            output.close()


def verified(pieces: Iterator[bytes], layers: Sequence[Layer]) -> Iterator[bytes]:
    """Pass layers on, the last piece of each only when all of it has proved to be what its diff id names.

    Raises:
        Unreadable: it is not.
    """
    pieces, rest = filter(None, pieces), b""
    for layer in layers:
        sum_, left = hashlib.sha256(), layer.size
        while left:
            piece = rest or next(pieces, b"")
            if not piece:
                raise Unreadable(f"the engine gave too little of the layer {layer.diff_id}")
            piece, rest = piece[:left], piece[left:]
            left -= len(piece)
            sum_.update(piece)
            if left:
                yield piece
        if f"sha256:{sum_.hexdigest()}" != layer.diff_id:
            raise Unreadable(f"the engine gave other bytes than those of the layer {layer.diff_id}")
        if layer.size:
            yield piece
    # What may still come is not waited for.
    if rest:
        raise Unreadable("the engine gave more than the layers")


class _Output:
    """What a container writes, as an iterator; the container goes with it."""

    def __init__(self, client: Any, container: str, forget: Callable[[_Output], None]) -> None:
        self._api, self._container, self._forget = client.api, container, forget
        self._errors, self._closed = b"", False
        self._buffer = bytearray()
        self._socket: Any = None
        try:
            # Before it starts, so that nothing is missed; standard input is held open by it.
            wanted = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
            self._socket = self._api.attach_socket(container, params=wanted)
            self._api.start(container)
        except _FAULTS as error:
            self.close()
            raise Unreadable(_words(error)) from error

    def __enter__(self) -> Iterator[bytes]:
        return self._frames()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _frames(self) -> Iterator[bytes]:
        # https://docs.docker.com/reference/api/engine: 1 is standard output, 2 standard error. Whoever reads
        # stops when all is there: over ssh, as with DOCKER_HOST=ssh://…, no end comes.
        try:
            while head := self._take(8, end=True):
                stream, size = struct.unpack(">BxxxL", head)
                data = self._take(size)
                if stream == 1:
                    yield data
                else:
                    self._errors = (self._errors + data)[-2000:]
        except _FAULTS as error:
            raise Unreadable(_words(error)) from error
        if self._errors:
            said = self._errors.decode(errors="replace").strip().splitlines()
            raise Unreadable(said[-1] if said else "the reader failed")

    def _take(self, count: int, end: bool = False) -> bytes:
        while len(self._buffer) < count:
            # Once it has complained nothing else comes.
            if self._errors and not select.select([self._socket], [], [], _LAST_WORDS)[0]:
                return b""
            data = read_socket(self._socket, _CHUNK)
            if not data:
                if end and not self._buffer:
                    return b""
                raise Unreadable("the reader ended early")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def close(self) -> None:
        self._forget(self)
        # The connection first: an engine does not remove a container whose output waits for us. That is also
        # the end of its standard input, with which it ends.
        if self._socket is not None and not self._closed:
            self._closed = True
            with contextlib.suppress(*_FAULTS):
                # Closing alone leaves it open: docker's library keeps the response, which holds it too.
                getattr(self._socket, "_sock", self._socket).shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(*_FAULTS):
                self._socket.close()
        with contextlib.suppress(*_FAULTS):  # most often it has removed itself
            self._api.remove_container(self._container, force=True, v=True)


def _line(pieces: Iterator[bytes]) -> bytes:
    line = b""
    for piece in pieces:
        line += piece
        if line.endswith(b"\n") or len(line) > MOST_BYTES:
            break
    return line


def _mount(source: str, target: str) -> Mount:
    # rslave: the engine refuses rprivate for folders below its own root.
    mount = Mount(target, source, type="bind", read_only=True, propagation="rslave")
    mount["BindOptions"]["NonRecursive"] = True
    return mount


def _words(error: Exception) -> str:
    return " ".join(str(getattr(error, "explanation", None) or error).split())
