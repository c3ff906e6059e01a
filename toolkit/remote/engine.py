"""This machine's Docker engine, through the Docker SDK."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from typing import Any

import docker
import docker.errors
import requests.exceptions
from docker.context import ContextAPI

from toolkit.core.engines import DOCKER
from toolkit.core.image import ImageFacts, image_facts
from toolkit.errors import ImageError, MissingTool
from toolkit.protocol.decode import DecodeError, decode
from toolkit.protocol.engine import ImageInspect

_CHUNK = 2**20
# An engine can need minutes to export an image, but only seconds to describe one, even on a busy machine.
_GIVES_S, _SAYS_S = 600.0, 30.0


def connect_client(timeout: float) -> docker.DockerClient:
    """Return a client of the engine that the docker command talks to.

    That is the engine of DOCKER_HOST, otherwise of DOCKER_CONTEXT, otherwise of the current context.

    Args:
        timeout: seconds for one request.

    Raises:
        MissingTool: none answers.
    """
    try:
        # Releases of the SDK before 7.2 do not read contexts, which rootless engines and Docker Desktop use.
        host, name = os.environ.get("DOCKER_HOST"), os.environ.get("DOCKER_CONTEXT", "")
        context = None if host else ContextAPI.get_context(name)
        if name and not host and context is None:
            raise MissingTool(
                f"DOCKER_CONTEXT names the context {name}, which does not exist",
                "unset DOCKER_CONTEXT  # or set DOCKER_CONTEXT to a context that `docker context ls` lists",
            )
        if context is not None and context.Host:
            client = docker.DockerClient(
                base_url=context.Host, tls=context.TLSConfig or False, timeout=math.ceil(timeout)
            )
        else:
            client = docker.from_env(timeout=math.ceil(timeout))
        client.ping()
    except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
        raise MissingTool(
            f"no Docker engine answers on your machine: {error}",
            "sudo systemctl start docker  # access requires root or the group docker; to install Docker on"
            " Debian or Ubuntu, run sudo scripts/engine.sh ensure in a toolkit checkout",
        ) from error
    except (AttributeError, TypeError, ValueError) as error:
        # The SDK checks neither the types in config.json nor the port of DOCKER_HOST.
        raise MissingTool(
            f"Docker's Python library cannot use your Docker configuration: {error}",
            "docker info  # correct DOCKER_HOST, or the config.json that the output names",
        ) from error
    return client


class Engine:
    """The local engine."""

    def __init__(self, client: Any) -> None:
        self.client = client

    @classmethod
    def connect(cls) -> Engine:
        """Return the engine.

        Raises:
            MissingTool: none answers.
        """
        return cls(connect_client(_GIVES_S))

    @classmethod
    def find(cls) -> Engine | None:
        """Return the engine, to ask what it has; None when none answers.

        A laptop without Docker, or with one that hangs, can steer a cluster.
        """
        with contextlib.suppress(MissingTool):
            return cls(connect_client(_SAYS_S))
        return None

    def version(self) -> str:
        """Return the engine's version, empty if it is unknown."""
        with contextlib.suppress(docker.errors.DockerException, requests.exceptions.RequestException):
            return str(self.client.version().get("Version", ""))
        return ""

    def image(self, reference: str, engine: str = DOCKER) -> ImageFacts | None:
        """Return the image of that name, None when the engine has none.

        Args:
            engine: of the cluster's hosts.

        Raises:
            ImageError: the engine does not answer properly.
        """
        try:
            return image_facts(decode(ImageInspect, self.client.api.inspect_image(reference)), engine)
        except docker.errors.ImageNotFound:
            return None
        except (docker.errors.DockerException, requests.exceptions.RequestException, DecodeError) as error:
            raise ImageError(
                f"the Docker engine of your machine cannot inspect image {reference}: {error}",
                "docker images",
            ) from error

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield the archive that ``docker save`` writes.

        Raises:
            ImageError: the engine does not give it.
        """
        try:
            chunks: Iterator[bytes] = self.client.api.get_image(reference, chunk_size=_CHUNK)
            yield from chunks
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            raise ImageError(
                f"the Docker engine of your machine cannot export image {reference}: {error}", "docker images"
            ) from error
