"""An engine on paper: `docker` as a program that keeps images as the two kinds of store do.

What it does with archives is what engines 20.10 and 26.1 were seen to do: overlay2 takes a layer by its
chain, containerd a blob by its digest, and each lets an archive leave out what it holds. Its state is one
JSON file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

# The program: passes its arguments and the input of `docker load` to `serve`, and exits with the status
# that `serve` returns.
CLIENT = """#!/bin/sh
me=$FAKE_DOCKER.$$
mkfifo "$me.said"
[ "$1" != load ] || cat >"$me.fed"
printf '%s\\037' "$FAKE_DOCKER" "$me" "$@" >"$me.asked"
echo "$me" >"${FAKE_DOCKER%/*}/calls"
{ read -r status; cat; } <"$me.said"
rm -f "$me.said" "$me.fed" "$me.asked"
exit "$status"
"""


def sha(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


class Refused(Exception):
    pass


class Store:
    """Images by Id: names, config, blobs that its manifest names, and whether docker would list it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: dict[str, Any] = json.loads(path.read_text())
        self.images: dict[str, dict[str, Any]] = self.state["images"]
        self.blobs: set[str] = set(self.state["blobs"])

    @property
    def containerd(self) -> bool:
        return bool(self.state["store"] == "containerd")

    def save(self) -> None:
        if self.containerd:
            self.blobs &= {blob for image in self.images.values() for blob in image["blobs"]}
        self.path.write_text(json.dumps({**self.state, "images": self.images, "blobs": sorted(self.blobs)}))

    def whole(self, image: dict[str, Any]) -> bool:
        return not self.containerd or set(image["blobs"]) <= self.blobs

    def chains(self) -> set[tuple[str, ...]]:
        chains = [image["config"]["rootfs"]["diff_ids"] for image in self.images.values()]
        return {tuple(chain[: n + 1]) for chain in chains for n in range(len(chain))}

    def find(self, name: str) -> str | None:
        named = (id_ for id_, image in self.images.items() if name in image["names"])
        return name if name in self.images else next(named, None)

    def inspect(self, id_: str) -> dict[str, Any]:
        image = self.images[id_]
        config = image["config"]
        return {
            "Id": id_,
            "RepoTags": image["names"],
            "Os": config["os"],
            "Architecture": config["architecture"],
            "Config": config["config"],
            "RootFS": {"Layers": config["rootfs"]["diff_ids"]},
        }

    def name(self, id_: str, name: str) -> None:
        for image in self.images.values():
            image["names"] = [one for one in image["names"] if one != name]
        self.images[id_]["names"].append(name)

    def load(self, data: bytes) -> str:
        try:
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                files = {m.name: tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
        except tarfile.TarError as error:
            raise Refused("unexpected EOF") from error
        if "manifest.json" not in files:
            raise Refused("unexpected EOF")
        return self._by_digest(files) if self.containerd else self._by_chain(files)

    def _by_chain(self, files: dict[str, bytes]) -> str:
        (manifest,) = json.loads(files["manifest.json"])
        raw = files[manifest["Config"]]
        config = json.loads(raw)
        chains = self.chains()
        diff_ids = config["rootfs"]["diff_ids"]
        for number, (diff_id, name) in enumerate(zip(diff_ids, manifest["Layers"], strict=True)):
            if tuple(diff_ids[: number + 1]) in chains:
                continue
            if name not in files:
                raise Refused(f"open /var/lib/docker/tmp/docker-import-1/{name}: no such file or directory")
            if (got := sha(files[name])) != diff_id:
                raise Refused(f"invalid diffID for layer {number}: expected {diff_id}, got {got}")
        return self._keep(sha(raw), config, [], manifest["RepoTags"])

    def _by_digest(self, files: dict[str, bytes]) -> str:
        (entry,) = json.loads(files["index.json"])["manifests"]
        raw = files[f"blobs/{entry['digest'].replace(':', '/')}"]
        manifest = json.loads(raw)
        config = json.loads(files[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
        for name, data in files.items():
            if name.startswith("blobs/"):
                if sha(data) != name.removeprefix("blobs/").replace("/", ":"):
                    raise Refused("failed commit on ref: unexpected commit digest")
                self.blobs.add(sha(data))
        chains = self.chains()
        name = entry.get("annotations", {}).get("io.containerd.image.name", "")
        names = [name.removeprefix("docker.io/library/")] if name else []
        wanted = [layer["digest"] for layer in manifest["layers"]]
        said = self._keep(sha(raw), config, wanted, names)
        for number, digest in enumerate(wanted):
            if digest not in self.blobs and tuple(config["rootfs"]["diff_ids"][: number + 1]) not in chains:
                self.save()  # the name stays, as does what has come
                what = f"failed to get reader from content store: content digest {digest}: not found"
                raise Refused(f"failed to extract layer {digest}: {what}")
        return said

    def _keep(self, id_: str, config: dict[str, Any], blobs: list[str], names: list[str] | None) -> str:
        self.images.setdefault(id_, {"names": [], "config": config, "blobs": blobs})
        for name in names or ():
            self.name(id_, name)
        return f"Loaded image: {names[0]}" if names else f"Loaded image ID: {id_}"


def main(store: Store, argv: list[str], fed: bytes) -> str:
    words = [word for word in argv if not word.startswith("--")]
    out: list[str] = []
    if words[0] == "info":
        status = (
            '[["driver-type", "io.containerd.snapshotter.v1"]]' if store.containerd else '[["Backing", "x"]]'
        )
        return status if "Status" in words[1] else str(store.path.parent)
    if words[0] == "images":
        wanted = words[1:]
        whole = {id_: image for id_, image in store.images.items() if store.whole(image)}
        out = [id_ for id_, image in whole.items() if not wanted or wanted[0] in image["names"]]
    elif words[:2] == ["image", "inspect"]:
        shape, names = (words[2], words[3:]) if "--format" in argv else ("", words[2:])
        found = [store.inspect(i) for i in map(store.find, names) if i]
        if len(found) < len(names):
            raise Refused(f"Error: No such image: {names}")
        if "Layers" in shape:
            out = [f"{json.dumps(one['RootFS']['Layers'])} {json.dumps(one['RepoTags'])}" for one in found]
        else:
            out = [json.dumps(found)]
    elif words[0] == "load":
        with store.path.with_suffix(".loads").open("a") as log:
            log.write(f"{len(fed)}\n")
        out = [store.load(fed)]
        store.save()
    elif words[0] == "tag":
        id_ = store.find(words[1])
        if id_ is None:
            raise Refused(f"Error response from daemon: No such image: {words[1]}")
        store.name(id_, words[2])
        store.save()
    elif words[0] == "rmi":
        for name in words[1:]:
            id_ = store.find(name)
            if id_ is not None:
                store.images[id_]["names"] = [one for one in store.images[id_]["names"] if one != name]
                if not store.images[id_]["names"]:
                    del store.images[id_]
        store.save()
    else:
        raise Refused(f"unexpected: {argv}")
    return "\n".join(out)


def serve(folder: Path, calls: int) -> None:
    """Answer the programs of a folder, until an empty line comes.

    Args:
        calls: descriptor of its pipe, which they write their names to.
    """
    with os.fdopen(calls) as lines:
        for line in lines:
            if not line.strip():
                return
            asked = Path(f"{line.strip()}.asked").read_text().split("\037")[:-1]
            fed = Path(f"{asked[1]}.fed")
            data = fed.read_bytes() if fed.is_file() else b""
            try:
                said, status = main(Store(Path(asked[0])), asked[2:], data), 0
            except Refused as error:
                said, status = f"Error response from daemon: {error}", 1
            Path(f"{asked[1]}.said").write_text(f"{status}\n{said}\n" if said else f"{status}\n")
