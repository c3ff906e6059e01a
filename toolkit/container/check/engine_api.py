"""Facts of a Docker engine on its host, through the Engine API on the engine's Unix socket.

The script of the probe (``toolkit/cluster/probe.py``) starts the program once per host. The program writes
the sections of the script, and, to a second descriptor, the engine's data root and the mounted folders.

The exit status is 0 after all sections. It is ``LATE`` if the engine did not respond in time; the second
descriptor then gets the docker command with the same question. After any other status the program has printed
nothing. Then the script runs the docker commands, whose messages explain the reason: the socket is missing or
forbidden, docker uses another engine, or an answer has an unknown form.
"""

from __future__ import annotations

import json
import sys

from toolkit.protocol.engine_socket import PLAIN, EngineSocket, Unusable, socket_of

LATE, SECONDS = 124, 20


def sections(
    engine: EngineSocket, image: str, repository: str, label: str
) -> tuple[dict[str, bytes], list[str]]:
    """Return the sections of the probe, and the data root followed by the mounted folders.

    Args:
        image: its name.
        repository: all images of this repository are described too.
        label: containers have it.
    """
    info = engine.info()
    words = json.loads(info.decode())
    engine.allow(SECONDS)
    labeled = engine.listed("containers", f"all=1&filters={_filter('label', label)}")
    containers = engine.described("containers", [one["Id"] for one in labeled])
    paths = [words["DockerRootDir"]]
    used = []
    for body in containers:
        container = json.loads(body.decode())
        used.append(container["Image"])
        if container["State"]["Running"]:
            mounted = (mount.get("Source", "") for mount in container.get("Mounts") or ())
            paths += [path for path in mounted if path and "\n" not in path]
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
    return found, paths


def _filter(key: str, value: str) -> str:
    """Return the parameter for {"key":["value"]}."""
    if not PLAIN.issuperset(value):
        raise Unusable(value)
    return f"%7B%22{key}%22%3A%5B%22{value}%22%5D%7D"


def _array(bodies: list[bytes]) -> bytes:
    return b"[" + b",".join(bodies) + b"]"


def main() -> int:
    """Print the sections; the arguments are those of ``sections``, framed by those of the script."""
    nonce, docker, beside, image, repository, label = sys.argv[1:]
    try:
        found, paths = sections(EngineSocket(socket_of(docker), SECONDS), image, repository, label)
    except TimeoutError as late:
        with open(int(beside), "w") as shell:  # noqa: PTH123 - a descriptor
            shell.write(str(late))
        return LATE
    lines = "\n|".join(f"{path}|" for path in paths).encode(errors="replace")
    for name, body in found.items():
        sys.stdout.buffer.write(b"\n%s %s %d\n%s" % (nonce.encode(), name.encode(), len(body), body))
    sys.stdout.buffer.flush()
    with open(int(beside), "wb") as shell:  # noqa: PTH123 - a descriptor
        shell.write(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
