"""Settings for debugging that cost speed: right while a fault is looked for, forgotten afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from toolkit.env_lint.complaint import Complaint, Setting
from toolkit.env_lint.values import c_number


class _Cost(NamedTuple):
    name: str
    applies: Callable[[str], bool]
    what: str


def find_costs(settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, Complaint]]:
    """Return the settings that slow a job down, each with what it does."""
    for cost in _COSTS:
        setting = settings.get(cost.name)
        if setting and setting.value and cost.applies(setting.value):
            yield setting, Complaint("warning", cost.what, "drop it when the search is over")
    yield from _nccl_log(settings)


def _nccl_log(settings: Mapping[str, Setting]) -> Iterator[tuple[Setting, Complaint]]:
    level, parts = settings.get("NCCL_DEBUG"), settings.get("NCCL_DEBUG_SUBSYS")
    if level is None or level.value.upper() not in ("INFO", "TRACE"):
        return
    if parts and parts.value:
        named = set(parts.value.removeprefix("^").upper().split(","))
        calls = {"COLL", "CALL", "ALL"} & named
        if parts.value.startswith("^"):
            calls = {"COLL", "CALL"} - named if "ALL" not in named else set()
        if calls - (set() if level.value.upper() == "TRACE" else {"CALL"}):
            what = "NCCL writes a line for every collective of every rank"
            fix = "set NCCL_DEBUG=WARN when the search is over, or NCCL_DEBUG_SUBSYS=INIT,NET"
            yield parts, Complaint("warning", what, fix)
            return
    if level.value.upper() == "TRACE":
        what = "the image's NCCL is built without trace lines: this writes what INFO writes"
        yield level, Complaint("warning", what, "set NCCL_DEBUG=INFO, or NCCL_DEBUG_SUBSYS=CALL with it")


def _number(value: str) -> bool:
    return c_number(value) != 0


def _torch(value: str) -> bool:
    return value.lower() in ("1", "y", "yes", "t", "true")


def _any(value: str) -> bool:
    return True


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in words


_WAIT = "ranks wait for each collective on the CPU instead of going on"
_UCX_LEVELS = ("trace", "req", "data", "async", "func", "poll")
_COSTS = (
    _Cost("CUDA_LAUNCH_BLOCKING", _number, "every kernel is waited for before the next is started"),
    _Cost("PYTORCH_NO_CUDA_MEMORY_CACHING", _any, "torch asks the driver for all GPU memory anew"),
    _Cost("TORCH_DISTRIBUTED_DEBUG", _one_of("detail"), "torch checks every collective by one more"),
    _Cost("TORCH_NCCL_BLOCKING_WAIT", _torch, _WAIT),
    _Cost("NCCL_BLOCKING_WAIT", _torch, _WAIT),
    _Cost("TORCH_NCCL_NAN_CHECK", _torch, "every tensor is searched for NaN before it is sent"),
    _Cost("NCCL_CHECK_POINTERS", _number, "NCCL asks CUDA about every pointer of every call"),
    _Cost("NCCL_CHECK_MODE", _one_of("debug_local", "debug_global"), "NCCL checks every call"),
    _Cost("NCCL_P2P_DISABLE", _number, "GPUs of one host no longer reach each other's memory directly"),
    _Cost("NCCL_SHM_DISABLE", _number, "what shared memory would carry within a host takes the network"),
    _Cost("HOROVOD_TIMELINE", _any, "Horovod writes events for every tensor of every step to a file"),
    _Cost("HOROVOD_LOG_LEVEL", _one_of("trace", "debug"), "Horovod writes lines for every tensor"),
    _Cost("UCX_LOG_LEVEL", _one_of(*_UCX_LEVELS), "UCX writes lines for every message"),
    _Cost("FI_LOG_LEVEL", _one_of("debug"), "libfabric writes lines for every message"),
)
