"""Cases of the machines themselves."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.unit.checks.recorded import machine
from tests.unit.checks.scenes import Case, info, scene, with_file, with_host, with_image
from tests.unit.cluster_world import gpu, running
from toolkit.checks.model import Scene

_AVAILABLE = "MemAvailable:   208665920 kB"
_SWAP = "SwapFree:        8388604 kB"
_POWERSAVE, _PSTATE = "scaling_governor:powersave", "scaling_driver:intel_pstate"
_BALANCING = ("numa_balancing:0", "numa_balancing:1")
_BUSY = ("loadavg:1.39 0.78 0.08", "loadavg:140.00 131.20 60.00")
_PSI = "some avg10=0.00 avg60=0.00"


def _with(*changes: tuple[str, str]) -> Scene:
    return scene(machine_files=machine("gpu2", *changes))


def _same_engine() -> Scene:
    """gpu2 is gpu1 under another name."""
    return with_host(scene(docker=info("gpu1"), machine_files=machine("gpu1")), "gpu2", {"hostname": "gpu1"})


def _same_podman(**facts: Any) -> Scene:
    """gpu2 is gpu1 under another name, and its engine has no ID."""
    podman = json.dumps({"host": {"hostname": "gpu1"}, "version": {"Version": "5.4.0"}})
    same = {"hostname": "gpu1", "interfaces": scene().facts["gpu1"].interfaces}
    return with_host(scene(docker=podman, machine_files=machine("gpu1")), "gpu2", {**same, **facts})


CASES = (
    *(
        Case(check, "ok", scene())
        for check in (
            *("same-machine", "host-names", "arch", "programs", "limits", "memory", "memory-pressure"),
            *("memory-errors", "load", "cpu-governor", "numa-balancing", "slots"),
        )
    ),
    *(
        Case(check, "not checked", scene(machine_files=""), "")
        for check in (
            *("programs", "limits", "memory", "memory-pressure", "memory-errors", "load"),
            *("cpu-governor", "slots"),
        )
    ),
    Case("same-machine", "error", _same_engine(), "gpu1 and gpu2 are the same host"),
    # Hosts of a lab share a kernel, machines cloned from one disk an engine's id and a name.
    Case("same-machine", "ok", scene(machine_files=machine("gpu1"))),
    Case("same-machine", "ok", with_host(scene(docker=info("gpu1")), "gpu2", {"hostname": "gpu1"})),
    Case("same-machine", "error", _same_podman(), "gpu1 and gpu2 are the same host"),
    Case("same-machine", "ok", _same_podman(interfaces=scene().facts["gpu2"].interfaces)),
    Case("same-machine", "ok", _same_podman(hostname="gpu2")),
    Case(
        "same-machine",
        "not checked",
        with_host(scene(docker=info("gpu1"), machine_files=""), "gpu2", {"hostname": "gpu1"}),
        "gpu1 and gpu2 have the same host name gpu1, and toolkit cannot compare their boot IDs",
    ),
    Case("same-machine", "ok", scene(machine_files="")),
    # docker commands of gpu2 go to gpu1: another check's fault.
    Case("same-machine", "ok", scene(docker=info("gpu1"), machine_files=machine("gpu1"))),
    Case(
        "host-names", "ok", with_host(scene(), "gpu2", {"hostname": "gpu1"}), "have the same host name gpu1"
    ),
    Case(
        "host-names",
        "ok",
        _with(("127.0.0.1\tlocalhost", "127.0.1.1 gpu2.lan gpu2")),
        "gpu2 has the address 127.0.1.1",
    ),
    Case(
        "arch", "error", with_host(scene(), "gpu2", {"arch": "aarch64"}), "processor is arm64, but the image"
    ),
    Case(
        "arch",
        "error",
        replace(with_host(scene(), "gpu2", {"arch": "aarch64"}), image=None),
        "all hosts of a cluster need the same image",
    ),
    Case("arch", "ok", with_image(scene(), arch="")),
    Case("programs", "error", scene(machine_files=machine("gpu2") + "missing:sha256sum\n"), "sha256sum"),
    Case("limits", "warning", _with(("open files            1024 ", "open files            64   ")), "is 64"),
    Case("memory", "warning", _with((_AVAILABLE, "MemAvailable:      624288 kB")), "0.6 of 252 GiB"),
    Case("memory", "warning", _with(("MemTotal:       264684092", "MemTotal:       2646840")), "/dev/shm"),
    Case("memory-pressure", "warning", _with((_PSI, "some avg10=44.00 avg60=31.00")), "31 % of the last"),
    Case(
        "memory-pressure",
        "warning",
        _with(
            ("pressure/memory", "none"),
            (_SWAP, "SwapFree: 4604 kB"),
            (_AVAILABLE, "MemAvailable: 2000000 kB"),
        ),
        "8 GiB are swapped out",
    ),
    # What was swapped out once, on a machine with memory to spare.
    Case("memory-pressure", "ok", _with(("pressure/memory", "none"), (_SWAP, "SwapFree: 4604 kB"))),
    Case(
        "memory-errors",
        "warning",
        _with(("mc1/ue_count:0", "mc1/ue_count:3")),
        "3 uncorrectable memory errors",
    ),
    Case("load", "warning", _with(_BUSY), "the 5-minute load average is 131.20 on 64 processors"),
    Case("load", "ok", with_host(_with(_BUSY), "gpu2", {"containers": (running("demo", "gpu2", "worker"),)})),
    Case(
        "load",
        "not checked",
        scene(machine_files=machine("gpu2") + "container:\n"),
        "is a container",
    ),
    Case("cpu-governor", "warning", _with((_PSTATE, "scaling_driver:acpi-cpufreq")), "low clock speed"),
    Case("cpu-governor", "warning", _with(("preference:performance", "preference:power")), "low clock speed"),
    Case("cpu-governor", "ok", _with((_POWERSAVE, "scaling_governor:ondemand"))),
    Case(
        "numa-balancing",
        "warning",
        with_host(_with(_BALANCING), "gpu2", {"arch": "aarch64", "gpus": (gpu(0),)}),
        "between 2 NUMA nodes",
    ),
    Case("numa-balancing", "ok", _with(_BALANCING), "automatic NUMA balancing is on"),
    Case("slots", "warning", with_file(scene(), slots=65), "65 slots share 64 processors"),
)
