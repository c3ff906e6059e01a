"""Tests of the groups of layers that are sent together, and of the archives that an engine loads."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import pytest

from tests.golden import check_golden
from tests.unit.each import for_each
from tests.unit.frames_here import NONCE, framed
from toolkit.core.engines import seconds_of
from toolkit.core.image import config_identity
from toolkit.errors import ImageError
from toolkit.image.archive import archive, archive_size, make_archive
from toolkit.image.layers import (
    JOINED,
    Group,
    ImageLayers,
    Layer,
    digest,
    groups_of,
    held,
    holdings_command,
    lacking,
    metadata,
    parse_holdings,
    part_config,
    room_needed,
)
from toolkit.protocol.decode import DecodeError

LAYERS = (b"base " * 300, b"", b"middle " * 2000, b"", b"top")
CONFIG = {"architecture": "amd64", "os": "linux", "created": "2026-01-02T03:04:05Z", "config": {"User": "u"}}
WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


def parts_of(layers: Sequence[bytes] = LAYERS) -> ImageLayers:
    diff_ids = [digest(layer) for layer in layers]
    config = {**CONFIG, "rootfs": {"type": "layers", "diff_ids": diff_ids}, "history": [{"created_by": "x"}]}
    return ImageLayers(json.dumps(config).encode(), tuple(Layer(digest(one), len(one)) for one in layers))


def packed(parts: ImageLayers, group: Group, name: str = "toolkit-part:x-1") -> bytes:
    layers = parts.unique_layers(group)
    contents = {digest(layer): layer for layer in LAYERS}
    plain = b"".join(contents[layer.diff_id] for layer in layers)
    whole = group.stop == len(parts.layers)
    config = parts.config if whole else part_config(parts, group.stop, "0123", WHEN)
    about = metadata(config, parts.layers[: group.stop], name)
    data = b"".join(archive(layers, (plain[i : i + 999] for i in range(0, len(plain), 999)), about))
    assert len(data) == archive_size(layers, about)
    return data


def test_what_an_archive_holds_and_in_which_order() -> None:
    text = []
    for group in (Group(0, 2), Group(2, 5), Group(5, 5)):
        with tarfile.open(fileobj=io.BytesIO(packed(parts_of(), group))) as tar:
            for member in tar:
                content = tar.extractfile(member).read()  # type: ignore[union-attr]
                text.append(f"{member.mode:o} {member.size:6} {member.name}")
                if member.name.startswith("blobs/"):
                    assert digest(content) == f"sha256:{member.name.rpartition('/')[2]}"
                if content.startswith((b"{", b"[")):
                    text += [f"    {line}" for line in json.dumps(json.loads(content), indent=1).splitlines()]
        text.append("")
    check_golden("image/archives.txt", "\n".join(text))


def test_every_part_names_all_layers_from_the_base_up() -> None:
    parts = parts_of()
    for stop in range(len(LAYERS) + 1):
        config = json.loads(part_config(parts, stop, "0123", WHEN))
        assert config["rootfs"]["diff_ids"] == list(parts.diff_ids[:stop])
        # Never taken for the image itself, which has the same layers at the end.
        assert config_identity(config) != config_identity(json.loads(parts.config))


def test_a_partial_image_is_as_old_as_its_transfer() -> None:
    """`gc` compares this time: with overlay2 and Podman, a loaded image has no other."""
    start = int(time.time())
    (part,) = (content for _, content in make_archive(parts_of(), Group(0, 2), "0123", "ab").about[1:2])
    assert start <= seconds_of(json.loads(part)["created"]) <= time.time()
    (last,) = (content for _, content in make_archive(parts_of(), Group(2, 5), "0123", "ab").about[1:2])
    assert last == parts_of().config


def test_bytes_that_do_not_fit_their_layers_make_no_image() -> None:
    layer = Layer(digest(b"abc"), 3)
    for plain in ((b"ab",), (b"ab", b"cd"), (b"abc", b"d"), ()):
        with pytest.raises(ImageError, match=r"of the image data|than the layers"):
            list(archive((layer,), plain, ()))
    assert list(archive((layer,), (b"", b"a", b"", b"bc", b""), ()))


@for_each(
    ("sizes", "groups"),
    [
        ([], []),
        ([5], [(0, 1)]),
        ([5, 6, 7], [(0, 3)]),
        ([2 * JOINED, 5, 6, 3 * JOINED, 7], [(0, 1), (1, 3), (3, 4), (4, 5)]),
        ([5, 2 * JOINED], [(0, 1), (1, 2)]),
        ([JOINED - 1, 1, 1], [(0, 2), (2, 3)]),
        ([JOINED, 0, 0, JOINED], [(0, 3), (3, 4)]),
        ([1] * 100, [(0, 100)]),
        ([JOINED // 2] * 5, [(0, 2), (2, 4), (4, 5)]),
    ],
)
def test_small_neighbours_travel_together(sizes: list[int], groups: list[tuple[int, int]]) -> None:
    assert [(g.start, g.stop) for g in groups_of(sizes)] == groups
    for first in range(len(sizes) + 1):
        found = groups_of(sizes, first)
        # The bounds are the same for hosts that hold different beginnings; all from `first` on is in it once.
        assert {g.stop for g in found} <= {stop for _, stop in groups}
        assert [n for g in found for n in range(g.start, g.stop)] == list(range(first, len(sizes)))


def test_only_a_common_beginning_is_held() -> None:
    assert held("abc", []) == 0
    assert held("abc", ["a"]) == 1
    assert held("abc", ["ab", "a"]) == 2
    assert held("abc", ["abcd"]) == 3
    # The same layer on another base is another layer to an engine.
    assert held("abc", ["bc", "xbc", "c"]) == 0
    assert held("abc", ["ac"]) == 1


# As engines 20.10 and 26.1 with overlay2, and 26.1 with the containerd store, said it.
@pytest.mark.parametrize(
    "said",
    [
        "open /var/lib/docker/tmp/docker-import-123/blobs/sha256/{0}: no such file or directory",
        "Error response from daemon: failed to unpack loaded image: failed to extract layer sha256:{1}: "
        "failed to get reader from content store: content digest sha256:{0}: not found",
    ],
)
def test_what_an_engine_lacks_by_its_own_words(said: str) -> None:
    ids = [f"sha256:{letter * 64}" for letter in "abc"]
    assert lacking(said.format("b" * 64, "b" * 64), ids) == 1
    assert lacking(said.format("b" * 64, "b" * 64), ids[:1]) is None
    assert lacking(said.format("f" * 64, "f" * 64), ids) is None
    assert lacking("no space left on device", ids) is None
    assert lacking("open /var/lib/docker/tmp/x/repositories: no such file or directory", ids) is None


def test_room_by_store() -> None:
    assert room_needed("overlay2", [5, 70, 20]) == 165
    assert room_needed("containerd", [5, 70, 20]) == 190
    assert room_needed("overlay2", []) == room_needed("containerd", []) == 0


ROOMS = """\
room|/var/lib/containerd|/dev/a 1000 600 400 60% /a|/dev/a 1000 600 400 60% /a
room|/var/lib/docker|/dev/b 2000 600 1400 60% /b|/dev/b 1000 600 400 60% /b
"""


_DOCKER = r"""#!/bin/sh
case $* in
*DriverStatus*) echo '[["Backing Filesystem","extfs"]]' ;;
*DockerRootDir*) printf '%s\n' "$ROOT" ;;
"images "*) echo sha256:a ;;
*) printf '%s\n' '["sha256:a"] ["toolkit-part:0123-aaaa-1"]' ;;
esac
"""


def test_what_a_host_calls_its_folders_is_one_value(tmp_path: Path) -> None:
    """The engine's folder has a name that looks like the next parts of the answer."""
    root = tmp_path / f"a\n@@images@@\n{NONCE} images 4\nb\n@@images@@"
    root.mkdir(parents=True)
    (tmp_path / "docker").write_text(_DOCKER)
    (tmp_path / "docker").chmod(0o755)
    argv = [str(token) for token in holdings_command(NONCE).argv]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROOT": str(root)}
    done = subprocess.run(argv, env=env, capture_output=True, check=True)
    found = parse_holdings(done.stdout, NONCE)
    assert (found.store, found.chains) == ("overlay2", (("sha256:a",),))
    assert found.room and found.room.path == str(root) and found.room.total > 0


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("moved", [True, False])
def test_the_free_space_of_a_containerd_that_was_moved(tmp_path: Path, quote: str, moved: bool) -> None:
    """Its data is on another disk than that of Docker and that of the usual folder."""
    data = tmp_path / "big disk" / "containerd"
    data.mkdir(parents=True)
    (tmp_path / "docker").write_text(_DOCKER.replace("Backing Filesystem", "io.containerd.snapshotter.v1"))
    (tmp_path / "docker").chmod(0o755)
    key = "root" if moved else "other"
    table = f'[plugins."io.containerd.x"]\nroot = "{tmp_path}"\n'
    (tmp_path / "config.toml").write_text(f"version = 2\n{key} = {quote}{data}{quote}  # moved\n{table}")
    words = [str(token) for token in holdings_command(NONCE).argv]
    argv = [word.replace("/etc/containerd/config.toml", f"'{tmp_path}/config.toml'") for word in words]
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROOT": str(tmp_path)}
    found = parse_holdings(subprocess.run(argv, env=env, capture_output=True, check=True).stdout, NONCE)
    assert found.store == "containerd" and found.room
    assert found.room.path in ((str(data),) if moved else ("/var/lib/containerd", str(tmp_path)))


