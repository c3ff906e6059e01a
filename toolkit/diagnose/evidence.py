"""Reports of the hosts of a job about its ranks, printed by toolkit/container/diagnose/inspect_ranks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from toolkit.protocol.evidence import Inspected, SeenProcess, SeenRank, ThreadStack
from toolkit.protocol.names import OWN_LINE

# A thread that waits for one event wakes at most this number of times within half a second.
_WAKES = 3
# A process that wakes in these calls waits for a disk that works.
_DISK_CALLS = frozenset(
    ("read", "write", "open", "openat", "readv", "writev", "pread64", "pwrite64", "fsync", "fdatasync")
)


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack.

    Args:
        text: the source line of the frame; empty for files of Python and of packages.
        handler: whether the line belongs to an exception handler.
    """

    name: str
    file: str
    line: int
    text: str = ""
    handler: bool = False


@dataclass(frozen=True)
class Process:
    """One process of a rank.

    Args:
        state: the state letter of the kernel: R, S, D, T, Z, …
        call: the current system call of the first thread; empty for none, or if it cannot be read.
        target: the file of the system call, with its type if it is not a regular file.
        cpu: CPU cores used during the inspection, 1.0 for one core.
        frames: stack of the first thread, innermost first; empty without py-spy or without Python.
        no_stack: the reason for a missing stack.
        moved: whether the process changed functions or woke repeatedly during the inspection.
    """

    pid: int
    parent: int = 0
    name: str = ""
    state: str = "S"
    call: str = ""
    target: str = ""
    cpu: float = 0.0
    frames: tuple[Frame, ...] = ()
    no_stack: str = ""
    moved: bool = False


