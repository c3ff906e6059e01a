"""A lab's files on this machine: the operator's key pair, known_hosts, hosts.yaml."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from toolkit.errors import LabError
from toolkit.lab.spec import LabSpec
from toolkit.lab.topology import LabHost

_MARK = ".toolkit-lab"
_OURS = ("hosts.yaml", "id_ed25519", "id_ed25519.pub", "known_hosts", _MARK)


def claim(folder: Path, name: str) -> bool:
    """Make the folder this lab's own; return whether it was not before.

    Raises:
        LabError: other things are in it. `lab down` deletes keys by name, so a folder such as ~/.ssh
            must never become a lab's.
    """
    mark = folder / _MARK
    if mark.exists():
        if mark.read_text().strip() != name:
            raise LabError(f"{folder} belongs to lab {mark.read_text().strip()}", "choose another --folder")
        return False
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LabError(f"{folder} is not empty and not a lab's", "choose another --folder")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    mark.write_text(f"{name}\n")
    return True


def ensure_key(folder: Path) -> tuple[str, bool]:
    """Make the ed25519 key pair unless it is there; return the public line and whether it is new."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private, public = folder / "id_ed25519", folder / "id_ed25519.pub"
    if private.exists() and public.exists():
        return public.read_text(), False
    key = Ed25519PrivateKey.generate()
    line = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode()
    text = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()).decode()
    private.unlink(missing_ok=True)
    # The mode is given at creation: at no moment may others read it.
    with os.fdopen(os.open(private, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    public.write_text(f"{line} toolkit-lab\n")
    return public.read_text(), True


def render_hosts_yaml(spec: LabSpec, hosts: tuple[LabHost, ...]) -> str:
    """Return the lab's hosts.yaml. Scalars are written as JSON, which YAML reads as they are."""
    lines = [
        f"# Written by `toolkit lab up`; goes with `toolkit lab down --name {spec.name}`.",
        f"cluster: {json.dumps(spec.name)}",
        f"image: {json.dumps(spec.image)}",
        f"main: {json.dumps(hosts[0].name)}",
        f"known_hosts: {json.dumps(f'{spec.folder}/known_hosts')}",
        "# These hosts share the cores of one machine: an MPI rank that waits should let the others compute.",
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
    """Make a file hold this text; return whether it had to be written."""
    if path.exists() and path.read_text() == text:
        return False
    path.write_text(text)
    return True


def remove_files(folder: Path, name: str) -> bool:
    """Remove what lab ``name`` wrote, and its folder if that is all; return whether there was anything."""
    mark = folder / _MARK
    if not mark.exists() or mark.read_text().strip() != name:
        return False
    for file in _OURS:
        (folder / file).unlink(missing_ok=True)
    # The usual parent too: `.lab` must not stay behind in somebody's project.
    for empty in (folder, folder.parent):
        if (empty == folder or empty.name == ".lab") and not any(empty.iterdir()):
            empty.rmdir()
    return True
