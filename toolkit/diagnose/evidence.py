"""Reports of the hosts of a job about its ranks, printed by toolkit/container/diagnose/inspect_ranks.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from toolkit.protocol.evidence import Inspected, SeenProcess, SeenRank, ThreadStack

# Of a thread that waits for one thing, within half a second.
_WAKES = 3


@dataclass(frozen=True)
class Frame:
    """One frame of a Python stack.

    Args:
        text: its line of source; empty for files of Python and of packages.
        handler: the line belongs to a handler of exceptions.
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
        state: the system's letter: R, S, D, T, Z, …
        call: the system call in which its first thread is; empty for none, or without the right to read it.
        target: the file of that call, with its sort where it is no plain file.
        cpu: processors that it used in the time of the look, 1.0 for one.
        frames: of its first thread, the innermost first; empty without py-spy, or for no Python.
        no_stack: why there are none.
        moved: it was seen in other functions, or woke up again and again, within the time of the look.
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
        age: seconds since it last printed something; None when it has no log.
        lines: its last ones.
        exit_code: None while it has not ended, or if it was not recorded.
        processes: its command and what that started.
    """

    rank: int
    host: str
    age: float | None = None
    lines: tuple[str, ...] = ()
    exit_code: int | None = None
    processes: tuple[Process, ...] = ()

    @property
    def last_line(self) -> str:
        return self.lines[-1] if self.lines else ""

    @property
    def alive(self) -> bool:
        return any(process.state != "Z" for process in self.processes)


@dataclass(frozen=True)
class Connection:
    """A TCP connection of a rank to another host of the job.

    Args:
        unsent, unread: bytes in the kernel: not acknowledged by the other side, not read by this one.
        retries: how often what is unsent was sent again without an answer.
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
        error: why it said nothing; empty when it did.
        is_predicate: whether ``error`` continues a sentence that begins with the host's name, such as
            ``does not answer within 25 s``; otherwise it is the message of a program.
        container: its container's state and reason where that is worth a word, such as ``exited, code 137``.
        oom_kills: processes that the kernel has killed there for want of memory.
        gpus: one line for each GPU: utilisation, power, memory.
        py_spy: whether its image has the means to read stacks.
    """

    name: str
    error: str = ""
    container: str = ""
    oom_kills: int = 0
    gpus: tuple[str, ...] = ()
    py_spy: bool = True
    ranks: tuple[RankSeen, ...] = ()
    connections: tuple[Connection, ...] = ()
    is_predicate: bool = False

    @property
    def silence(self) -> str:
        """The reason why the host could not be queried, to follow its name in a sentence."""
        return self.error if self.is_predicate else f"does not answer: {self.error}"


@dataclass(frozen=True)
class Evidence:
    """All reports about a job at one moment.

    Args:
        state, reason: as main's records have them; empty when main says nothing.
        failed_rank, lost_host: see ``JobStatus``.
        placed: the host of each rank, by rank.
        hosts: every host of the job, each with what it said or why it did not.
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
        return next((host for host in self.hosts if host.name == name), _not_asked(name))

    def rank(self, rank: int) -> RankSeen | None:
        """Return the report of a host about a rank, None if the host has none or did not answer."""
        host = self.host(self.placed[rank])
        return next((seen for seen in host.ranks if seen.rank == rank), None)


def _not_asked(name: str) -> HostSeen:
    return HostSeen(name, "was not asked", is_predicate=True)


def parse_host(name: str, said: Inspected, addresses: Mapping[str, str], container: str = "") -> HostSeen:
    """Return the report of one host.

    Args:
        said: what inspect_ranks.py printed, or an error alone.
        addresses: data address -> name of each host of the job.
        container: see ``HostSeen``.
    """
    if said.error:
        return HostSeen(name, said.error, container, is_predicate=bool(said.is_predicate))
    ranks = tuple(_rank(name, row) for row in said.ranks)
    owners = {process.pid: rank.rank for rank in ranks for process in rank.processes}
    return HostSeen(
        name,
        container=container,
        oom_kills=said.oom_kills or 0,
        gpus=tuple(f"GPU {row.index}: {row.busy} % busy, {row.watts} W, {row.mib} MiB" for row in said.gpus),
        py_spy=bool(said.py_spy),
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
            for row in said.sockets
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
    )


def _process(row: SeenProcess) -> Process:
    threads = row.threads_seen or ()
    first = next((one for one in threads if one.first), threads[0] if threads else ThreadStack())
    # A state D that ended between the two samples is a working disk, not a hung one.
    state = "S" if row.state == "D" and row.states not in (None, "DD") else row.state
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
