"""All cases, those of engine and clock first; a verdict of a check without a case fails the test."""

from __future__ import annotations

import json

from tests.unit.checks import (
    cases_disk,
    cases_gpu,
    cases_gpu_setup,
    cases_image,
    cases_leftovers,
    cases_machine,
    cases_mounts,
)
from tests.unit.checks.scenes import Case, info, scene, with_host
from toolkit.core.facts import ContainerFacts
from toolkit.errors import NotReady
from toolkit.protocol.names import LABEL_CLUSTER, LABEL_OWNER

_FOREIGN = ContainerFacts(
    "f" * 64, "toolkit-demo-worker", "running", {LABEL_CLUSTER: "demo", LABEL_OWNER: "mallory"}
)
_NO_DOCKER = "sh: 1: docker: not found"
_REMOTE = info(Name="gpu1")
_DESKTOP = info(OperatingSystem="Docker Desktop", Name="docker-desktop")
_SNAP = info(DockerRootDir="/var/snap/docker/common/var-lib-docker")


def _podman(driver: str = "overlay", logs: str = "journald", runtime: str = "crun") -> str:
    host = {"logDriver": logs, "ociRuntime": {"name": runtime}, "hostname": "gpu2"}
    return json.dumps({"host": host, "store": {"graphDriverName": driver}, "version": {"Version": "5.4.2"}})


CASES = (
    *(
        Case(check, "ok", scene())
        for check in (
            *("docker", "docker-version", "docker-storage", "docker-users", "docker-here", "docker-logs"),
            *("docker-runtime", "docker-confined", "cluster-name", "clock"),
        )
    ),
    *(
        Case(check, "not checked", scene(docker=_NO_DOCKER), "the container engine")
        for check in (
            *("docker-storage", "docker-users", "docker-here", "docker-logs", "docker-runtime"),
            "docker-confined",
        )
    ),
    Case(
        "docker",
        "error",
        with_host(scene(docker=_NO_DOCKER), "gpu2", error=NotReady("docker is not installed", "install it")),
        "docker is not installed",
    ),
    Case(
        "docker-version",
        "error",
        with_host(scene(), "gpu2", {"docker": "19.03.15"}),
        "but the host has 19.03.15",
    ),
    Case(
        "docker-version",
        "not checked",
        with_host(scene(), "gpu2", {"docker": ""}),
        "cannot use the container",
    ),
    Case("docker-storage", "warning", scene(docker=info(Driver="vfs")), "vfs"),
    Case(
        "docker-storage",
        "warning",
        scene(docker=_podman(driver="vfs")),
        "podman uses",
        fix="on gpu2: podman system reset  # removes all containers, images and volumes of the SSH user",
    ),
    Case("docker-users", "error", scene(docker=info(SecurityOptions=["name=userns"])), "userns-remap"),
    Case("docker-users", "error", scene(docker=info(SecurityOptions=["name=rootless"])), "rootless"),
    Case("docker-linger", "ok", scene(linger="Linger=no")),
    Case("docker-linger", "ok", scene(docker=info(SecurityOptions=["name=rootless"]), linger="Linger=yes")),
    Case("docker-linger", "ok", scene(docker=info(SecurityOptions=["name=rootless"]))),
    Case(
        "docker-linger",
        "warning",
        scene(docker=info(SecurityOptions=["name=rootless"]), linger="Linger=no"),
        "stops the containers",
        fix="on gpu2: sudo loginctl enable-linger ",
    ),
    Case("docker-here", "error", scene(docker=_REMOTE), "the engine of host gpu1 instead of gpu2"),
    Case("docker-here", "error", scene(docker=_DESKTOP), "virtual machine"),
    Case("docker-logs", "error", scene(docker=info(LoggingDriver="none")), "no container logs"),
    Case("docker-logs", "error", scene(docker=_podman(logs="none")), "podman keeps"),
    Case("docker-runtime", "warning", scene(docker=info(DefaultRuntime="runsc")), "runsc"),
    Case("docker-runtime", "warning", scene(docker=_podman(runtime="runsc")), "runsc"),
    Case("docker-confined", "warning", scene(docker=_SNAP), "snap"),
    Case("docker-confined", "warning", scene(docker=info(SecurityOptions=["name=selinux"])), "SELinux"),
    Case("cluster-name", "error", with_host(scene(), "gpu2", {"containers": (_FOREIGN,)}), "mallory"),
    Case("clock", "warning", with_host(scene(), "gpu2", ahead=-4.2), "4.2 s behind"),
    Case("clock", "error", with_host(scene(), "gpu2", ahead=252.0), "4 min 12 s ahead"),
    Case("clock", "not checked", with_host(scene(), "gpu2", ahead=None), "fractions"),
    *cases_machine.CASES,
    *cases_image.CASES,
    *cases_disk.CASES,
    *cases_mounts.CASES,
    *cases_gpu_setup.CASES,
    *cases_gpu.CASES,
    *cases_leftovers.CASES,
)
