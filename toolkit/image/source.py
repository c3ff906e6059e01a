"""An image of the local engine as the source of transfers: layer by layer, or as a single archive."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress

from toolkit.core.engines import DOCKER
from toolkit.core.image import ImageFacts
from toolkit.errors import ImageError
from toolkit.image.export_reader import ExportReader
from toolkit.image.layer_reader import LayerReader, Unreadable, verified
from toolkit.image.layers import Group, ImageLayers
from toolkit.remote.engine import Engine
from toolkit.remote.local_image import built_images
from toolkit.transfer.tee_reader import Readings, Tap


class ImageSource:
    """Image of the local engine; it stays the same even if its tag moves afterwards.

    Args:
        image: as the engine reports it.
        on: container engine of the cluster's hosts.

    Attributes:
        parts: its config and layers; None if the layers cannot be read one by one.
        why_whole: the reason in that case.
    """

    def __init__(self, engine: Engine, image: ImageFacts, on: str = DOCKER) -> None:
        self._engine, self.image = engine, image
        self.why_whole = ""
        self.parts: ImageLayers | None = None
        self._layers = Readings(self._read)
        self._whole = Readings(self._save, repeatable=False)
        self._reader: LayerReader | ExportReader = ExportReader(engine.save, image)
        # A container of the image reads its layers as root, which toolkit allows only for images that were
        # built on this machine.
        if image.id in built_images():
            self._reader = LayerReader(engine.client, image.id, image.diff_ids)
            with suppress(Unreadable):
                self.parts = self._reader.describe(image.identity, on)
                return
            self._reader = ExportReader(engine.save, image)
        try:
            self.parts = self._reader.describe(image.identity, on)
        except (Unreadable, ImageError) as error:
            self.give_up(error.what)

    @classmethod
    def open(cls, reference: str, identity: str, known: str, on: str) -> ImageSource:
        """Return the image of the local engine with that Id or that name.

        Args:
            known: Id of the image when the plan was made; its name can refer to another image by now.
            on: container engine of the cluster's hosts.

        Raises:
            MissingTool: no engine answers.
            ImageError: the image is not the one that the plan was made for.
        """
        engine = Engine.connect()
        for name in (known, reference):
            image = engine.image(name, on) if name else None
            if image is not None and image.identity == identity:
                return cls(engine, image, on)
        raise ImageError(
            f"your machine no longer has the image {reference} that toolkit planned to send",
            "run the same command again",
        )

    def give_up(self, why: str) -> None:
        """Export the image as a single archive from now on."""
        self.parts, self.why_whole = None, self.why_whole or why

    def layers(self, group: Group) -> Tap:
        """Return the concatenated tars of a group's layers, without repetitions.

        Reading raises ``Unreadable`` if the engine returns different bytes.
        """
        return self._layers.tap(group)

    def whole(self) -> Tap:
        """Return the ``docker save`` archive of the image, requested by Id, so that it contains no tag."""
        return self._whole.tap(None)

    def _read(self, key: Hashable) -> Iterator[bytes]:
        parts = self.parts
        if parts is None or not isinstance(key, Group):
            raise Unreadable(self.why_whole)
        layers = parts.unique_layers(key)
        numbers = [parts.layers.index(layer) for layer in layers]
        yield from verified(self._reader.read(numbers), layers)

    def _save(self, key: Hashable) -> Iterator[bytes]:
        yield from self._engine.save(self.image.id)

    def close(self) -> None:
        """Stop the running readers."""
        self._layers.close()
        self._whole.close()
        self._reader.close()
