"""The fault matrix as values: the effect, its phase and host, and the permitted results."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Which of the hosts a fault is done to.
COMMAND, MAIN, WORKER, ANY = "command", "main", "worker", "any"
# `main` first: ranks are numbered in this order.
HOSTS = ("box1", "box2", "box3")
LAUNCHERS = ("mpirun", "torchrun")


# Triggers: what is waited for before the fault is done.


@dataclass(frozen=True)
class Before:
    """Before the command starts."""


@dataclass(frozen=True)
class Line:
    """The command prints a line that matches."""

    pattern: str


@dataclass(frozen=True)
class Login:
    """The host's sshd lets the command in."""


@dataclass(frozen=True)
class NewFile:
    """A file that matches appears on the host; ``{case}`` is replaced by the folder of the case."""

    glob: str


@dataclass(frozen=True)
class Process:
    """A process on the host.

    Args:
        words: pattern of its command line.
        mark: a variable of its environment that says whose it is; jobs of the bystander never match.
    """

    words: str = ""
    mark: str = ""


@dataclass(frozen=True)
class Moment:
    """Some moment of the command's life, another one in each case."""


Trigger = Before | Line | Login | NewFile | Process | Moment


@dataclass(frozen=True)
class Phase:
    """A part of the life of a cluster and its jobs.

    Args:
        verb: the command that is under way.
        trigger: how its beginning is seen from outside.
    """

    name: str
    verb: str
    trigger: Trigger
    about: str


# Effects: what is done. Text for a shell runs as root on the host; NAME is the name of the container,
# PEERS are the addresses of the other hosts, PORT is that of the bystander's sshd.


@dataclass(frozen=True)
class Signal:
    """A signal to the processes found, and one that takes it back."""

    to: Process
    signal: str
    heal: str = ""


@dataclass(frozen=True)
class Shell:
    """Commands on the host."""

    make: str
    mend: str = ""


@dataclass(frozen=True)
class Machine:
    """The host as a whole, by the engine that plays it: docker's verbs."""

    make: str
    mend: str


@dataclass(frozen=True)
class ToCommand:
    """Signals to the command itself, ``gap`` seconds apart."""

    signals: tuple[str, ...]
    gap: float = 0.7


@dataclass(frozen=True)
class Operator:
    """Something is wrong here: with the ``key`` or the ``known`` hosts."""

    what: str


@dataclass(frozen=True)
class Second:
    """The same command is started again at the same time."""


Effect = Signal | Shell | Machine | ToCommand | Operator | Second


@dataclass(frozen=True)
class Answer:
    """Permitted results of a command and its job.

    Args:
        exit: pattern of the command's exit status.
        states: how the job may end; empty where there is none, or where it does not matter.
        cause: pattern of the root-cause line, due when the command fails; ``{host}`` and ``{rank}`` are the
            fault's.
        notice: seconds from the fault to the root-cause line, None for no limit.
        end: seconds from the fault to the command's end.
        gone: seconds from the fault until nothing of the job runs on hosts that can be reached.
        own: the same for the host that is struck, after which it is healed.
        goes_on: the job outlives all this and is asked to finish afterwards.
    """

    exit: str = "0"
    states: tuple[str, ...] = ()
    cause: str = ""
    notice: float | None = None
    end: float | None = None
    gone: float | None = None
    own: float | None = None
    goes_on: bool = False


@dataclass(frozen=True)
class Fault:
    """One way in which something breaks.

    Args:
        where: COMMAND, MAIN, WORKER or ANY.
        answers: phase -> what may come of it; the fault is tried in these phases only.
        hold: seconds until it is taken back while the command still runs; None: when it has ended.
        strikes: the bystander on that host is struck by the fault itself, as all on a host that loses power.
        settle: the containers are not what they were, so the case ends with `down`.
        needs: a file of this machine without which it cannot be done.
        env: variables that the job is given for it.
        leaves: pattern of what the fault itself leaves in the census.
    """

    name: str
    about: str
    where: str
    effect: Effect
    answers: Mapping[str, Answer]
    hold: float | None = None
    strikes: bool = False
    settle: bool = False
    needs: str = ""
    env: tuple[str, ...] = ()
    leaves: str = ""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts that it may be done to."""
        return {COMMAND: HOSTS[:1], MAIN: HOSTS[:1], WORKER: HOSTS[1:], ANY: HOSTS}[self.where]


@dataclass(frozen=True)
class Case:
    """One fault in one phase on one host."""

    seed: int
    index: int
    fault: str
    phase: str
    host: str
    launcher: str
    moment: float  # of the command's life, from 0 to 1
    down: bool  # ends with `down` and a census of everything

    @property
    def rank(self) -> int:
        return HOSTS.index(self.host)

    @property
    def folder(self) -> str:
        return f"{self.seed}-{self.index}"

    def __str__(self) -> str:
        at = "" if self.fault.startswith("command") else f" on {self.host}"
        return f"{self.fault} in {self.phase}{at}"


def combinations(faults: Iterable[Fault], only: str = "") -> tuple[tuple[str, str], ...]:
    """Return every fault with each of its phases; ``only`` is FAULT, FAULT/PHASE or /PHASE."""
    name, _, phase = only.partition("/")
    return tuple(
        (fault.name, at)
        for fault in faults
        if name in ("", fault.name)
        for at in fault.answers
        if phase in ("", at)
    )


def case_at(faults: Sequence[Fault], seed: int, index: int, only: str = "") -> Case:
    """Return the case of this number: each round of the seed has every combination once, in its own order.

    Raises:
        ValueError: there is no such fault or phase.
    """
    deck = list(combinations(faults, only))
    if not deck:
        raise ValueError(f"no fault is called {only}; --list shows them")
    number, place = divmod(index, len(deck))
    random.Random(f"{seed}/{number}").shuffle(deck)
    rng = random.Random(f"{seed}/{index}")
    name, phase = deck[place]
    fault = next(each for each in faults if each.name == name)
    return Case(
        seed=seed,
        index=index,
        fault=name,
        phase=phase,
        host=rng.choice(fault.hosts),
        launcher=LAUNCHERS[index % len(LAUNCHERS)],
        moment=rng.random(),
        down=fault.settle or rng.random() < 0.25,
    )
