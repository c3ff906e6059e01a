"""Rules for combinations of variables: contradictions, and debugging settings that reduce throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from toolkit.core.finding import Verdict
from toolkit.env_lint.values import c_number, is_number
from toolkit.env_lint.variables import Complaint, Setting, listed
from toolkit.hostsfile.errors import shown

_YES = ("1", "y", "yes", "t", "true")
_BTL = "^openib"  # the value in the images and on mpirun's command line


class Conflict(NamedTuple):
    """A complaint about the first of ``settings``, caused by the others."""

    settings: tuple[Setting, ...]
    complaint: Complaint

    @property
    def host(self) -> str:
        """The host of the complaint, if one of the variables belongs to one host."""
        return next((s.host for s in self.settings if s.host), "")


Settings = Mapping[str, Setting]


def find_conflicts(settings: Settings) -> Iterator[Conflict]:
    """Return the contradictions between these variables."""
    for rule in _RULES:
        yield from rule(settings)


def _conflict(verdict: Verdict, what: str, fix: str, *settings: Setting) -> Conflict:
    return Conflict(settings, Complaint(verdict, what, fix))


def _names(settings: tuple[Setting, ...]) -> str:
    return listed(s.name for s in settings)


def _has(settings: tuple[Setting, ...]) -> str:
    return "has" if len(settings) == 1 else "have"


def _with(settings: Settings, *prefixes: str, but: str = "") -> tuple[Setting, ...]:
    return tuple(s for name, s in settings.items() if name.startswith(prefixes) and name != but and s.value)


def _on(settings: Settings, name: str) -> Setting | None:
    """Return a switch that C reads as a number, if it is on."""
    found = settings.get(name)
    return found if found and c_number(found.value) else None


def _yes(settings: Settings, *names: str) -> Setting | None:
    """Return a switch that torch reads, if it is on."""
    return next((settings[n] for n in names if n in settings and settings[n].value.lower() in _YES), None)


def _is(settings: Settings, name: str, *values: str) -> Setting | None:
    found = settings.get(name)
    return found if found and found.value.lower() in values else None


def _number(settings: Settings, name: str) -> int | None:
    found = settings.get(name)
    return c_number(found.value) if found and is_number(found.value) else None


def _void(why: Setting, how: str, names: tuple[Setting, ...]) -> Conflict:
    what = f"{why.name}={shown(why.value)} disables {how}, so {_names(names)} {_has(names)} no effect"
    return _conflict("warning", what, f"remove {why.name}, or remove {_names(names)}", why, *names)


def _without_infiniband(settings: Settings) -> Iterator[Conflict]:
    names = _with(settings, "NCCL_IB_", but="NCCL_IB_DISABLE")
    off, net = _on(settings, "NCCL_IB_DISABLE"), _is(settings, "NCCL_NET", "socket")
    if off and (wanted := _is(settings, "NCCL_NET", "ib")):
        what = "NCCL fails, because NCCL_NET=IB requires InfiniBand, which NCCL_IB_DISABLE=1 disables"
        yield _conflict("error", what, "remove NCCL_NET or NCCL_IB_DISABLE", wanted, off)
    elif names and (why := off or net):
        yield _void(why, "InfiniBand", names)


def _without_plugin(settings: Settings) -> Iterator[Conflict]:
    names = _with(settings, "OFI_NCCL_", "FI_EFA_")
    net, none = _is(settings, "NCCL_NET", "socket", "ib"), _is(settings, "NCCL_NET_PLUGIN", "none")
    if names and (why := net or none):
        yield _void(why, "network plugins such as the plugin for libfabric", names)
    plugin = settings.get("NCCL_NET_PLUGIN")
    if net and plugin and plugin.value and not none:
        what = f"NCCL_NET={shown(net.value)} selects a built-in network, so NCCL uses no network plugin"
        yield _conflict("warning", what, "remove NCCL_NET or NCCL_NET_PLUGIN", plugin, net)


def _provider(settings: Settings) -> Iterator[Conflict]:
    provider, names = settings.get("FI_PROVIDER"), _with(settings, "FI_EFA_")
    if provider and provider.value and names:
        value = provider.value.lower()
        if ("efa" in value) == value.startswith("^"):
            # No table defines the format of this value, so no finding contains the value.
            what = f"the value of {provider.name} disables EFA, so {_names(names)} {_has(names)} no effect"
            fix = f"remove {provider.name}, or remove {_names(names)}"
            yield _conflict("warning", what, fix, provider, *names)


def _ranges(settings: Settings) -> Iterator[Conflict]:
    for what in ("NCHANNELS", "CTAS", "P2P_NCHANNELS"):
        low, high = f"NCCL_MIN_{what}", f"NCCL_MAX_{what}"
        least, most = _number(settings, low), _number(settings, high)
        if least is not None and most is not None and least > most:
            text = f"{low}={least} is larger than {high}={most}"
            yield _conflict("warning", text, f"set {low} to at most {high}", settings[low], settings[high])
    threads, each = (_number(settings, n) for n in ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"))
    if threads and each and threads * each > 64:
        text = f"{threads} threads with {each} sockets each exceed NCCL's limit of 64 sockets per connection"
        both = settings["NCCL_NSOCKS_PERTHREAD"], settings["NCCL_SOCKET_NTHREADS"]
        yield _conflict("warning", text, f"set NCCL_NSOCKS_PERTHREAD={max(64 // threads, 1)}", *both)


def _peer_to_peer(settings: Settings) -> Iterator[Conflict]:
    off, level = _on(settings, "NCCL_P2P_DISABLE"), settings.get("NCCL_P2P_LEVEL")
    if off and level:
        what = "NCCL_P2P_LEVEL has no effect while NCCL_P2P_DISABLE=1 is set"
        yield _conflict("warning", what, "remove NCCL_P2P_LEVEL or NCCL_P2P_DISABLE", level, off)


def _torch_errors(settings: Settings) -> Iterator[Conflict]:
    wait = _yes(settings, "TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
    for name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"):
        if wait and _number(settings, name):
            what = f"PyTorch ignores {name} while {wait.name} is enabled"
            yield _conflict("warning", what, f"remove {wait.name}", settings[name], wait)
    dump = _yes(settings, "TORCH_NCCL_DUMP_ON_TIMEOUT")
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if dump and _number(settings, name) == 0:
            what = f"PyTorch writes empty dumps for {dump.name} while {name}=0 is set"
            yield _conflict(
                "warning", what, f"remove {name}; the default is 2000 entries", dump, settings[name]
            )


def _open_mpi(settings: Settings) -> Iterator[Conflict]:
    if (out := settings.get("OMPI_MCA_btl_tcp_if_exclude")) and out.value:
        what = (
            "Open MPI uses no TCP between hosts if btl_tcp_if_exclude and btl_tcp_if_include are both set, "
            "and toolkit sets btl_tcp_if_include"
        )
        fix = f"remove {out.name}  # ranks use only the data network"
        yield _conflict("error", what, fix, out)
    btl = settings.get("OMPI_MCA_btl")
    chosen = btl.value if btl and btl.value else _BTL
    for part in ("tcp", "openib"):
        names = _with(settings, f"OMPI_MCA_btl_{part}_")
        if names and (part in chosen.lstrip("^").split(",")) == chosen.startswith("^"):
            what = f"OMPI_MCA_btl={shown(chosen)} disables {part}, so {_names(names)} {_has(names)} no effect"
            yield _conflict("warning", what, f"remove {_names(names)}", *names, *filter(None, (btl,)))
    tuned = tuple(s for s in _with(settings, "OMPI_MCA_coll_tuned_") if "_algorithm" in s.name)
    switch = "OMPI_MCA_coll_tuned_use_dynamic_rules"
    if tuned and not _is(settings, switch, *_YES, "enabled"):
        what = f"Open MPI ignores {_names(tuned)} unless {switch}=1 is set"
        yield _conflict("warning", what, f"set {switch}=1", *tuned)


def _horovod(settings: Settings) -> Iterator[Conflict]:
    for name in ("HOROVOD_CONTROLLER", "HOROVOD_CPU_OPERATIONS"):
        if gloo := _is(settings, name, "gloo"):
            what = f"Horovod ranks that use MPI crash, because {name} selects Gloo"
            fix = f"remove {name}; to use Gloo, run with --launcher horovodrun-gloo"
            yield _conflict("error", what, fix, gloo)
    if (log := settings.get("HOROVOD_AUTOTUNE_LOG")) and not _on(settings, "HOROVOD_AUTOTUNE"):
        what = "Horovod writes no autotune log unless HOROVOD_AUTOTUNE=1 is set"
        yield _conflict("warning", what, f"set HOROVOD_AUTOTUNE=1, or remove {log.name}", log)
    times = _with(settings, "HOROVOD_STALL_CHECK_TIME_", "HOROVOD_STALL_SHUTDOWN_TIME_")
    if times and (off := _on(settings, "HOROVOD_STALL_CHECK_DISABLE")):
        what = f"{off.name}=1 disables the stall check, so {_names(times)} {_has(times)} no effect"
        yield _conflict("warning", what, "remove HOROVOD_STALL_CHECK_DISABLE", off, *times)


_RULES: tuple[Callable[[Settings], Iterator[Conflict]], ...] = (
    _without_infiniband,
    _without_plugin,
    _provider,
    _ranges,
    _peer_to_peer,
    _torch_errors,
    _open_mpi,
    _horovod,
)


class _Cost(NamedTuple):
    name: str
    applies: Callable[[str], bool]
    what: str


def find_costs(settings: Settings) -> Iterator[tuple[Setting, Complaint]]:
    """Return the settings that reduce the throughput of a job, each with its effect."""
    for cost in _COSTS:
        setting = settings.get(cost.name)
        if setting and setting.value and cost.applies(setting.value):
            yield setting, Complaint("warning", cost.what, f"remove {cost.name} after debugging")
    yield from _nccl_log(settings)


def _nccl_log(settings: Settings) -> Iterator[tuple[Setting, Complaint]]:
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
            fix = "set NCCL_DEBUG_SUBSYS=INIT,NET, or set NCCL_DEBUG=WARN after debugging"
            yield parts, Complaint("warning", what, fix)
            return
    if level.value.upper() == "TRACE":
        what = (
            "without NCCL_DEBUG_SUBSYS=CALL, release builds of NCCL print no trace output, so TRACE has the "
            "same effect as INFO"
        )
        fix = "set NCCL_DEBUG=INFO, or keep TRACE and set NCCL_DEBUG_SUBSYS=CALL"
        yield level, Complaint("warning", what, fix)


def _nonzero(value: str) -> bool:
    return c_number(value) != 0


def _any(value: str) -> bool:
    return True


def _one_of(*words: str) -> Callable[[str], bool]:
    return lambda value: value.lower() in words


_WAIT = "the CPU thread of each rank waits for each collective"
_UCX_LEVELS = ("trace", "req", "data", "async", "func", "poll")
_COSTS = (
    _Cost(
        "CUDA_LAUNCH_BLOCKING",
        _nonzero,
        "the CPU waits until each CUDA kernel has finished",
    ),
    _Cost(
        "PYTORCH_NO_CUDA_MEMORY_CACHING",
        _any,
        "PyTorch calls the GPU driver for each allocation and release of GPU memory",
    ),
    _Cost(
        "TORCH_DISTRIBUTED_DEBUG",
        _one_of("detail"),
        "PyTorch runs an extra collective before each collective",
    ),
    _Cost("TORCH_NCCL_BLOCKING_WAIT", _one_of(*_YES), _WAIT),
    _Cost("NCCL_BLOCKING_WAIT", _one_of(*_YES), _WAIT),
    _Cost("TORCH_NCCL_NAN_CHECK", _one_of(*_YES), "PyTorch searches the input of each collective for NaN"),
    _Cost("NCCL_CHECK_POINTERS", _nonzero, "NCCL queries CUDA about each pointer of each call"),
    _Cost(
        "NCCL_CHECK_MODE", _one_of("debug_local", "debug_global"), "NCCL checks the arguments of each call"
    ),
    _Cost("NCCL_P2P_DISABLE", _nonzero, "NCCL uses no direct memory access between GPUs of one host"),
    _Cost(
        "NCCL_SHM_DISABLE",
        _nonzero,
        "on one host, ranks whose GPUs have no peer-to-peer access communicate over the network",
    ),
    _Cost("HOROVOD_TIMELINE", _any, "Horovod writes events for every tensor of every step to a file"),
    _Cost("HOROVOD_LOG_LEVEL", _one_of("trace", "debug"), "Horovod writes log lines for every tensor"),
    _Cost(
        "UCX_LOG_LEVEL",
        _one_of(*_UCX_LEVELS),
        "UCX writes many log lines unless UCX was built with --disable-logging",
    ),
    _Cost("FI_LOG_LEVEL", _one_of("debug"), "debug builds of libfabric write many log lines"),
)