@pytest.mark.parametrize("prefix", ["docker.io/library/", "localhost/"])
def test_what_a_host_with_podman_holds(prefix: str) -> None:
    images = f'["sha256:a"] ["{prefix}toolkit-part:0123-aaaa-1","docker.io/library/other:1"]\n'
    found = parse_holdings(framed(NONCE, driver="podman overlay", images=images), NONCE)
    assert (found.store, found.parts_of("0123")) == ("podman", ("toolkit-part:0123-aaaa-1",))
    assert len(found.parts) == 1


def test_what_a_host_holds() -> None:
    images = (
        '["sha256:a","sha256:b"] ["x:1","toolkit-part:0123-aaaa-2"]\n'
        'null null\n["sha256:c"] ["toolkit-part:4567-bbbb-1"]\n'
    )
    data = b"banner\n" + framed(NONCE, driver="[[driver]]", images=images, room=ROOMS)
    found = parse_holdings(data, NONCE)
    assert found.store == "overlay2" and found.room and found.room.mount == "/b"
    assert found.chains == (("sha256:a", "sha256:b"), (), ("sha256:c",))
    assert found.parts_of("0123") == ("toolkit-part:0123-aaaa-2",) and len(found.parts) == 2
    driver = '[["driver-type","io.containerd.snapshotter.v1"]]'
    other = parse_holdings(framed(NONCE, driver=driver, images=images, room=ROOMS), NONCE)
    assert other.store == "containerd" and other.room and other.room.mount == "/a"
    # An engine that has started its own containerd keeps all data below its root.
    for address, mount in (
        ("/var/run/docker/containerd/containerd.sock", "/b"),
        ("/run/containerd.sock", "/a"),
    ):
        about = json.dumps({"Address": address, "Namespaces": {"Containers": "moby"}})
        own = parse_holdings(framed(NONCE, driver=driver, containerd=about, images=images, room=ROOMS), NONCE)
        assert own.room and own.room.mount == mount
    bare = parse_holdings(framed(NONCE), NONCE)
    assert bare.room is None and bare.chains == ()
    with pytest.raises(DecodeError, match="the last section is missing"):
        parse_holdings(data[:-1], NONCE)
