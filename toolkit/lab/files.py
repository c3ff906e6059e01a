"""A lab's files on this machine: the user's key pair, known_hosts, hosts.yaml."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from toolkit.errors import LabError
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import LabHost

_MARK = ".toolkit-lab"
_HOSTS, _HOSTS_BESIDE = "hosts.yaml", "hosts.new.yaml"
# SHA-256 digests of the hosts files that this lab wrote, one per line.
_WRITTEN = ".toolkit-lab-written"
_OURS = (_HOSTS, _HOSTS_BESIDE, _WRITTEN, "id_ed25519", "id_ed25519.pub", "known_hosts")


def claim(folder: Path, name: str) -> bool:
    """Claim the folder for this lab; return whether it was unclaimed before.

    Raises:
        LabError: the folder contains other files. `lab down` deletes keys by name, so a folder such as ~/.ssh
            must never become a lab's.
    """
    mark = folder / _MARK
    if mark.exists():
        if mark.read_text().strip() != name:
            raise LabError(
                f"the folder {folder} belongs to practice cluster {mark.read_text().strip()}",
                "set --folder to another folder",
            )
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(
            f"the folder {folder} is not empty and does not belong to a practice cluster",
            "set --folder to another folder",
        )
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    mark.write_text(f"{name}\n")
    return True


def ensure_key(folder: Path) -> tuple[str, bool]:
    """Create the ed25519 key pair if it is missing; return the public key line and whether it is new."""
    private, public = folder / "id_ed25519", folder / "id_ed25519.pub"
    if private.exists() and public.exists():
        return public.read_text(), False
    key = Ed25519PrivateKey.generate()
    line = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode()
    text = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()).decode()
    private.unlink(missing_ok=True)
    # Set the mode at creation, so that other users can never read the key.
    with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    public.write_text(f"{line} toolkit-lab\n")
    return public.read_text(), True


def render_hosts_yaml(spec: LabSpec, hosts: tuple[LabHost, ...]) -> str:
    """Return the lab's hosts.yaml. Scalars are written as JSON, which YAML reads as they are."""
    lines = [
        f"# Written by `toolkit lab up`; `toolkit lab down --name {spec.name}` removes this file.",
        f"cluster: {json.dumps(spec.name)}",
        f"image: {json.dumps(spec.image)}",
        f"main: {json.dumps(hosts[0].name)}",
        f"known_hosts: {json.dumps(f'{spec.folder}/known_hosts')}",
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
        lines += [f"    {key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(lines) + "\n"


def render_known_hosts(keys: Iterable[tuple[str, str]]) -> str:
    """Return known_hosts text from pairs of address and ``type key``."""
    return "".join(f"{address} {key}\n" for address, key in keys)


def ensure_text(path: Path, text: str) -> bool:
    """Write this text to a file if it differs; return whether the file was written."""
    if path.exists() and path.read_text() == text:
        return False
    path.write_text(text)
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
    """Return whether ``hosts.yaml`` contains neither ``text`` nor a text that this lab wrote."""
    path, written = folder / _HOSTS, folder / _WRITTEN
    if not path.exists() or path.read_bytes() == text.encode():
        return False
    return _digest(path.read_bytes()) not in (written.read_text().split() if written.exists() else ())


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
        written.write_text("".join(f"{each}\n" for each in last))
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
    """
    mark = folder / _MARK
    if not mark.exists() or mark.read_text().strip() != name:
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
