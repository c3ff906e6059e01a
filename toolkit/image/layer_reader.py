"""Image layers read directly from the local engine, through short-lived containers of the image.

Such a container runs the program transfer.image_layers from its command line. It mounts the engine's layer
folders read-only, and has no network and no capability except to read files of other users. It exits when its
standard input is closed.
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
from toolkit.image.layers import ImageLayers, Layer
from toolkit.protocol.decode import MOST_BYTES, decode_json, load_json
from toolkit.protocol.relay import LayersSeen

_CHUNK = 2**18
_LAST_WORDS = 1.0  # seconds
# The capability to read files of other users also allows opening any file of the host by its handle, also
# outside the mounted folders. Reading layers needs neither that nor changes of mounts or namespaces.
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
# Folders of containerd's data: next to the engine's, below it, in Docker Desktop's virtual machine.
_CONTAINERD = ("/var/lib/containerd", "{root}/containerd/daemon", "/var/lib/desktop-containerd/daemon")
_FAULTS = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class Unreadable(ImageError):
    """The layers cannot be read one by one; the image must be exported as a single archive."""


class LayerReader:
    """Reader of the layers of one image, which is identified by its Id and its diff ids.

    Args:
        client: client of the engine.
        image: the engine's Id of the image.
        diff_ids: diff ids of its layers, base first.
    """

    def __init__(self, client: Any, image: str, diff_ids: Sequence[str]) -> None:
        self._client, self._image, self._diff_ids = client, image, tuple(diff_ids)
        self._store = ""
        self._mounts: list[Mount] = []
        self._running: set[_Output] = set()

    def describe(self, identity: str, engine: str = DOCKER) -> ImageLayers:
        """Return the image's config and layers, and remember how its layers can be read.

        Args:
            engine: container engine of the cluster's hosts.

        Raises:
            Unreadable: the layers cannot be read one by one; the error contains the reason.
        """
        last: Unreadable | None = None
        for store, mounts in self._ways():
            self._store, self._mounts = store, mounts
            try:
                with self._run("describe") as output:
                    seen = decode_json(LayersSeen, _line(output))
                config = base64.b64decode(seen.config)
                if config_identity(load_json(config), engine) != identity:
                    raise Unreadable("the configuration that toolkit read does not belong to the image")
                pairs = zip(self._diff_ids, seen.sizes, strict=True)
                return ImageLayers(config, tuple(Layer(diff_id, size) for diff_id, size in pairs))
            except Unreadable as error:
                last = last or error
            except ValueError as error:
                last = last or Unreadable(
                    f"the program that reads the image layers returned invalid output: {error}"
                )
        raise last or Unreadable("the container engine on your machine has no layers of the image")

    def _ways(self) -> Iterator[tuple[str, list[Mount]]]:
        try:
            info = self._client.info()
        except _FAULTS as error:
            raise Unreadable(
                f"the container engine on your machine does not report its layer folder: {error}"
            ) from error
        root = str(info.get("DockerRootDir") or "")
        driver = str(info.get("Driver") or "")
        if "io.containerd.snapshotter" in str(info.get("DriverStatus")):
            for place in _CONTAINERD:
                content = f"{place.format(root=root)}/io.containerd.content.v1.content"
                yield "containerd", [_mount(content, "/store/content")]
        elif driver == "overlay2":
            # Only these two: the root folder also contains the mounted file systems of running containers.
            yield (
                "overlay2",
                [
                    _mount(f"{root}/image/overlay2", "/store/image"),
                    _mount(f"{root}/overlay2", "/store/layers"),
                ],
            )
        else:
            raise Unreadable(f"toolkit cannot read layers of the storage driver {driver or '(unknown)'}")

    def read(self, numbers: Sequence[int]) -> Iterator[bytes]:
        """Yield the concatenated plain tars of some layers, each checked against its diff id.

        The last bytes of a layer are yielded only after its digest has been verified.

        Raises:
            Unreadable: the engine returns different bytes or none.
        """
        with self._run("read", ",".join(map(str, numbers))) as output:
            yield from output

    def _run(self, *words: str) -> _Output:
        config = {
            "entrypoint": ["python3"],
            # -I -S: Python ignores the image's start files and modules.
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
            # Files in layers belong to various users, and some are readable only by their owner.
            "cap_add": ["DAC_READ_SEARCH"],
            # label=disable: SELinux denies every container access to the engine's folders.
            "security_opt": ["no-new-privileges", "label=disable", f"seccomp={_SECCOMP}"],
            # With user namespaces, the folders belong to root of the host, not to root of containers.
            "userns_mode": "host",
            "pids_limit": 64,
            "mounts": self._mounts,
            "auto_remove": True,
            # With any other driver, the engine writes every byte to a log on its disk.
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
        """Stop the running readers."""
        for output in list(self._running):
            output.close()


def verified(pieces: Iterator[bytes], layers: Sequence[Layer]) -> Iterator[bytes]:
    """Yield the layers, the last piece of each only after its digest has been verified.

    Raises:
        Unreadable: a layer does not match its diff id.
    """
    pieces, rest = filter(None, pieces), b""
    for layer in layers:
        sum_, left = hashlib.sha256(), layer.size
        while left:
            piece = rest or next(pieces, b"")
            if not piece:
                raise Unreadable(
                    f"the container engine on your machine returned only part of layer {layer.diff_id}"
                )
            piece, rest = piece[:left], piece[left:]
            left -= len(piece)
            sum_.update(piece)
            if left:
                yield piece
        if f"sha256:{sum_.hexdigest()}" != layer.diff_id:
            raise Unreadable(
                f"the container engine on your machine returned bytes that do not match layer {layer.diff_id}"
            )
        if layer.size:
            yield piece
    # Do not wait for more bytes.
    if rest:
        raise Unreadable(
            "the container engine on your machine returned more data than the layers of the image contain"
        )


class _Output:
    """Output of a container as an iterator; closing it removes the container."""

    def __init__(self, client: Any, container: str, forget: Callable[[_Output], None]) -> None:
        self._api, self._container, self._forget = client.api, container, forget
        self._errors, self._closed = b"", False
        self._buffer = bytearray()
        self._socket: Any = None
        try:
            # Attach before the start, so that no output is missed. The connection keeps standard input open.
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
        # https://docs.docker.com/reference/api/engine: 1 is standard output, 2 standard error. The consumer
        # stops after the last layer: over ssh (DOCKER_HOST=ssh://…) the stream has no end.
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
            lines = self._errors.decode(errors="replace").strip().splitlines()
            raise Unreadable(lines[-1] if lines else "the layer reader failed")

    def _take(self, count: int, end: bool = False) -> bytes:
        while len(self._buffer) < count:
            # After an error message no more output follows.
            if self._errors and not select.select([self._socket], [], [], _LAST_WORDS)[0]:
                return b""
            data = read_socket(self._socket, _CHUNK)
            if not data:
                if end and not self._buffer:
                    return b""
                raise Unreadable("the layer reader exited before it sent all of its output")
            self._buffer += data
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def close(self) -> None:
        self._forget(self)
        # Close the connection first: an engine does not remove a container whose output has no reader. This
        # also closes its standard input, and the container exits.
        if self._socket is not None and not self._closed:
            self._closed = True
            with contextlib.suppress(*_FAULTS):
                # close() alone leaves it open: docker's library keeps a reference in the response.
                getattr(self._socket, "_sock", self._socket).shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(*_FAULTS):
                self._socket.close()
        with contextlib.suppress(*_FAULTS):  # usually auto_remove has removed it
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
