"""Cases of the GPUs' health."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.checks.recorded import NEW_COLUMNS, OLD_COLUMNS, TAIL, card, gpus, marks, process
from tests.unit.checks.scenes import Case, scene, with_file, with_host, with_service
from tests.unit.cluster_world import JOB_ID, gpu
from toolkit.checks.model import Scene
from toolkit.core.facts import Gpu, Mig


def _card(**changes: str) -> Scene:
    return scene(gpu_health=gpus(card(0), card(1, **changes)))


def _older(**changes: str) -> Scene:
    """The GPUs of a driver that has reset_status in place of gpu_recovery_action."""
    columns = NEW_COLUMNS.replace("gpu_recovery_action", "reset_status.reset_required")
    return scene(gpu_health=gpus(card(0, columns), card(1, columns, **changes), columns=columns))


def _tail(more: str, *cards: str) -> Scene:
    return scene(gpu_health=gpus(*cards, tail=TAIL + more))


def _xid(code: int, words: str) -> str:
    return f"log:[ 8843.308145] NVRM: Xid (PCI:0000:21:00): {code}, pid=4711, name=python, {words}\n"


def _second(**changes: str) -> Scene:
    """The second GPU of gpu2 has defects, and another user's process."""
    return _tail(_APP + "rows:GPU-1, No, Yes\n", card(0), card(1, **changes))


_APP = "app|GPU-1|811|20312|S|bob|python3\n"
_OURS = marks("gpu2", process(811, JOB_ID))
_RUNS = scene(gpu_health=gpus(tail=TAIL + _APP), marks=_OURS)
_ONE = _RUNS.seen["gpu1"]
_NO_GPU = scene(gpu_health="")
_EXCLUSIVE = card(1, compute_mode="Exclusive_Process")


def _with_gpus(**by_host: tuple[Gpu, ...]) -> Scene:
    base = scene()
    for host, found in by_host.items():
        base = with_host(base, host, {"gpus": found})
    return base


_MIXED = (gpu(0), replace(gpu(1), name="NVIDIA GeForce RTX 3060"))
_SPLIT = (gpu(0), replace(gpu(1), migs=(Mig(0, "MIG-a", "1g.5gb"),)))
_HALVES = (Mig(0, "MIG-a", "3g.20gb"), Mig(1, "MIG-b", "3g.20gb"))
_PARTS = with_file(
    with_host(_tail("", card(0), _EXCLUSIVE), "gpu2", {"gpus": (gpu(0), replace(gpu(1), migs=_HALVES))}),
    gpus=2,
    gpu_ids=("MIG-a", "MIG-b"),
)
_NEWER = tuple(replace(gpu(i), driver="580.65.06") for i in (0, 1))
_SMALLER = tuple(replace(gpu(i), name="NVIDIA GeForce RTX 3060") for i in (0, 1))