@dataclass(frozen=True)
class RankSeen:
    """One rank on its host.

    Args:
        age: seconds since the rank last printed a line; None if the rank has no log.
        lines: the last lines of the rank's output.
        exit_code: None while the rank runs, or if its exit code was not recorded.
        processes: the rank's command and its child processes.
        started: the last start of the rank on its host, in seconds since the epoch; 0 if it is not known.
        oom: whether the kernel killed the rank because memory ran out; None if this is not known.
    """

    rank: int
    host: str
    age: float | None = None
    lines: tuple[str, ...] = ()
    exit_code: int | None = None
    processes: tuple[Process, ...] = ()
    started: float = 0.0
    oom: bool | None = None

    @property
    def last_line(self) -> str:
        """The last line of the rank; a line of toolkit only if the rank has printed no other line."""
        printed = [line for line in self.lines if not line.startswith(OWN_LINE)]
        return (printed or self.lines or ("",))[-1]

    @property
    def alive(self) -> bool:
        """True if the rank runs. Processes that it has started can outlive it."""
        return self.exit_code is None and any(process.state != "Z" for process in self.processes)


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a rank to another host of the job.

    Args:
        unsent, unread: bytes in the kernel: not acknowledged by the other host, not read by this host.
        retries: number of retransmissions of the unsent bytes.
    """

    rank: int
    host: str
    other: str
    state: str
    unsent: int = 0
    unread: int = 0
    retries: int = 0


@dataclass(frozen=True)
class HostSeen:
    """One host of the job.

    Args:
        error: the reason why the host did not report; empty if the host reported.
        is_predicate: whether ``error`` continues a sentence that begins with the host's name, such as
            ``did not answer within 25 s``; otherwise it is the message of a program.
        container: a clause about the state of its container; empty if the container runs.
        oom_kills: number of processes of the container that the kernel killed because memory ran out, since
            the start of the container.
        gpus: one line for each GPU: utilization, power, memory.
        gpu_error: the reason why nvidia-smi did not report its GPUs; empty without an error.
        busy: for each GPU, whether a kernel ran all the time, as while NCCL waits for other ranks.
        py_spy: whether the image on the host has py-spy.
    """

    name: str
    error: str = ""
    container: str = ""
    oom_kills: int = 0
    gpus: tuple[str, ...] = ()
    gpu_error: str = ""
    busy: tuple[bool, ...] = ()
    py_spy: bool = True
    ranks: tuple[RankSeen, ...] = ()
    connections: tuple[Connection, ...] = ()
    is_predicate: bool = False

    @property
    def silence(self) -> str:
        """The reason why the host could not be queried, to follow its name in a sentence."""
        return self.error if self.is_predicate else f"does not answer: {self.error}"

    def is_gpu_busy(self, rank: int) -> bool:
        """Return whether the GPU of a rank is 100 % busy; if that GPU is unknown, whether all GPUs are.

        False if ranks share GPUs: each rank could be the one that uses the GPU.
        """
        ranks = sorted(seen.rank for seen in self.ranks)
        if len(ranks) == len(self.busy) and rank in ranks:
            return self.busy[ranks.index(rank)]
        return len(ranks) <= len(self.busy) and all(self.busy)


@dataclass(frozen=True)
class Evidence:
    """All reports about a job at one moment.

    Args:
        state, reason: from the records of the main host; empty if the main host does not report.
        failed_rank, lost_host: see ``JobStatus``.
        placed: the host of each rank, by rank.
        hosts: every host of the job, each with its report or the reason for a missing report.
    """

    job: str
    state: str
    reason: str
    placed: tuple[str, ...]
    hosts: tuple[HostSeen, ...]
    failed_rank: int | None = None
    lost_host: str = ""

    def host(self, name: str) -> HostSeen:
        """Return the report of a host, an empty one for a host that was not queried."""
        return next((host for host in self.hosts if host.name == name), _not_queried(name))

    def rank(self, rank: int) -> RankSeen | None:
        """Return the report of a host about a rank, None if the host has none or did not answer.

        After a restart on fewer hosts, ``failed_rank`` can be a rank that the job no longer has.
        """
        if rank >= len(self.placed):
            return None
        host = self.host(self.placed[rank])
        return next((seen for seen in host.ranks if seen.rank == rank), None)


def place_ranks(planned: Sequence[str], hosts: Sequence[HostSeen], ended: bool) -> tuple[str, ...]:
    """Return the host of each rank: an elastic launcher can number its ranks in another order of the hosts.

    Args:
        planned: the host of each rank by the record of the job.
        ended: whether the job has ended; then a rank without processes has a host as well.
    """
    found: dict[int, list[RankSeen]] = {}
    for host in hosts:
        for seen in host.ranks:
            found.setdefault(seen.rank, []).append(seen)

    def place(rank: int, name: str) -> str:
        reports = found.get(rank, [])
        # Without a report of its planned host, the rank of a running job can be one that has not started yet.
        if not ended and all(seen.host != name for seen in reports):
            reports = [seen for seen in reports if seen.alive]
        newest = max(reports, key=lambda seen: (seen.alive, seen.started, seen.host == name), default=None)
        return newest.host if newest else name

    return tuple(place(rank, name) for rank, name in enumerate(planned))


def _not_queried(name: str) -> HostSeen:
    return HostSeen(name, "was not queried", is_predicate=True)


def parse_host(name: str, report: Inspected, addresses: Mapping[str, str], container: str = "") -> HostSeen:
    """Return the report of one host.

    Args:
        report: the output of inspect_ranks.py, or only an error.
        addresses: data address -> name of each host of the job.
        container: see ``HostSeen``.
    """
    if report.error:
        return HostSeen(name, report.error, container, is_predicate=bool(report.is_predicate))
    ranks = tuple(_rank(name, row) for row in report.ranks)
    owners = {process.pid: rank.rank for rank in ranks for process in rank.processes}
    return HostSeen(
        name,
        container=container,
        oom_kills=report.oom_kills or 0,
        gpus=tuple(
            f"GPU {row.index}: {row.busy} % busy, {row.watts} W, {row.mib} MiB of memory used"
            for row in report.gpus
        ),
        gpu_error=report.gpu_error or "",
        busy=tuple(row.busy == "100" for row in report.gpus),
        py_spy=bool(report.py_spy),
        ranks=ranks,
        connections=tuple(
            Connection(
                owners.get(row.pid, -1),
                name,
                addresses[_host(row.peer)],
                row.state,
                row.unsent,
                row.unread,
                row.retries,
            )
            for row in report.sockets
            if addresses.get(_host(row.peer), name) != name
        ),
    )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _rank(host: str, row: SeenRank) -> RankSeen:
    return RankSeen(
        rank=row.rank,
        host=host,
        age=row.age,
        lines=row.lines,
        exit_code=row.exit_code,
        processes=tuple(map(_process, row.processes)),
        started=row.started or 0.0,
        oom=row.oom,
    )


def _process(row: SeenProcess) -> Process:
    threads = row.threads_seen or ()
    first = next((one for one in threads if one.first), threads[0] if threads else ThreadStack())
    # A process that ran between the two samples waits for a working disk, not for a hung one. A driver, by
    # contrast, can wake a process that hangs in `ioctl` again and again, and the call is not always readable.
    ran = row.states not in (None, "DD") or (row.woken > 0 and row.call in _DISK_CALLS)
    state = "S" if row.state == "D" and ran else row.state
    return Process(
        pid=row.pid,
        parent=row.parent,
        name=row.name,
        state=state,
        call=row.call,
        target=row.target,
        cpu=row.cpu,
        frames=tuple(Frame(f.name, f.file, f.line, f.text or "", bool(f.handler)) for f in first.frames),
        no_stack=row.no_stack,
        # A wait for a lock ends once; libraries that poll sleep in another call.
        moved=bool(row.moved) or (row.call == "futex" and row.woken > _WAKES),
    )
