"""Saved images of both layouts, and streams of them that an engine could load."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from toolkit.effects.image_archive import ImageArchive
from toolkit.errors import ImageError

LAYERS = [b"base " * 300, b"middle " * 2000, b"top"]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def config_of(layers: Iterable[bytes]) -> bytes:
    diff_ids = [f"sha256:{digest(layer)}" for layer in layers]
    return json.dumps({"os": "linux", "rootfs": {"type": "layers", "diff_ids": diff_ids}}).encode()


class Writer:
    """An archive in the making."""

    def __init__(self) -> None:
        self.buffer = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w")  # noqa: SIM115 - closed by chunks()

    def file(self, name: str, data: bytes) -> str:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self.tar.addfile(info, io.BytesIO(data))
        return name

    def link(self, name: str, target: str) -> str:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = tarfile.SYMTYPE, target
        self.tar.addfile(info)
        return name

    def chunks(self, config: str, layers: list[str]) -> list[bytes]:
        manifest = [{"Config": config, "RepoTags": ["toolkit:cpu"], "Layers": layers}]
        self.file("manifest.json", json.dumps(manifest).encode())
        self.tar.close()
        data = self.buffer.getvalue()
        return [data[i : i + 1000] for i in range(0, len(data), 1000)]


def old_layout(layers: list[bytes]) -> list[bytes]:
    """As engines before 25 write it: a folder per layer, a layer that comes again as a symlink."""
    writer, names, seen = Writer(), [], {}
    config = config_of(layers)
    for number, layer in enumerate(layers):
        name = f"{number:064x}/layer.tar"
        if layer in seen:
            names.append(writer.link(name, f"../{seen[layer]}"))
        else:
            names.append(writer.file(name, layer))
            seen[layer] = name
    return writer.chunks(writer.file(f"{digest(config)}.json", config), names)


def oci_layout(layers: list[bytes], packed: bool = False) -> list[bytes]:
    """As engines since 25 write it: blobs by their digests; the containerd store keeps them compressed."""
    writer, names = Writer(), []
    writer.file("oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
    config = config_of(layers)
    for layer in layers:
        blob = gzip.compress(layer) if packed else layer
        name = f"blobs/sha256/{digest(blob)}"
        if name not in names:
            writer.file(name, blob)
        names.append(name)
    return writer.chunks(writer.file(f"blobs/sha256/{digest(config)}", config), names)


FORMATS = {
    "old": old_layout,
    "oci": oci_layout,
    "oci, packed": lambda layers: oci_layout(layers, packed=True),
}
TWICE = [LAYERS[0], LAYERS[1], LAYERS[0], LAYERS[2]]


def loaded(archive: ImageArchive, first: int) -> tuple[dict[str, bytes], dict[str, object]]:
    """Read a stream as `docker load` does: files by name, and the manifest."""
    with tarfile.open(fileobj=io.BytesIO(b"".join(archive.stream(first)))) as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]
    (manifest,) = json.loads(files["manifest.json"])
    return files, manifest


@pytest.mark.parametrize("first", [0, 2, 3])
@pytest.mark.parametrize("layers", [LAYERS, TWICE], ids=["unlike", "one twice"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_stream_is_an_archive_whose_parts_match(format: str, layers: list[bytes], first: int) -> None:
    archive = ImageArchive(FORMATS[format](layers))
    try:
        files, manifest = loaded(archive, first)
        assert manifest["RepoTags"] == ["toolkit:cpu"]
        assert digest(files[str(manifest["Config"])]) == str(manifest["Config"]).removesuffix(".json")
        names = list(manifest["Layers"])  # type: ignore[call-overload]
        assert len(names) == len(layers)
        for number, (name, layer) in enumerate(zip(names, layers, strict=True)):
            # What is there is the very layer, unpacked; what the receiver has may be left out.
            assert name in files or number < first
            assert files.get(name, layer) == layer
        left_out = set(layers[:first]) - set(layers[first:])
        assert not left_out & set(files.values())
    finally:
        archive.close()


@pytest.mark.parametrize("format", FORMATS)
def test_what_an_archive_says_of_itself(format: str) -> None:
    archive = ImageArchive(FORMATS[format](LAYERS))
    assert archive.diff_ids == tuple(f"sha256:{digest(layer)}" for layer in LAYERS)
    assert archive.tags == ["toolkit:cpu"]
    assert archive.size(3) == 0
    if "packed" not in format:
        assert archive.size() == sum(map(len, LAYERS))
        assert archive.size(1) == len(LAYERS[1]) + len(LAYERS[2])
    archive.close()


def test_two_streams_at_once_do_not_mix() -> None:
    archive = ImageArchive(oci_layout(LAYERS, packed=True))
    one, two = archive.stream(), archive.stream()
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for first, second in zip(one, two, strict=True):
        parts[0].append(first)
        parts[1].append(second)
    assert b"".join(parts[0]) == b"".join(parts[1]) == b"".join(archive.stream())
    archive.close()


def test_only_a_common_beginning_need_not_travel() -> None:
    archive = ImageArchive(old_layout(LAYERS))
    a, b, c = archive.diff_ids
    assert archive.missing([]) == 0
    assert archive.missing([(a,)]) == 1
    assert archive.missing([(a, b), (a,)]) == 2
    assert archive.missing([(a, b, c, "sha256:more")]) == 3
    # The same layer on another base is another layer to an engine.
    assert archive.missing([(b, c), ("sha256:other", b, c), (c,)]) == 0
    assert archive.missing([(a, c)]) == 1
    archive.close()


def test_the_file_has_no_name_that_could_stay_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when this process is killed while it sends an image of many gigabytes."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    archive = ImageArchive(old_layout(LAYERS))
    assert b"".join(archive.stream()) and list(tmp_path.iterdir()) == []
    archive.close()


def test_several_hosts_read_at_once() -> None:
    archive = ImageArchive(old_layout(LAYERS))
    alone = b"".join(archive.stream())
    first, second = archive.stream(), archive.stream()
    mixed: tuple[list[bytes], list[bytes]] = ([], [])
    for one, two in zip(first, second, strict=True):
        mixed[0].append(one)
        mixed[1].append(two)
    assert b"".join(mixed[0]) == b"".join(mixed[1]) == alone
    archive.close()


def test_an_archive_that_lacks_a_layer() -> None:
    writer = Writer()
    name = writer.file("one/layer.tar", LAYERS[0])
    config = writer.file("config.json", config_of(LAYERS))
    with pytest.raises(ImageError, match="differ in number"):
        ImageArchive(writer.chunks(config, [name]))


@pytest.mark.parametrize("cut", [0, 10, 700, 3000])
def test_a_stream_that_was_cut_off(cut: int) -> None:
    whole = b"".join(old_layout(LAYERS))
    with pytest.raises(ImageError, match="the saved image"):
        ImageArchive([whole[:cut]])


def test_no_room_for_the_archive() -> None:
    def full() -> Iterator[bytes]:
        yield b"begin"
        raise OSError(28, "No space left on device")

    with pytest.raises(ImageError, match=r"cannot be kept in .* No space left"):
        ImageArchive(full())


def test_an_archive_that_names_what_it_does_not_hold() -> None:
    writer = Writer()
    config = writer.file("config.json", config_of(LAYERS[:1]))
    with pytest.raises(ImageError, match=r"lacks absent/layer\.tar"):
        ImageArchive(writer.chunks(config, ["absent/layer.tar"]))
