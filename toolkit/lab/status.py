"""Current state of a practice cluster."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import paramiko
from docker.models.containers import Container

from toolkit.lab import commands as cmd
from toolkit.lab.engine import LabEngine
from toolkit.lab.spec import MANAGEMENT
from toolkit.lab.topology import settings_of
from toolkit.remote.fanout import fan_out

_CONTAINERD = "io.containerd.snapshotter"


@dataclass(frozen=True)
class LabHostStatus:
    """Current state of one practice host.

    Args:
        state: Docker's state of the host's container (running, exited, created …).
        engine: version of the host's own engine; empty if it does not answer.
        store: ``overlay2`` or ``containerd``; empty if the engine does not answer.
        ssh: True when a login with the lab's key and known_hosts succeeds.
    """

    name: str
    address: str
    interface: str
    user: str
    state: str
    engine: str
    store: str
    ssh: bool

    @property
    def ok(self) -> bool:
        return self.state == "running" and bool(self.engine) and self.ssh


@dataclass(frozen=True)
class LabStatus:
    """Current state of one lab; without hosts if no lab has this name."""

    name: str
    folder: str
    hosts: tuple[LabHostStatus, ...]

    @property
    def ok(self) -> bool:
        return bool(self.hosts) and all(host.ok for host in self.hosts)

    def as_json(self) -> dict[str, Any]:
        """Return the form that ``--json`` prints."""
        return {
            "name": self.name,
            "folder": self.folder,
            "ok": self.ok,
            "hosts": [asdict(h) for h in self.hosts],
        }


def lab_status(name: str) -> LabStatus:
    """Return the state of the lab; each host is checked with docker and one ssh login.

    Raises:
        MissingTool: the docker command is missing, or no engine answers.
    """
    engine = LabEngine()
    found = engine.find(name)
    folder = found.folder

    def ask(host: str) -> LabHostStatus:
        container = found.hosts[host]
        settings = settings_of(container.labels)
        address = _address(container)
        running = container.status == "running"
        answer = engine.ask(cmd.report_command(str(container.name)), 20) if running else None
        words = answer.stdout.split(maxsplit=2) if answer is not None and answer.ok else []
        version, driver, detail = words if len(words) == 3 else ("", "", "")
        user = settings.get("user", "")
        return LabHostStatus(
            name=host,
            address=address,
            interface=settings.get("interface", ""),
            user=user,
            state=container.status,
            engine=version,
            store="containerd" if _CONTAINERD in detail else driver,
            ssh=running and _login(address, user, Path(folder)),
        )

    hosts, errors = fan_out(found.hosts, ask)
    for error in errors.values():
        raise error
    return LabStatus(name, folder, tuple(hosts[host] for host in found.hosts))


def _address(container: Container) -> str:
    by_name = container.attrs["NetworkSettings"]["Networks"]
    # ssh uses the management card if there is one.
    networks = [
        by_name[name] for name in sorted(by_name, key=lambda name: (not name.endswith(MANAGEMENT), name))
    ]
    # A stopped container keeps only its requested address.
    pairs = [((n.get("IPAMConfig") or {}).get("IPv4Address"), n.get("IPAddress")) for n in networks]
    return next((str(a or b) for a, b in pairs if a or b), "")


def _login(address: str, user: str, folder: Path) -> bool:
    """Log in as toolkit does: this key only, known host keys only, one attempt."""
    client = paramiko.SSHClient()
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    try:
        client.load_host_keys(str(folder / "known_hosts"))
        client.connect(
            address,
            username=user,
            key_filename=str(folder / "id_ed25519"),
            timeout=10,
            allow_agent=False,
            look_for_keys=False,
        )
    except (paramiko.SSHException, OSError):
        return False
    finally:
        client.close()
    return True
