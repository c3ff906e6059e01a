"""This machine's Docker engine, through the Docker SDK."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import docker
import docker.errors
import requests.exceptions

from toolkit.core.image import ImageFacts, image_facts
from toolkit.errors import ImageError, MissingTool

_CHUNK = 2**20


class Engine:
    """The local engine; DOCKER_HOST and contexts of the environment count."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    def connect(cls) -> Engine:
        """Return the engine.

        Raises:
            MissingTool: none answers.
        """
        try:
            client = docker.from_env(timeout=600)
            client.ping()
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise MissingTool(
                f"no Docker engine answers on this machine: {error}",
                "start one, e.g. sudo systemctl start docker; your user must be in the group docker",
            ) from error
        return cls(client)

    @classmethod
    def find(cls) -> Engine | None:
        """Return the engine, None when none answers: a laptop without Docker can steer a cluster."""
        with contextlib.suppress(MissingTool):
            return cls.connect()
        return None

    def image(self, reference: str) -> ImageFacts | None:
        """Return the image of that name, None when the engine has none."""
        try:
            return image_facts(self._client.api.inspect_image(reference))
        except docker.errors.ImageNotFound:
            return None

    def save(self, reference: str) -> Iterator[bytes]:
        """Yield the archive that ``docker save`` writes.

        Raises:
            ImageError: the engine does not give it.
        """
        try:
            chunks: Iterator[bytes] = self._client.api.get_image(reference, chunk_size=_CHUNK)
            yield from chunks
        except (docker.errors.APIError, requests.exceptions.RequestException) as error:
            raise ImageError(f"the engine does not give {reference}: {error}", "docker images") from error
