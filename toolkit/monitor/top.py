"""Gauges of hosts, GPUs, jobs and ranks as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolkit.core.disk_space import size
from toolkit.core.gauges import HostGauges, JobGauges, job_gauges
from toolkit.core.printable import table

_LINE = 60
# A host that uses a larger share of its memory gets an alarm.
_FULL = 0.95
# A working GPU with less than this share of its maximum clock gets an alarm: it is hot or short of power.
_THROTTLED, _WORKING = 0.7, 50.0


@dataclass(frozen=True)
class Cell:
    """A text of a table; ``alarm`` highlights it."""

    text: str
    alarm: bool = False


@dataclass(frozen=True)
class Table:
    """Rows under a heading; ``head`` names the columns."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def tables(hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> tuple[Table, ...]:
    """Return the tables that have rows.

    Args:
        silent: hosts that did not report, each with the reason.
    """
    jobs = job_gauges(hosts)
    made = (_hosts(hosts, silent), _gpus(hosts), _jobs(jobs), _ranks(jobs))
    return tuple(one for one in made if one.rows)


def top_text(hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> str:
    """Return the tables as plain text; a cell with an alarm has a star."""
    blocks = []
    for one in tables(hosts, silent):
        rows = [[cell.text + (" *" if cell.alarm else "") for cell in row] for row in one.rows]
        blocks.append(table(one.head, rows))
    return "\n".join(blocks)


def top_json(hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> dict[str, Any]:
    """Return the gauges as JSON values; units are those of ``toolkit.core.gauges``."""
    jobs = [
        {
            "id": job.id,
            "world_size": job.world_size,
            "launcher": job.launcher,
            "step": job.step,
            "steps_per_s": job.steps_per_s,
            "samples_per_s": job.samples_per_s,
            "behind": {str(rank): why for rank, why in job.behind.items()},
        }
        for job in job_gauges(hosts)
    ]
    plain = [{key: value for key, value in asdict(host).items() if key != "jobs"} for host in hosts]
    return {"hosts": plain, "jobs": jobs, "silent": dict(silent)}


def _hosts(hosts: Sequence[HostGauges], silent: Mapping[str, str]) -> Table:
    head = ("host", "processors", "memory", "in", "out", "link", "disk read", "written", "free", "note")
    rows = []
    for host in hosts:
        used, total = host.memory_used, host.memory_total
        full = used is not None and bool(total) and used > _FULL * (total or 0)
        link = f"{host.interface} {host.mbit} Mb/s" if host.mbit else host.interface
        rows.append(
            (
                Cell(host.host),
                Cell(f"{_number(host.busy, 1)} of {host.cores}"),
                Cell(f"{_size(used)} of {_size(total)}", full),
                *(Cell(_rate(value), _is_full(value, host.mbit)) for value in (host.received, host.sent)),
                Cell(link),
                Cell(_rate(host.disk_read)),
                Cell(_rate(host.disk_written)),
                Cell(_size(host.disk_free), host.disk_free is not None and host.disk_free < 2**30),
                Cell(""),
            )
        )
    blank = tuple(Cell("") for _ in head[2:])
    rows += [(Cell(name), *blank, Cell(why, True)) for name, why in silent.items()]
    return Table("hosts", head, tuple(rows))


def _is_full(rate: float | None, mbit: int | None) -> bool:
    return rate is not None and bool(mbit) and rate * 8 > 0.9e6 * (mbit or 0)


def _gpus(hosts: Sequence[HostGauges]) -> Table:
    head = ("host", "gpu", "busy", "memory", "power", "temperature", "clock")
    rows = []
    for host in hosts:
        for gpu in sorted(host.gpus, key=lambda one: one.index):
            slow = (
                gpu.clock is not None
                and bool(gpu.clock_max)
                and gpu.clock < _THROTTLED * (gpu.clock_max or 0)
                and (gpu.utilization or 0) > _WORKING
            )
            rows.append(
                (
                    Cell(host.host),
                    Cell(str(gpu.index)),
                    Cell(_with(gpu.utilization, " %")),
                    Cell(f"{_number(gpu.memory_used)} of {_number(gpu.memory_total)} MiB"),
                    Cell(_with(gpu.power, " W")),
                    Cell(_with(gpu.temperature, " °C")),
                    Cell(f"{_number(gpu.clock)} of {_number(gpu.clock_max)} MHz", slow),
                )
            )
    return Table("GPUs", head, tuple(rows))


def _jobs(jobs: Sequence[JobGauges]) -> Table:
    head = ("job", "ranks", "launcher", "step", "steps/s", "samples/s", "blocked by")
    rows = []
    for job in jobs:
        there = f"{len(job.ranks)} of {job.world_size}" if job.world_size else str(len(job.ranks))
        why = "; ".join(f"rank {rank}: {word}" for rank, word in list(job.behind.items())[:3])
        rows.append(
            (
                Cell(job.id),
                Cell(there, bool(job.world_size) and len(job.ranks) != job.world_size),
                Cell(job.launcher),
                Cell("-" if job.step is None else str(job.step)),
                Cell(_throughput(job.steps_per_s)),
                Cell(_throughput(job.samples_per_s)),
                Cell(why, bool(why)),
            )
        )
    return Table("jobs", head, tuple(rows))


def _ranks(jobs: Sequence[JobGauges]) -> Table:
    several = len(jobs) > 1
    head = ("job",) * several + (
        "rank",
        "host",
        "cpu",
        "memory",
        "step",
        "steps/s",
        "no output for",
        "last line",
    )
    rows = []
    for job in jobs:
        for host, rank in job.ranks:
            held = rank.rank in job.behind
            cells = (
                Cell(str(rank.rank), held),
                Cell(host.host),
                Cell(_number(rank.cpu, 1)),
                Cell(_size(rank.memory)),
                Cell("-" if rank.step is None else str(rank.step)),
                Cell(_throughput(rank.steps_per_s)),
                Cell(_with(rank.silent, " s")),
                Cell(_short(rank.line)),
            )
            rows.append((Cell(job.id.rpartition("-")[2]),) * several + cells)
    return Table("ranks", head, tuple(rows))


def _short(line: str) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in line)
    return plain if len(plain) <= _LINE else plain[: _LINE - 1] + "…"


def _number(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _with(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _size(value: int | None) -> str:
    return "-" if value is None else size(value)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{size(int(value))}/s"


def _throughput(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
