"""An image of this machine's engine, for several hosts to take from: layer by layer, else saved whole."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress

from toolkit.core.engines import DOCKER
from toolkit.core.image import ImageFacts
from toolkit.errors import ImageError
from toolkit.image.build import built_images
from toolkit.image.export_reader import ExportReader
from toolkit.image.layer_reader import LayerReader, Unreadable, verified
from toolkit.image.layers import Group, ImageParts
from toolkit.remote.engine import Engine
from toolkit.transfer.tee_reader import Readings, Tap


class ImageSource:
    """One image, fixed when this is made: a tag that moves afterwards changes nothing.

    Args:
        image: as the engine reports it.
        on: the engine of the cluster's hosts.

    Attributes:
        parts: its config and layers; None when they cannot be read one by one.
        why_whole: the reason for that.
    """

    def __init__(self, engine: Engine, image: ImageFacts, on: str = DOCKER) -> None:
        self._engine, self.image = engine, image
        self.why_whole = ""
        self.parts: ImageParts | None = None
        self._layers = Readings(self._read)
        self._whole = Readings(self._save, repeatable=False)
        self._reader: LayerReader | ExportReader = ExportReader(engine.save, image)
        # A container of the image reads its layers with rights of root, so only one that was built here may.
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
        """Return the image that this machine's engine knows by that Id, or by that name.

        Args:
            known: Id of the image when the plan was made; the name may mean another one since.
            on: the engine of the cluster's hosts.

        Raises:
            MissingTool: no engine answers.
            ImageError: it is not the image that the plan was made for.
        """
        engine = Engine.connect()
        for name in (known, reference):
            image = engine.image(name, on) if name else None
            if image is not None and image.identity == identity:
                return cls(engine, image, on)
        raise ImageError(f"{reference} is not the image that the plan was made for", "run the command again")

    def give_up(self, why: str) -> None:
        """From now on the image is saved whole."""
        self.parts, self.why_whole = None, self.why_whole or why

    def layers(self, group: Group) -> Tap:
        """Return the tars of a group's layers, without repetitions, one behind the other.

        Taking from it raises ``Unreadable`` when the engine gives other bytes.
        """
        return self._layers.tap(group)

    def whole(self) -> Tap:
        """Return the archive that ``docker save`` writes of the image, by its Id: it names no tag."""
        return self._whole.tap(None)

    def _read(self, key: Hashable) -> Iterator[bytes]:
        parts = self.parts
        if parts is None or not isinstance(key, Group):
            raise Unreadable(self.why_whole)
        layers = parts.unlike(key)
        numbers = [parts.layers.index(layer) for layer in layers]
        yield from verified(self._reader.read(numbers), layers)

    def _save(self, key: Hashable) -> Iterator[bytes]:
        yield from self._engine.save(self.image.id)

    def close(self) -> None:
        """End what still reads."""
        self._layers.close()
        self._whole.close()
        self._reader.close()
