"""A lab's files on this machine: the user's key pair, known_hosts, hosts.yaml."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from toolkit.core.files import write_whole
from toolkit.core.templates import yaml_text
from toolkit.errors import LabError
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import LabHost

_MARK = ".toolkit-lab"
_HOSTS, _HOSTS_BESIDE = "hosts.yaml", "hosts.new.yaml"
# SHA-256 digests of the hosts files that this lab wrote, one per line.
_WRITTEN = ".toolkit-lab-written"
_OTHER = "set --folder to another folder"
_OURS = (_HOSTS, _HOSTS_BESIDE, _WRITTEN, "id_ed25519", "id_ed25519.pub", "known_hosts")


@contextmanager
def _using(folder: Path, fix: str) -> Iterator[None]:
    """Report an error of the operating system about the folder or its files."""
    try:
        yield
    except OSError as error:
        place = error.filename or folder
        raise LabError(f"cannot use {place} for a practice cluster: {error.strerror}", fix) from error


def foreign_owner(folder: str) -> str:
    """Return the owner of a lab's folder if this is another user; otherwise, or without a folder, empty.

    File systems such as CIFS and 9p can report another owner for a user's own folder. Therefore a folder that
    the user can write counts as the user's: ``claim`` lets only the owner write. Root can write anywhere.
    """
    if folder and os.geteuid() != 0 and os.access(folder, os.W_OK | os.X_OK):
        return ""
    for place in (Path(folder), *Path(folder).parents) if folder else ():
        try:
            owner = place.stat().st_uid
        except PermissionError:
            continue  # the folder above belongs to a user who keeps others out
        except OSError:
            return ""
        if owner == os.geteuid():
            return ""
        try:
            return place.owner()
        except KeyError:
            return str(owner)
    return ""


def claim(folder: Path, name: str) -> bool:
    """Claim the folder for this lab; return whether it was unclaimed before.

    Raises:
        LabError: the folder contains other files, or cannot be used. `lab down` deletes keys by name, so a
            folder such as ~/.ssh must never become a lab's.
        ToolkitError: the folder's first file cannot be written.
    """
    mark = folder / _MARK
    with _using(folder, _OTHER):
        claimed = mark.exists()
        owner = mark.read_text().strip() if claimed else ""
        if owner not in ("", name):
            raise LabError(f"the folder {folder} belongs to practice cluster {owner}", _OTHER)
        if not claimed and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise LabError(
                f"the folder {folder} is not empty and does not belong to a practice cluster", _OTHER
            )
        if not claimed:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
    if not owner:  # also if a full disk or a power failure left an empty file
        write_whole(mark, f"{name}\n", sync=True)
    return not claimed


def ensure_key(folder: Path) -> tuple[str, bool]:
    """Create the ed25519 key pair if it is missing; return the public key line and whether it is new."""
    private, public = folder / "id_ed25519", folder / "id_ed25519.pub"
    with _using(folder, _OTHER):
        data, shown = (file.read_bytes() if file.exists() else b"" for file in (private, public))
        new = False
        try:
            key = s.load_ssh_private_key(data, None)
        except (TypeError, ValueError, UnsupportedAlgorithm):
            if data.strip(b"\0\n") and shown.strip():
                return shown.decode(), False  # the user's key, with a passphrase or in another format
            # Missing, or without its content after a full disk or a power failure.
            key, new = Ed25519PrivateKey.generate(), True
            text = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
            write_whole(private, text, 0o600, sync=True)
        line = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
        if shown.split()[:2] != line.split():
            shown, new = line + b" toolkit-lab\n", True
            write_whole(public, shown)
        return shown.decode(), new


def render_hosts_yaml(spec: LabSpec, hosts: tuple[LabHost, ...]) -> str:
    """Return the lab's hosts.yaml."""
    lines = [
        f"# Written by `toolkit lab up`; `toolkit lab down --name {spec.name}` removes this file.",
        f"cluster: {yaml_text(spec.name)}",
        f"image: {yaml_text(spec.image)}",
        f"main: {yaml_text(hosts[0].name)}",
        f"known_hosts: {yaml_text(f'{spec.folder}/known_hosts')}",
        "# These hosts share the cores of one machine, so a waiting MPI rank must yield to other ranks.",
        "env: {OMPI_MCA_mpi_yield_when_idle: '1'}",
        *(["engine: podman"] if spec.is_podman else []),
        "hosts:",
    ]
    for host in hosts:
        fields = {
            "address": host.address,
            "user": spec.user,
            "identity_file": f"{spec.folder}/id_ed25519",
            "slots": spec.slots,
        }
        lines.append(f"  {host.name}:")
        lines += [f"    {key}: {yaml_text(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def render_known_hosts(keys: Iterable[tuple[str, str]]) -> str:
    """Return known_hosts text from pairs of address and ``type key``."""
    return "".join(f"{address} {key}\n" for address, key in keys)


def ensure_text(path: Path, text: str) -> bool:
    """Write this text to a file if it differs; return whether the file was written."""
    if path.exists() and path.read_bytes() == text.encode():
        return False
    write_whole(path, text)
    return True


@dataclass(frozen=True)
class HostsFile:
    """Location of the lab's hosts file.

    Args:
        path: ``hosts.yaml``, or the file next to it.
        edited: the user edited ``hosts.yaml``, so it was kept. The text is in the file next to it, unless the
            lab wrote the same text before the edit.
        changed: a file was written.
    """

    path: Path
    edited: bool
    changed: bool


def is_edited(folder: Path, text: str = "") -> bool:
    """Return whether ``hosts.yaml`` contains neither ``text`` nor a text that this lab wrote.

    An empty file counts as missing: a full disk or a power failure can leave it.
    """
    path, written = folder / _HOSTS, folder / _WRITTEN
    data = path.read_bytes() if path.exists() else b""
    if data in (b"", text.encode()):
        return False
    return _digest(data) not in (written.read_text().split() if written.exists() else ())


def put_hosts_file(folder: Path, text: str) -> HostsFile:
    """Write ``hosts.yaml``. If it was edited, keep it and write ``hosts.new.yaml``.

    An edited ``hosts.yaml`` whose last written text was the same needs no ``hosts.new.yaml``.
    """
    edited = is_edited(folder, text)
    path = folder / (_HOSTS_BESIDE if edited else _HOSTS)
    written = folder / _WRITTEN
    digests = written.read_text().split() if written.exists() else []
    digest = _digest(text.encode())
    if digests[-1:] != [digest]:
        # Record the digest first: a text without a record would count as edited.
        last = (*(each for each in digests if each != digest), digest)
        write_whole(written, "".join(f"{each}\n" for each in last))
    elif edited and not path.exists():
        return HostsFile(folder / _HOSTS, True, False)
    changed = ensure_text(path, text)
    if not edited:
        (folder / _HOSTS_BESIDE).unlink(missing_ok=True)
    return HostsFile(path, edited, changed)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def remove_files(folder: Path, name: str) -> bool:
    """Remove the files of lab ``name``, and its folder if it is empty then; return whether any existed.

    A folder with other files stays claimed, so that the next lab of this name can use it.

    Raises:
        LabError: the files cannot be removed.
    """
    mark = folder / _MARK
    with _using(folder, f"as the owner of {folder}: toolkit lab down --name {name}"):
        if not mark.exists() or mark.read_text().strip() not in ("", name):
            return False
        found = [file for file in folder.iterdir() if file.name in _OURS]
        for file in found:
            file.unlink()
        if any(file != mark for file in folder.iterdir()):
            return bool(found)
        mark.unlink()
        # Also the usual parent: no `.lab` folder must stay in the user's project.
        for empty in (folder, folder.parent):
            if (empty == folder or empty.name == ".lab") and not any(empty.iterdir()):
                empty.rmdir()
    return True
