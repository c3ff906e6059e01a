"""The local Docker engine as seen by the lab: only objects with a lab's label."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from docker.errors import DockerException, NotFound
from docker.models.containers import Container
from docker.models.networks import Network
from docker.models.volumes import Volume
from requests.exceptions import RequestException

from toolkit.core.command import Command, Result
from toolkit.core.runner import LocalRunner
from toolkit.errors import CommandFailed, LabError, MissingTool
from toolkit.lab.commands import IMAGE
from toolkit.lab.topology import LABEL_LAB, LABEL_LAB_FOLDER, LABEL_LAB_HOST, LABEL_LAB_IMAGE
from toolkit.remote.engine import connect_client

_PREFIX = "toolkit-lab-"
_NO_ENGINE = "sudo apt-get install docker.io  # on Debian or Ubuntu; otherwise install Docker Engine"


@dataclass(frozen=True)
class Found:
    """All objects with one lab's label; hosts by name, and left-over helper containers."""

    hosts: dict[str, Container]
    helpers: tuple[Container, ...]
    networks: tuple[Network, ...]
    volumes: tuple[Volume, ...]

    @property
    def empty(self) -> bool:
        return not (self.hosts or self.helpers or self.networks or self.volumes)

    @property
    def folder(self) -> str:
        """The folder of the lab's files according to its labels; empty if unknown."""
        attrs = [c.attrs["Config"] for c in self.hosts.values()] + [n.attrs for n in self.networks]
        folders = [(a.get("Labels") or {}).get(LABEL_LAB_FOLDER, "") for a in attrs]
        return next((folder for folder in folders if folder), "")

    def in_folder(self, folder: str) -> Found:
        """Return only the objects of a lab whose files are in this folder."""

        def labeled(labels: Mapping[str, str] | None) -> bool:
            return (labels or {}).get(LABEL_LAB_FOLDER) == folder

        return Found(
            {name: c for name, c in self.hosts.items() if labeled(c.labels)},
            tuple(c for c in self.helpers if labeled(c.labels)),
            tuple(n for n in self.networks if labeled(n.attrs.get("Labels"))),
            tuple(v for v in self.volumes if labeled(v.attrs.get("Labels"))),
        )


def _is_named_as_labeled(container: Container) -> bool:
    """Return whether a container has a name of the lab in its label: an image can set labels, but no name."""
    return str(container.name).startswith(f"{_PREFIX}{container.labels.get(LABEL_LAB)}-")


@contextmanager
def _asking(what: str) -> Iterator[None]:
    """Report an error of an engine that answers but refuses requests, such as one that is shutting down."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise LabError(
            f"cannot {what}: {error}",
            "docker ps -a  # if this command fails: sudo systemctl restart docker",
        ) from error


class LabEngine:
    """The engine of the docker command line: lists come from the SDK, changes are commands to copy.

    Raises:
        MissingTool: the docker command is missing, or no engine answers.
        LabError: the engine answers, but it refuses a request.
    """

    def __init__(self) -> None:
        self._runner = LocalRunner()
        if shutil.which("docker") is None:
            raise MissingTool("the docker command is not installed on your machine", _NO_ENGINE)
        self.client = connect_client(120)
        with _asking("read the properties of the Docker engine"):
            self.info = self.client.info()

    def ask(self, line: Command, timeout: float = 120) -> Result:
        """Run a docker command line; any exit status is accepted."""
        return self._runner.run(line, timeout)

    def do(self, line: Command, timeout: float = 120) -> Result:
        """Run a docker command line that must succeed.

        Raises:
            CommandFailed: the command failed.
        """
        result = self._runner.run(line, timeout)
        if not result.ok:
            raise CommandFailed(line.line(), result.status, result.output)
        return result

    def remove(self, container: Container) -> None:
        """Remove a container with its anonymous volumes, unless another program has removed it."""
        with _asking(f"remove container {container.name}"), suppress(NotFound):
            container.remove(force=True, v=True)

    def has_image(self, reference: str) -> bool:
        with _asking(f"inspect image {reference}"):
            try:
                self.client.images.get(reference)
            except NotFound:
                return False
        return True

    def lab_image(self) -> str:
        """Return the id of any image of practice hosts; empty if there is none."""
        with _asking("list the images of practice hosts"):
            images = self.client.images.list(IMAGE, filters={"label": LABEL_LAB_IMAGE})
        return str(images[0].id) if images else ""

    def helper(self, name: str) -> str:
        """Return a new name for a short-lived container of lab ``name``."""
        return f"{_PREFIX}{name}-helper-{secrets.token_hex(4)}"

    def find(self, name: str) -> Found:
        """Return all objects with the label of lab ``name``; a container must also have a name of the lab."""
        filters: dict[str, str | list[str] | bool] = {"label": f"{LABEL_LAB}={name}"}
        with _asking(f"list the containers, networks and volumes of practice cluster {name}"):
            containers = self.client.containers.list(all=True, filters=filters, ignore_removed=True)
            networks = self.client.networks.list(filters=filters)
            volumes = self.client.volumes.list(filters=filters)
        containers = list(filter(_is_named_as_labeled, containers))
        hosts = {c.labels[LABEL_LAB_HOST]: c for c in containers if LABEL_LAB_HOST in c.labels}
        return Found(
            dict(sorted(hosts.items(), key=lambda item: (len(item[0]), item[0]))),
            tuple(c for c in containers if LABEL_LAB_HOST not in c.labels),
            tuple(networks),
            tuple(volumes),
        )

    def labs(self) -> tuple[str, ...]:
        """Return the names of all labs that have any object."""
        filters: dict[str, str | list[str] | bool] = {"label": LABEL_LAB}
        with _asking("list the practice clusters of your machine"):
            containers = self.client.containers.list(all=True, filters=filters, ignore_removed=True)
            attrs = [n.attrs for n in self.client.networks.list(filters=filters)]
            attrs += [v.attrs for v in self.client.volumes.list(filters=filters)]
        labels = [c.labels for c in containers if _is_named_as_labeled(c)]
        labels += [a.get("Labels") or {} for a in attrs]
        return tuple(sorted({found[LABEL_LAB] for found in labels if LABEL_LAB in found}))

    def subnets(self) -> tuple[str, ...]:
        """Return the IPv4 networks of all docker networks, in CIDR form."""
        found = []
        with _asking("list the networks of your machine's Docker engine"):
            networks = self.client.networks.list()
        for network in networks:
            for config in (network.attrs.get("IPAM") or {}).get("Config") or ():
                subnet = config.get("Subnet", "")
                if subnet and ":" not in subnet:
                    found.append(subnet)
        return tuple(found)
