"""Cases of the image."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.scenes import Case, info, scene, with_host
from tests.unit.cluster_world import NAMED, running
from toolkit.checks.model import Scene, Seen
from toolkit.core.command import Result

_OTHER = replace(NAMED, id="sha256:" + "2" * 64, identity="fedcba9876543210")


def _unsendable(base: Scene) -> Scene:
    return replace(base, sendable=False)


_NOWHERE = replace(_unsendable(with_host(scene(), "gpu1", {"images": ()})), image=None)
_PARTLY_SILENT = replace(_NOWHERE, seen=_NOWHERE.seen | {"cpu3": Seen("cpu3")})  # cpu3 did not answer
_LATE = "the Docker engine of your machine did not answer `docker info` within 30 s"
_SILENT = replace(scene(), seen={}, image=None, sendable=False)
_DIFFERENT = with_host(scene(), "gpu2", {"images": (_OTHER,)})
_RUNS_OTHER = with_host(
    scene(),
    "gpu2",
    {"images": (NAMED, _OTHER), "containers": (replace(running("demo", "gpu2", "worker"), image=_OTHER.id),)},
)


def _pulled(error: str = "", **info_: object) -> Scene:
    """gpu2 pulls the image, and the registry answers that."""
    base = scene(docker=info(**info_))  # type: ignore[arg-type]
    answer = Result(1 if error else 0, "", error)
    return replace(base, inventory=replace(base.inventory, pull="always"), registry={"gpu2": answer})


CASES = (
    Case("image-pull", "ok", scene()),
    Case("image-pull", "ok", _pulled()),
    Case("image-pull", "error", _pulled("no such manifest: docker.io/none:1"), "does not contain the image"),
    Case(
        "image-pull",
        "error",
        _pulled("denied: requested access to the resource is denied"),
        "denies the SSH user access",
    ),
    Case("image-pull", "error", _pulled("dial tcp: lookup reg: no such host"), "cannot reach the registry"),
    Case(
        "image-pull", "not checked", _pulled("dial tcp: timeout", HttpsProxy="http://p:1"), "mirror or proxy"
    ),
    Case("image-pull", "not checked", _pulled("what is this?"), "the registry query for"),
    Case("image-pull", "not checked", replace(_pulled(), registry={}), "did not query the registry"),
    *(Case(check, "ok", scene()) for check in ("image", "image-there", "image-running")),
    Case("image", "error", _NOWHERE, "neither your machine nor any host"),
    Case("image", "error", _PARTLY_SILENT, "neither your machine nor any host that answered has the image"),
    Case("image", "error", _unsendable(_DIFFERENT), "gpu2 has fedcba9876543210"),
    Case("image", "ok", _DIFFERENT),
    Case(
        "image",
        "error",
        replace(_NOWHERE, local_silence=_LATE),
        f"no host has the image toolkit:cpu, and {_LATE}",
    ),
    Case(
        "image",
        "error",
        replace(_unsendable(_DIFFERENT), local_silence=_LATE),
        f"gpu2 has fedcba9876543210), and {_LATE}",
    ),
    Case(
        "image-there",
        "error",
        replace(_unsendable(scene()), local_silence=_LATE),
        f"and {_LATE}",
        host="cpu3",
    ),
    Case("image", "not checked", _SILENT, "no host answered", host=""),
    Case("image-there", "ok", scene(), "`toolkit up` sends toolkit:cpu to this host", host="cpu3"),
    Case(
        "image-there",
        "ok",
        _DIFFERENT,
        "differs from the image on your machine, so `toolkit up` replaces the image",
    ),
    Case("image-there", "error", _unsendable(scene()), "is missing", host="cpu3"),
    Case("image-there", "not checked", _unsendable(_DIFFERENT), "different images with the tag"),
    Case("image-there", "not checked", _NOWHERE, "no host has the image"),
    Case(
        "image-there",
        "not checked",
        with_host(scene(), "gpu2", {"docker": ""}),
        "cannot use the container engine [docker]",
    ),
    Case("image-running", "warning", _RUNS_OTHER, "created from image fedcba9876543210"),
    Case("image-running", "not checked", _NOWHERE, "no host has the image"),
    *(
        Case(check, "not checked", _PARTLY_SILENT, "cpu3 did not answer, and no other host has the image")
        for check in ("image-there", "image-running")
    ),
)
