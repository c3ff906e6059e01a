"""What mounts in hosts.yaml may be: where a folder of the hosts may appear inside the container."""

from __future__ import annotations

import posixpath

from toolkit.core.container import Mount
from toolkit.hostsfile.words import require, shown
from toolkit.protocol.names import CONF

MOUNT = r"/[^:]*:/[^:]*(:(ro|rw))?"

# Inside the container these are the kernel's, Docker's or ours (passwd, group and hosts are generated).
_RESERVED_TREES = (str(CONF.parent), "/proc", "/sys", "/dev")
_RESERVED_FILES = ("/etc/passwd", "/etc/group", "/etc/hosts")


def mount(text: str) -> Mount:
    """Return ``/source:/target[:ro]`` as a Mount."""
    parts = text.split(":")
    should = "/source:/target or /source:/target:ro"
    require(len(parts) in (2, 3) and (len(parts) == 2 or parts[2] in ("ro", "rw")), should, text)
    return Mount(source(parts[0]), target(parts[1]), parts[2:] == ["ro"])


def source(text: str) -> str:
    """A path on the hosts, which may differ from this machine in where homes are."""
    if text.startswith(("~", "$")):
        raise ValueError(f"the source should begin with '/', as it is on the hosts, found {shown(text)}")
    return _absolute("source", text)


# Folders in which a system keeps what it needs; data may go below some other folder of the host.
_SYSTEM = ("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/run", "/sbin", "/sys", "/usr")


def data_source(text: str) -> str:
    """Files on this machine, from the hosts file's folder on."""
    require(bool(text.strip()) and "\0" not in text, "a folder or a file on this machine", text)
    if text.startswith("$"):
        raise ValueError(f"no variables are known here, found {shown(text)}")
    return text


def data_path(text: str) -> str:
    """A folder of the hosts in which the toolkit may write and remove."""
    if text.startswith(("~", "$")):
        raise ValueError(f"the path should begin with '/', as it is on the hosts, found {shown(text)}")
    path = _absolute("path", text)
    if path == "/" or any(_within(path, folder) for folder in _SYSTEM):
        raise ValueError(f"the path should be a folder for data alone, found {shown(text)}")
    if "," in path:
        raise ValueError(f"the path should hold no ',', found {shown(text)}")
    return path


def state_dir(text: str) -> str:
    """A folder on the hosts for what the toolkit keeps there."""
    if text.startswith(("~", "$")):
        raise ValueError(f"should begin with '/', as it is on the hosts, found {shown(text)}")
    path = _absolute("folder", text)
    if path == "/":
        raise ValueError("should be a folder on a local disk, such as /scratch, found '/'")
    return path


def target(text: str) -> str:
    """A path inside the container that neither holds nor hides what it needs."""
    path = _absolute("target", text)
    for tree in _RESERVED_TREES:
        if _within(path, tree):
            raise ValueError(
                f"the target should not be in {tree}, which the system keeps, found {shown(text)}"
            )
    if any(_within(own, path) for own in (*_RESERVED_TREES, *_RESERVED_FILES)):
        raise ValueError(f"the target {shown(text)} hides what the container needs; mount beside or below")
    return path


def _within(path: str, folder: str) -> bool:
    return folder in ("/", path) or path.startswith(f"{folder}/")


def _absolute(end: str, text: str) -> str:
    if not text.startswith("/"):
        raise ValueError(f"the {end} should be an absolute path, found {shown(text)}")
    if ":" in text or not text.isprintable():
        raise ValueError(f"the {end} should hold no ':' and no control characters, found {shown(text)}")
    if any(part in (".", "..") for part in text.split("/")):
        raise ValueError(f"the {end} should hold no '.' or '..' step, found {shown(text)}")
    # normpath keeps two leading slashes, which POSIX lets mean something else.
    return posixpath.normpath("/" + text.lstrip("/"))
