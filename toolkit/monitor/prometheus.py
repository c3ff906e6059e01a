"""Gauges of `toolkit top` for Prometheus: text format 0.0.4, base units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolkit.core.gauges import HostGauges


def prometheus_text(cluster: str, hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> str:
    """Return all gauges in the text format of Prometheus, version 0.0.4.

    Units and names follow https://prometheus.io/docs/practices/naming/.
    """
    lines: list[str] = []
    for name, what, samples in _metrics(hosts, silent):
        if samples:
            lines += [f"# HELP toolkit_{name} {what}", f"# TYPE toolkit_{name} gauge"]
            for labels, value in samples:
                inner = ",".join(f'{key}="{_escaped(text)}"' for key, text in (("cluster", cluster), *labels))
                lines.append(f"toolkit_{name}{{{inner}}} {value:.17g}")
    return "\n".join(lines) + "\n" if lines else ""


Samples = list[tuple[tuple[tuple[str, str], ...], float]]

_MIB = 2.0**20
_OF_HOST = (
    ("host_reading_timestamp_seconds", "Time of the measurement by the clock of the host.", "at"),
    ("host_processors", "Number of processors of the host.", "cores"),
    ("host_processors_busy", "Number of processors in use on the host.", "busy"),
    ("host_memory_used_bytes", "Memory in use on the host.", "memory_used"),
    ("host_memory_bytes", "Total memory of the host.", "memory_total"),
    ("host_received_bytes_per_second", "Bytes per second that the data interface receives.", "received"),
    ("host_sent_bytes_per_second", "Bytes per second that the data interface sends.", "sent"),
    ("host_disk_read_bytes_per_second", "Bytes per second read from all disks of the host.", "disk_read"),
    (
        "host_disk_written_bytes_per_second",
        "Bytes per second written to all disks of the host.",
        "disk_written",
    ),
    ("host_disk_free_bytes", "Free space on the disk that contains the job folders.", "disk_free"),
)
_OF_GPU = (
    (
        "gpu_utilization_ratio",
        "Share of the time, from 0 to 1, in which the GPU ran a kernel.",
        "utilization",
        0.01,
    ),
    ("gpu_memory_used_bytes", "GPU memory in use.", "memory_used", _MIB),
    ("gpu_memory_bytes", "Total memory of the GPU.", "memory_total", _MIB),
    ("gpu_power_watts", "Power draw of the GPU.", "power", 1.0),
    ("gpu_temperature_celsius", "Temperature of the GPU.", "temperature", 1.0),
    ("gpu_clock_hertz", "Clock frequency of the GPU's multiprocessors.", "clock", 1e6),
)
_OF_RANK = (
    ("rank_processors_busy", "Number of processors in use by the rank.", "cpu"),
    ("rank_memory_bytes", "Memory in use by the rank.", "memory"),
    ("rank_silent_seconds", "Time since the rank last printed a line.", "silent"),
    ("rank_step", "The last step that the rank printed.", "step"),
    ("rank_steps_per_second", "Steps per second according to the output of the rank.", "steps_per_s"),
    ("rank_samples_per_second", "Samples per second according to the output of the rank.", "samples_per_s"),
)


def _metrics(hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> Iterator[tuple[str, str, Samples]]:
    up: Samples = [((("host", host.host),), 1.0) for host in hosts]
    yield "host_up", "1 if the host answers, otherwise 0.", up + [((("host", name),), 0.0) for name in silent]
    for name, what, key in _OF_HOST:
        yield name, what, _some(((("host", host.host),), getattr(host, key)) for host in hosts)
    for name, what, key, unit in _OF_GPU:
        of_gpus = (
            ((("host", host.host), ("gpu", str(gpu.index)), ("uuid", gpu.uuid)), getattr(gpu, key))
            for host in hosts
            for gpu in host.gpus
        )
        yield name, what, [(labels, value * unit) for labels, value in _some(of_gpus)]
    for name, what, key in _OF_RANK:
        of_ranks = (
            ((("host", host.host), ("job", rank.job), ("rank", str(rank.rank))), getattr(rank, key))
            for host in hosts
            for rank in host.ranks
        )
        yield name, what, _some(of_ranks)


def _some(samples: Any) -> Samples:
    return [(labels, float(value)) for labels, value in samples if value is not None]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