CASES = (
    *(
        Case(check, "ok", base)
        for check in (
            *("gpu-memory", "gpu-xid", "gpu-throttle", "gpu-busy", "gpu-mode", "gpu-persistence"),
            "gpu-link",
        )
        for base in (scene(), _NO_GPU, scene(gpu_health=gpus(card(0, OLD_COLUMNS), columns=OLD_COLUMNS)))
    ),
    *(
        Case(
            check,
            "ok",
            with_file(_tail(_APP + _xid(79, "x"), card(0, compute_mode="Prohibited")), gpus=0),
            "no ",
        )
        for check in ("gpu-memory", "gpu-xid", "gpu-busy", "gpu-mode")
    ),
    *(
        Case(f"gpu-{name}", "ok", with_file(base, gpus=1, gpu_ids=ids))
        for name, base in (
            ("memory", _second(ecc__errors__uncorrected__volatile__total="3")),
            ("memory", _second(gpu_recovery_action="Reboot")),
            ("throttle", _second(clocks_event_reasons__active="0x0000000000000040")),
            ("busy", _second()),
            ("busy", _second(compute_mode="Exclusive_Process")),
            ("mode", _second(compute_mode="Prohibited")),
            ("link", _second(pcie__link__width__current="4")),
            ("alike", _with_gpus(gpu2=_MIXED)),
        )
        for ids in ((), ("0",), ("GPU-0",))
    ),
    # The kernel omits the function of a PCI address. The first GPU is at 11:00.
    *(
        Case("gpu-xid", verdict, with_file(_tail(_xid(79, "x").replace("21:00", place)), gpus=1))
        for place, verdict in (("21:00", "ok"), ("11:00", "warning"), ("31:00", "warning"))
    ),
    # A service uses the second GPU, and ranks use the first GPU or none: no job fails.
    *(
        Case(f"gpu-{name}", "warning", with_service(with_file(base, gpus=count), ("1",)))
        for name, base in (
            ("memory", _second(ecc__errors__uncorrected__volatile__total="3")),
            ("memory", _second(gpu_recovery_action="Reboot")),
            ("xid", _tail(_xid(79, "x"))),
            ("throttle", _second(clocks_event_reasons__active="0x0000000000000040")),
            ("mode", _second(compute_mode="Prohibited")),
            ("link", _second(pcie__link__width__current="4")),
        )
        for count in (0, 1)
    ),
    *(
        Case(f"gpu-{name}", "ok", with_service(with_file(base, gpus=count), ("1",)))
        for name, base in (
            ("busy", _second(compute_mode="Exclusive_Process")),  # the process of the service
            ("mode", _second(compute_mode="Exclusive_Process")),
            ("alike", _with_gpus(gpu2=_MIXED)),
        )
        for count in (0, 1)
    ),
    Case("gpu-mode", "error", with_service(_card(compute_mode="Prohibited"), ("1",)), "no CUDA"),
    # All GPUs count as used if a declared GPU is missing; a GPU is used if one of its MIG devices is used.
    *(
        Case("gpu-mode", "error", with_file(_card(compute_mode="Prohibited"), gpus=1, gpu_ids=ids), "no CUDA")
        for ids in (("7",), ("1",), ("GPU-1",))
    ),
    Case(
        "gpu-mode",
        "error",
        with_file(
            with_host(_card(compute_mode="Prohibited"), "gpu2", {"gpus": _SPLIT}), gpus=1, gpu_ids=("MIG-a",)
        ),
        "no CUDA program can use the GPU",
    ),
    Case(
        "gpu-memory",
        "error",
        _card(ecc__errors__uncorrected__volatile__total="2"),
        "2 uncorrectable memory errors",
    ),
    Case("gpu-memory", "error", _card(gpu_recovery_action="Reset"), "that requires a reset"),
    Case("gpu-memory", "error", _card(gpu_recovery_action="Drain and Reset"), "that requires a reset"),
    Case("gpu-memory", "error", _card(gpu_recovery_action="Reboot"), "that requires a reboot of the host"),
    Case("gpu-memory", "error", _older(reset_status__reset_required="Yes"), "that requires a reset"),
    Case("gpu-memory", "warning", _card(retired_pages__pending="Yes"), "bad memory pages"),
    Case("gpu-memory", "ok", _card(ecc__errors__uncorrected__volatile__total="[N/A]")),
    Case("gpu-memory", "error", _tail("rows:GPU-1, No, Yes\n"), "could not remap a bad memory row"),
    Case("gpu-memory", "warning", _tail("rows:GPU-1, Yes, No\n"), "and remaps the row at its next reset"),
    Case(
        "gpu-xid",
        "warning",
        _tail(_xid(79, "GPU has fallen off the bus.") * 2),
        "(fallen off the bus) at least 2 times",
    ),
    # A program's own fault.
    Case("gpu-xid", "warning", _tail(_xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 02")), "NVLink error"),
    Case("gpu-xid", "ok", _tail(_xid(31, "Ch 00000008, intr 00000000. MMU Fault"))),
    Case("gpu-xid", "not checked", scene(gpu_health=gpus(tail="")), "cannot read the kernel log"),
    # As the probe counts equal errors.
    Case("gpu-xid", "warning", _tail("log:      3 NVRM: Xid (PCI:0000:21:00): 79\n"), "at least 3 times"),
    Case(
        "gpu-xid",
        "warning",
        scene(gpu_health="log:\nlog:      1 NVRM: Xid (PCI:0000:21:00): 119\nno answer within 70 s\n"),
        "Xid 119 (GSP does not respond)",
    ),
    *(
        Case(f"gpu-{name}", "not checked", scene(gpu_health="no answer within 70 s\n"), "lists no GPU")
        for name in ("memory", "throttle", "busy", "mode", "persistence", "link")
    ),
    Case(
        "gpu-throttle",
        "warning",
        _card(clocks_event_reasons__active="0x0000000000000040"),
        "because of the temperature",
    ),
    Case("gpu-throttle", "warning", _card(clocks_event_reasons__active="0x0000000000000088"), "power supply"),
    Case("gpu-throttle", "ok", _card(clocks_event_reasons__active="0x0000000000000004")),
    Case(
        "gpu-throttle",
        "not checked",
        _card(clocks_event_reasons__active="[N/A]"),
        "does not report clock throttle reasons",
    ),
    Case("gpu-busy", "warning", _tail(_APP), "python3 (pid 811, user bob) uses 20312 MiB"),
    Case("gpu-busy", "warning", _tail(_APP.replace("|S|", "|D|")), "uninterruptible sleep"),
    Case("gpu-busy", "warning", _RUNS, f"uses 20312 MiB of GPU memory for job {JOB_ID}, which has ended"),
    Case(
        "gpu-busy",
        "ok",
        with_host(
            _RUNS,
            "gpu1",
            answers={**_ONE.answers, "marks": marks("gpu1", process(700, JOB_ID, "SUPERVISOR"))},
        ),
    ),
    Case("gpu-busy", "error", _tail(_APP, card(0), _EXCLUSIVE), "allows no other process in its"),
    Case("gpu-mode", "error", _card(compute_mode="Prohibited"), "no CUDA program can use the GPU"),
    Case("gpu-mode", "ok", _card(compute_mode="Exclusive_Process")),
    Case(
        "gpu-mode",
        "error",
        with_file(_tail("", card(0), _EXCLUSIVE), gpus=1, gpu_ids=("1",), slots=2),
        "2 slots cannot share 1 GPU in",
    ),
    # A MIG device is a device of its own for CUDA.
    Case("gpu-mode", "ok", with_file(_PARTS, slots=2)),
    Case("gpu-mode", "error", with_file(_PARTS, slots=3), "3 slots cannot share 1 GPU in"),
    Case(
        "gpu-mode", "error", with_file(_tail("", card(0), _EXCLUSIVE), slots=4), "4 slots cannot share 2 GPUs"
    ),
    Case(
        "gpu-persistence",
        "warning",
        scene(gpu_health=gpus(card(0, persistence_mode="Disabled"))),
        "are lost when no program uses the GPU",
    ),
    # The server of a screen, or another card's mode, keeps the driver loaded.
    Case("gpu-persistence", "ok", _card(persistence_mode="Disabled", display_active="Enabled")),
    Case("gpu-link", "warning", _card(pcie__link__width__current="4"), "4 of 16 lanes"),
    Case(
        "gpu-link",
        "not checked",
        _card(pcie__link__width__current="8", pcie__link__gen__current="1"),
        "low-power state",
    ),
    Case("gpu-link", "not checked", _card(pcie__link__width__current="[N/A]"), "the width of the PCIe link"),
    # As a DGX Spark reports it.
    Case(
        "gpu-link",
        "ok",
        _card(
            name="NVIDIA GB10",
            pcie__link__width__current="1",
            pcie__link__gen__current="1",
            pcie__link__gen__max="1",
        ),
    ),
    Case("gpu-alike", "ok", scene()),
    Case("gpu-alike", "ok", _with_gpus(gpu1=(), gpu2=(), cpu3=()), "ranks use no GPU"),
    Case(
        "gpu-alike",
        "warning",
        _with_gpus(cpu3=()),
        "ranks on cpu3 (no GPU) compute on the CPU, but ranks on gpu1, gpu2 compute",
        fix="toolkit run --exclude cpu3 SCRIPT  #",
    ),
    Case(
        "gpu-alike",
        "warning",
        _with_gpus(gpu1=(), cpu3=()),
        "ranks on gpu1, cpu3 (no GPU) compute on the CPU, but ranks on gpu2 compute",
        fix="in hosts.yaml: set hosts/gpu1/slots to 0; toolkit run --exclude cpu3 SCRIPT  #",
    ),
    Case("gpu-alike", "ok", with_file(_with_gpus(cpu3=()), "cpu3", slots=0)),
    Case("gpu-alike", "ok", with_file(_with_gpus(gpu2=_NEWER), "gpu2", gpus=0)),
    Case("gpu-alike", "warning", _with_gpus(gpu2=_NEWER), "550.54.14 on gpu1, cpu3; 580.65.06 on gpu2"),
    Case("gpu-alike", "warning", _with_gpus(gpu2=_SMALLER), "RTX 3060 on gpu2"),
)
