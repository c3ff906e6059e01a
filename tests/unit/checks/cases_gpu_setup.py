"""Cases of the layers between GPUs and containers."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.recorded import TAIL, card, gpus
from tests.unit.checks.scenes import Case, info, scene, with_file, with_host, with_image, with_service
from toolkit.checks.model import Scene, Seen
from toolkit.cluster.probe_containers import Looked
from toolkit.core.facts import Mig

_PCI = "pci:0000:11:00.0 nvidia\npci:0000:21:00.0 nvidia\n"
_MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.144\n"
_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
    " NVIDIA driver is installed and running.\n"
)
_LOST = (
    "Unable to determine the device handle for GPU 0000:21:00.0: GPU is lost.  Reboot the system to recover"
    " this GPU\n"
)
_INFOROM = "WARNING: infoROM is corrupted at gpu 0000:21:00.0\n"
_NO_RUNTIME = {"runc": {"path": "runc"}}
# As NVIDIA's own images have it: enough for any GPU, or for a data center's with an older driver.
_REQUIRE = "cuda>=12.8 brand=unknown,driver>=535,driver<536 brand=tesla,driver>=535,driver<536"


def _says(text: str) -> Scene:
    return scene(gpu_health=text)


def _asks(base: Scene | None = None, **env: str) -> Scene:
    return with_image(base or scene(), env=tuple(env.items()))


def _driver(version: str) -> Scene:
    facts = scene().facts["gpu2"]
    return with_host(scene(), "gpu2", {"gpus": tuple(replace(g, driver=version) for g in facts.gpus)})


def _drivers(version: str, base: Scene | None = None) -> Scene:
    """A scene in which all hosts have this driver."""
    all_ = base or scene()
    for name, facts in all_.facts.items():
        all_ = with_host(all_, name, {"gpus": tuple(replace(g, driver=version) for g in facts.gpus)})
    return all_


def _split() -> Scene:
    """A scene in which MIG has split the first GPU of gpu2."""
    first, second = scene().facts["gpu2"].gpus
    migs = tuple(Mig(index, f"MIG-{letter}", "1g.5gb") for index, letter in enumerate("abc"))
    return with_host(scene(), "gpu2", {"gpus": (replace(first, migs=migs), second)})


def _lost(base: Scene) -> Scene:
    """The scene in which gpu2 did not answer."""
    return replace(base, seen={**base.seen, "gpu2": Seen("gpu2")})


_V100 = card(0, compute_cap="7.0", name="Tesla V100")
_K80 = card(1, compute_cap="3.7", name="Tesla K80")
_NONE = with_host(scene(gpu_health=_PCI), "gpu2", {"gpus": ()})
_OURS = _asks(NVIDIA_REQUIRE_CUDA="cuda>=13.0", TOOLKIT_WITH="")
CUDA_WITHOUT_GPU = _OURS
for _name in _OURS.seen:
    CUDA_WITHOUT_GPU = with_host(CUDA_WITHOUT_GPU, _name, {"gpus": ()}, answers={})
_KERNELS = TAIL + "kernel:6.8.0-51-generic\nkernel:6.8.0-99-lowlatency\nkernel:5.15.0-99-generic\n"
_KERNELS_RHEL = """\
module:5.14.0-427.13.1.el9_4.x86_64
kernel:5.14.0-427.13.1.el9_4.x86_64
kernel:5.14.0-427.el9.x86_64
kernel:5.14.0-503.11.1.el9_5.x86_64
kernel:5.14.0-503.11.1.el9_5.x86_64+rt
running:5.14.0-427.13.1.el9_4.x86_64
"""

CASES = (
    *(
        Case(check, "ok", scene())
        for check in (
            *("gpu-driver", "gpu-count", "gpu-containers", "gpu-kept", "gpu-fabric", "gpu-next-kernel"),
        )
    ),
    *(
        Case(check, "ok", with_host(_says(""), "gpu2", {"gpus": ()}))
        for check in ("gpu-driver", "gpu-count", "gpu-cuda", "gpu-generation", "gpu-containers", "gpu-kept")
    ),
    Case("gpu-driver", "error", _says(_PCI + _MISMATCH), "the NVIDIA driver was updated"),
    Case("gpu-driver", "error", _says(_PCI + _NO_DRIVER), "the NVIDIA driver is not loaded"),
    Case("gpu-driver", "error", _says(gpus(card(0)) + _LOST), "has stopped responding"),
    Case("gpu-driver", "error", _says("no answer within 70 s\n"), "nvidia-smi is too slow or hangs"),
    *(
        Case(check, "not checked", _says(_PCI + _LOST), "nvidia-smi lists no GPU on this host [gpu-driver]")
        for check in ("gpu-generation", "gpu-kept", "gpu-next-kernel")
    ),
    Case("gpu-driver", "warning", _says(gpus() + _INFOROM), "infoROM is corrupted"),
    Case("gpu-driver", "warning", _says(gpus(card(0))), "lists 1 (missing: 0000:21:00.0)"),
    Case("gpu-driver", "warning", _NONE, "the PCI bus has 2 NVIDIA GPUs, but nvidia-smi is missing"),
    *(
        Case(check, "ok", with_file(_asks(base, NVIDIA_REQUIRE_CUDA="cuda>=13.0"), gpus=0), "no GPU")
        for check in ("gpu-driver", "gpu-cuda", "gpu-containers", "gpu-kept")
        for base in (_NONE, _says(_PCI + _MISMATCH))
    ),
    Case("gpu-driver", "ok", _says(_PCI.replace("nvidia", "vfio-pci"))),
    Case("gpu-count", "error", with_file(scene(), gpus=4), "hosts.yaml declares 4 GPUs, but"),
    Case("gpu-count", "error", with_file(scene(), gpus=2, gpu_ids=("0", "7")), "hosts.yaml declares GPU 7"),
    Case("gpu-count", "ok", with_file(scene(), gpus=1)),
    Case("gpu-count", "ok", with_service(scene(), ("1",))),
    Case(
        "gpu-count",
        "warning",
        with_service(scene(), ("7",)),
        "hosts.yaml declares GPU 7",
        fix="services/serve",
    ),
    Case("gpu-count", "warning", with_file(scene(), slots=3), "3 slots share 2 GPUs"),
    Case("gpu-count", "ok", with_file(_split(), gpus=2, gpu_ids=("MIG-a", "GPU-1"))),
    # A GPU that is split counts as one slot, unless the file sets more slots.
    Case("gpu-count", "ok", _split()),
    *(
        Case(
            "gpu-count",
            "warning",
            with_file(_split(), **changes),
            f"{words} through MIG devices, but NCCL accepts two ranks on one GPU only in version 2.30",
            fix="keep one MIG device of each GPU in hosts/gpu2/gpus",
        )
        for changes, words in (
            ({"gpus": 3, "gpu_ids": ("MIG-a", "MIG-b", "MIG-c")}, "3 slots share 1 GPU"),
            ({"gpus": 3, "gpu_ids": ("MIG-a", "MIG-b", "GPU-1")}, "3 slots share 2 GPUs"),
            ({"slots": 4}, "4 slots share 2 GPUs"),
        )
    ),
    Case("gpu-count", "ok", with_file(_split(), gpus=2, gpu_ids=("MIG-a", "MIG-b"), slots=1)),
    Case(
        "gpu-count",
        "ok",
        with_file(_split(), gpus=2, gpu_ids=("MIG-a", "MIG-b"), env=(("NCCL_MULTI_RANK_GPU_ENABLE", "1"),)),
    ),
    Case("gpu-count", "error", with_file(_split(), gpus=1, gpu_ids=("MIG-x",)), "declares GPU MIG-x"),
    Case("gpu-image", "ok", _OURS, host=""),
    Case(
        "gpu-image",
        "ok",
        with_host(CUDA_WITHOUT_GPU, "gpu2", {"gpus": ()}, answers={"gpu-health": _PCI}),
        host="",
    ),
    Case("gpu-image", "ok", with_file(CUDA_WITHOUT_GPU, gpus=2), host=""),
    Case("gpu-image", "ok", with_image(CUDA_WITHOUT_GPU, env=()), "not a toolkit GPU image", host=""),
    Case("gpu-image", "not checked", replace(CUDA_WITHOUT_GPU, image=None), "no host has the image", host=""),
    Case("gpu-image", "not checked", _lost(CUDA_WITHOUT_GPU), "gpu2 did not", host=""),
    Case(
        "gpu-image",
        "warning",
        CUDA_WITHOUT_GPU,
        "is built for CUDA, but no host has an NVIDIA GPU",
        host="",
        fix="toolkit image build --flavor cpu  # then in hosts.yaml: set image: toolkit:cpu",
    ),
    Case("gpu-cuda", "not checked", scene(), "does not declare its CUDA version"),
    Case("gpu-cuda", "not checked", replace(scene(), image=None), "no host has the image"),
    Case("gpu-cuda", "ok", _asks(NVIDIA_REQUIRE_CUDA="cuda>=12.4")),
    Case(
        "gpu-cuda",
        "error",
        _asks(NVIDIA_REQUIRE_CUDA=_REQUIRE),
        "supports CUDA 12.4, but the image needs cuda>=12.8",
    ),
    Case("gpu-cuda", "not checked", _asks(_driver("535.183.01"), NVIDIA_REQUIRE_CUDA=_REQUIRE), "brand"),
    # A driver of a branch that is newer than our table.
    Case(
        "gpu-cuda",
        "not checked",
        _asks(_driver("610.10"), NVIDIA_REQUIRE_CUDA="cuda>=13.9"),
        "cannot evaluate NVIDIA_REQUIRE_CUDA of the image",
    ),
    Case("gpu-cuda", "ok", _asks(_driver("610.10"), NVIDIA_REQUIRE_CUDA="cuda>=13.0")),
    Case(
        "gpu-cuda",
        "ok",
        _asks(NVIDIA_REQUIRE_CUDA="cuda>=13.0", NVIDIA_DISABLE_REQUIRE="true", CUDA_VERSION="12.8.1"),
    ),
    Case("gpu-cuda", "warning", _asks(CUDA_VERSION="13.0.1"), "needs driver 580 or newer"),
    # The fix names the image for the drivers and GPUs of all hosts.
    Case(
        "gpu-cuda",
        "error",
        _asks(NVIDIA_REQUIRE_CUDA="cuda>=13.0", TOOLKIT_WITH=""),
        fix="toolkit image build --cuda 12  # then in hosts.yaml: set image: toolkit:gpu-cuda12; or on gpu2",
    ),
    Case(
        "gpu-cuda",
        "error",
        _asks(_drivers("520.61.05"), NVIDIA_REQUIRE_CUDA="cuda>=12.0", TOOLKIT_WITH=""),
        fix="on gpu2: install NVIDIA driver 525 or newer  # or use an image with an older CUDA",
    ),
    Case("gpu-cuda", "ok", _asks(_drivers("525.60.13"), NVIDIA_REQUIRE_CUDA="cuda>=12.0", TOOLKIT_WITH="")),
    # Programs of one major version run with the driver of its first release.
    Case("gpu-cuda", "ok", _asks(CUDA_VERSION="12.9.0")),
    Case("gpu-generation", "not checked", scene(), "not known"),
    Case("gpu-generation", "ok", _asks(CUDA_VERSION="13.0.1")),
    Case(
        "gpu-generation",
        "error",
        _asks(_says(gpus(_V100)), CUDA_VERSION="13.0.1"),
        "Tesla V100 (compute capability 7.0) is too old for CUDA 13",
        fix="toolkit image build --cuda 12  # then in hosts.yaml: set image: toolkit:gpu-cuda12",
    ),
    # The unused Kepler GPU has no effect on the fix.
    Case(
        "gpu-generation",
        "error",
        with_file(_asks(_says(gpus(_V100, _K80)), CUDA_VERSION="13.0.1"), gpus=1),
        fix="toolkit image build --cuda 12",
    ),
    Case("gpu-generation", "ok", with_file(_asks(_says(gpus(card(0), _K80)), CUDA_VERSION="13.0.1"), gpus=1)),
    # A service uses the second GPU, with the image of the cluster or with its own.
    *(
        Case(
            "gpu-generation",
            verdict,
            with_service(
                with_file(_asks(_says(gpus(card(0), _K80)), CUDA_VERSION="13.0.1"), gpus=count),
                ("1",),
                image=image,
            ),
        )
        for verdict, image in (("warning", ""), ("ok", "triton:1"))
        for count in (0, 1)
    ),
    *(
        Case(check, "warning", with_service(with_file(base, gpus=0), ("1",)))
        for check, base in (
            ("gpu-driver", _says(_PCI + _MISMATCH)),
            ("gpu-cuda", _asks(NVIDIA_REQUIRE_CUDA="cuda>=13.0")),
            ("gpu-containers", scene(docker=info(Runtimes=_NO_RUNTIME), gpu_health=gpus(tail=""))),
        )
    ),
    # Kepler: no variant fits.
    Case(
        "gpu-generation",
        "error",
        _asks(_says(gpus(card(0, compute_cap="3.7", name="Tesla K80"))), CUDA_VERSION="13.0.1"),
        fix="toolkit run --exclude gpu2 SCRIPT  # or use an image with CUDA 11",
    ),
    Case(
        "gpu-generation",
        "error",
        _asks(
            _drivers("580.65.06", _says(gpus(card(0, compute_cap="12.0", name="RTX 5090")))),
            NVIDIA_REQUIRE_CUDA="cuda>=12.0",
            TOOLKIT_WITH="",
        ),
        "no code for RTX 5090 (compute capability 12.0): torch in the image supports capabilities 5.0 to 9.x",
        fix="toolkit image build --flavor gpu  # then in hosts.yaml: set image: toolkit:gpu",
    ),
    # The CUDA 12 of another image can have code for newer GPUs.
    Case(
        "gpu-generation",
        "ok",
        _asks(_says(gpus(card(0, compute_cap="12.0", name="RTX 5090"))), NVIDIA_REQUIRE_CUDA="cuda>=12.8"),
    ),
    Case(
        "gpu-containers",
        "error",
        scene(docker=info(Runtimes=_NO_RUNTIME), gpu_health=gpus(tail="")),
        "Container Toolkit is missing",
    ),
    # A container's own refusal is that same fault once more.
    Case(
        "in-start",
        "not checked",
        replace(
            scene(docker=info(Runtimes=_NO_RUNTIME), gpu_health=gpus(tail="")),
            inside={"gpu2": Looked(error="could not select device driver")},
        ),
        "[gpu-containers]",
    ),
    Case(
        "gpu-containers",
        "not checked",
        scene(docker=info(Runtimes=_NO_RUNTIME)),
        "not registered as a Docker runtime",
    ),
    Case(
        "gpu-containers",
        "not checked",
        with_host(scene(docker=info(Runtimes=_NO_RUNTIME)), "gpu2", {"engine": "podman"}),
        "no CDI specification",
        fix="on gpu2: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    Case(
        "gpu-containers", "not checked", scene(docker="docker: not found"), "cannot use the container engine"
    ),
    Case(
        "gpu-containers",
        "ok",
        scene(
            docker=info(Runtimes=_NO_RUNTIME, CDISpecDirs=["/etc/cdi"]),
            gpu_health=gpus(tail="cdi:/etc/cdi/nvidia.yaml\n"),
        ),
    ),
    Case("gpu-kept", "warning", _says(gpus(tail=TAIL.replace("chars:yes\n", ""))), "daemon-reload"),
    Case("gpu-kept", "ok", scene(docker=info(CgroupDriver="cgroupfs"), gpu_health=gpus(tail=""))),
    Case("gpu-kept", "not checked", scene(docker="docker: not found"), "cannot use the container engine"),
    Case("gpu-fabric", "ok", _says(gpus(tail=TAIL + "fabric:active\n"))),
    Case("gpu-fabric", "error", _says(gpus(tail=TAIL + "fabric:failed\n")), "fabric manager is failed"),
    Case("gpu-fabric", "ok", with_file(_says(gpus(tail=TAIL + "fabric:failed\n")), gpus=0)),
    Case(
        "gpu-fabric",
        "warning",
        with_service(with_file(_says(gpus(tail=TAIL + "fabric:failed\n")), gpus=0), ("1",)),
    ),
    Case(
        "gpu-next-kernel",
        "warning",
        _says(gpus(tail=_KERNELS)),
        "the installed kernel 6.8.0-51-generic has no NVIDIA driver",
    ),
    Case("gpu-next-kernel", "ok", _says(gpus(tail=_KERNELS + "module:6.8.0-51-generic\n"))),
    Case(
        "gpu-next-kernel",
        "warning",
        _says(gpus(tail=_KERNELS_RHEL)),
        "the installed kernel 5.14.0-503.11.1.el9_5.x86_64 has no NVIDIA driver",
    ),
    Case("gpu-next-kernel", "ok", _says(gpus(tail=_KERNELS_RHEL + "module:5.14.0-503.11.1.el9_5.x86_64\n"))),
    Case("gpu-next-kernel", "not checked", _says(gpus(tail="running:6.8.0-45-generic\n")), "modinfo"),
)
