"""One scene per verdict of each check; a check without a case for each of its verdicts fails the test."""

from __future__ import annotations

from dataclasses import dataclass

from tests.unit.checks.scenes import info, scene, with_host
from toolkit.checks.model import Scene
from toolkit.core.facts import ContainerFacts
from toolkit.core.finding import Verdict
from toolkit.core.names import LABEL_CLUSTER, LABEL_OWNER
from toolkit.errors import NotReady


@dataclass(frozen=True)
class Case:
    """A scene and what the check must say of it: verdict, host, and words of the sentence."""

    check: str
    verdict: Verdict
    scene: Scene
    words: str = ""
    host: str = "gpu2"


_FOREIGN = ContainerFacts(
    "f" * 64, "toolkit-demo-worker", "running", {LABEL_CLUSTER: "demo", LABEL_OWNER: "mallory"}
)
_NO_DOCKER = "sh: 1: docker: not found"

CASES = (
    Case("docker", "ok", scene()),
    Case(
        "docker",
        "error",
        with_host(scene(docker=_NO_DOCKER), "gpu2", error=NotReady("docker is not installed", "install it")),
        "docker is not installed",
    ),
    Case("docker-version", "ok", scene()),
    Case("docker-version", "error", with_host(scene(), "gpu2", {"docker": "19.03.15"}), "19.03.15 is older"),
    Case("docker-version", "not checked", with_host(scene(), "gpu2", {"docker": ""}), "cannot be used"),
    Case("docker-storage", "ok", scene()),
    Case("docker-storage", "warning", scene(docker=info(Driver="vfs")), "vfs"),
    Case("docker-storage", "not checked", scene(docker=_NO_DOCKER), "cannot be used"),
    Case("docker-users", "ok", scene()),
    Case("docker-users", "error", scene(docker=info(SecurityOptions=["name=userns"])), "userns-remap"),
    Case("docker-users", "warning", scene(docker=info(SecurityOptions=["name=rootless"])), "rootless"),
    Case("docker-users", "not checked", scene(docker=_NO_DOCKER), "cannot be used"),
    Case("cluster-name", "ok", scene()),
    Case("cluster-name", "error", with_host(scene(), "gpu2", {"containers": (_FOREIGN,)}), "mallory"),
    Case("clock", "ok", scene()),
    Case("clock", "warning", with_host(scene(), "gpu2", ahead=-4.2), "4.2 s behind"),
    Case("clock", "error", with_host(scene(), "gpu2", ahead=252.0), "4 min 12 s ahead"),
    Case("clock", "not checked", with_host(scene(), "gpu2", ahead=None), "fractions"),
)
