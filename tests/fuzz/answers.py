"""Commands of every verb against hosts whose answers are changed.

A case is one command line, one kind of change, and the hosts whose answers it changes. Whatever comes, the
command ends in time and without a traceback, writes only where it may, prints nothing that controls a
terminal, and reports the hosts whose answers are sound.
"""

from __future__ import annotations

import functools
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import repeat
from pathlib import Path
from typing import Any

import paramiko
import typer.main

import toolkit.remote.engine
import toolkit.remote.local_image
from tests.fuzz import mutations
from tests.fuzz.fake_hosts import UNKNOWN, Change, Clock, FakeLink, Talk, hang_up, in_place_of_hosts
from tests.fuzz.sandbox import Contact, Hang, Sandbox
from tests.fuzz.valid_answers import (
    HOSTS,
    JOB,
    MAIN,
    NAMES,
    RUNNING,
    Printed,
    World,
    address,
    sections,
    sound,
)
from toolkit.api.cluster import Cluster
from toolkit.cli import app as cli
from toolkit.errors import MissingTool, ToolkitError
from toolkit.protocol.engine_socket import Unusable
from toolkit.remote.ssh_config import Target
from toolkit.remote.ssh_errors import explain

SECONDS = 60  # real ones that a command may take; most take a tenth of one, on a machine that is idle
SPENT_S = 16.0  # by the clock, that a command may take beyond its own limit; see ``toolkit.remote.ssh``
MOST_MEMORY = 300 << 20
MOST_SHOWN = 8 << 20  # bytes
MOST_FAILURES = 10
PIECE = 200  # cases that a process judges before it reports

_AS_JSON, _LEFT = ("--json",), ("--leave-out", "services")
# Command lines of every verb that talks to hosts, by its name; those that end in a word of `api` are methods.
LINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "init": (
        ("gpu1=10.77.0.2", "gpu2=10.77.0.3", "--yes", "-o", "new.yaml"),
        ("cpu3=10.77.0.4", "--yes", "--dry-run"),
    ),
    "image send": ((), _AS_JSON, ("-v",)),
    "image ls": ((), _AS_JSON),
    "image prune": (("--dry-run",), _AS_JSON),
    "data send": ((), ("--dry-run",), _AS_JSON),
    "data ls": ((), _AS_JSON),
    "data rm": ((), _AS_JSON),
    "trust": (("--yes",), ("--yes", "--json"), ("--yes", "--replace")),
    "check": ((), _AS_JSON, ("--quick",), ("--fix", "--dry-run"), ("--strict",)),
    "network explain": ((), _AS_JSON),
    "network tune": (("--backend", "mpi", "--budget", "12"), ("--forget",)),
    "up": ((), _AS_JSON, ("--dry-run",), ("--no-check", "-v"), ("--prepare",)),
    "smoke": ((), _AS_JSON),
    "run": (
        ("train.py",),
        ("--np", "2", "-d", "train.py"),
        ("--no-check", "--launcher", "mpirun", "--", "true"),
    ),
    "status": ((), _AS_JSON, ("-v",)),
    "top": (("--once",), ("--once", "--json")),
    "jobs": ((), ("--all", "--json")),
    "attach": ((JOB,), ("c3d4", "--raw"), (JOB, "--tail", "3", "--json")),
    "logs": ((JOB,), ("a1b2", "-f"), (JOB, "--rank", "2"), ("--service", "board"), (JOB, "--save", "kept")),
    "wait": ((RUNNING, "--timeout", "5"), (JOB, "--json")),
    "why": ((JOB,), (JOB, "--json"), (JOB, "--save", "kept.tar.gz"), ()),
    "report": ((JOB,), (JOB, "--json"), (JOB, "-o", "page.html")),
    "stop": ((RUNNING,), (RUNNING, "--json", "--now")),
    "get": (
        ("out", "--job", JOB),
        ("out/*", "--job", JOB, "-o", "kept", "--force"),
        ("out", "--all-hosts", "--json"),
    ),
    "forward": (("board", "--port", "7000"),),
    "shell": ((), ("gpu2",)),
    "exec": (
        ("ls",),
        ("gpu2", "--", "ls"),
        ("--all", "ls"),
        ("--all", "--json", "ls"),
        ("--timeout", "5", "ls"),
    ),
    "down": ((), _AS_JSON, ("--no-save",), ("--dry-run",)),
    "gc": (("--dry-run",), ("--state", "--json"), ("--older-than", "30")),
    "bench network": (("--backend", "mpi", "--seconds", "1", "--budget", "5"),),
    "bench scaling": (("--on", "1,2", "--seconds", "5", "train.py"),),
    "predict": (("--rate", "1gbit", "--probe", "train.py"),),
    "render compose": (("-o", "made"),),
    "render docker": ((), ("-o", "made")),
    "render ssh": (("-o", "made"),),
    "render slurm": (
        (*_LEFT, "--only", "gpu1,gpu2", "train.py"),
        (*_LEFT, "--only", "gpu1,gpu2", "-o", "made", "train.py"),
    ),
    "render kubernetes": ((*_LEFT, "--only", "gpu1", "train.py"),),
}
# Second names of verbs.
LINES |= {"bench tune": LINES["network tune"], "bench predict": LINES["predict"]}
# Verbs that contact no host of hosts.yaml.
WITHOUT_HOSTS = frozenset(
    ("image build", "image inspect", "lab up", "lab down", "lab status", "schema", "version")
)
# Those of the Python API that no verb calls in the same way.
METHODS: dict[str, Callable[[Cluster], object]] = {
    "api job.wait": lambda cluster: cluster.job(JOB).wait(5),
    "api job.lines": lambda cluster: list(cluster.job(JOB).lines()),
    "api job.log": lambda cluster: cluster.job(JOB).log(rank=2),
    "api job.why": lambda cluster: cluster.job(JOB).why(),
    "api job.report": lambda cluster: cluster.job(JOB).report(),
    "api job.get": lambda cluster: cluster.job(JOB).get("out"),
    "api jobs": lambda cluster: [job.status() for job in cluster.jobs()],
    "api up": lambda cluster: cluster.up(data=False),
    "api down": lambda cluster: cluster.down(),
    "api run": lambda cluster: cluster.run("train.py"),
    "api execute": lambda cluster: cluster.execute("gpu2", "ls"),
}
VERBS = (*LINES, *METHODS)
STATES = ("up", "up", "up", "busy", "busy", "down")
# Verbs that fail against sound hosts: a job that they start does not measure, the job that they wait for has
# failed, the hosts are not all alike, and nothing listens where a service should.
_FAILING = frozenset(
    (
        "check",
        "network tune",
        "smoke",
        "bench network",
        "bench scaling",
        "predict",
        "bench tune",
        "bench predict",
        "wait",
        "forward",
    )
)
# Verbs that go on with the other hosts if one of them answers nonsense.
_EACH = frozenset(("status", "check", "image ls", "data ls", "top", "down", "gc", "exec", "image prune"))
# Verbs that write files of the hosts here.
_BRINGING = frozenset(("down", "api down", "get", "api job.get"))
# Verbs that pass output of ranks on: what is no text may be bytes, and progress bars use \r and \b.
_OUTPUT = frozenset(("run", "attach", "logs", "exec", "shell", "bench scaling", "bench network", "smoke"))
FILES = {
    "hosts.yaml": HOSTS.encode(),
    "train.py": b"import torch\n",
    "folder/x": b"abc",
    "sentinel/x": b"mine",
    ".ssh/config": b"Host gpu1 gpu2\n  User alice\n",
    ".bashrc": b"true\n",
    "known_hosts": b"",
}
# Where commands may write: below folders of their own, and files that the command line names.
_MAY_WRITE = re.compile(
    r"(runs|kept|made|\.cache|\.local|\.config)(/.*)?|new\.yaml|kept\.tar\.gz|why-[A-Za-z0-9._-]+\.tar\.gz"
    r"|[^/]*\.html",
    re.DOTALL,  # names of files can contain newlines
)
_SGR = re.compile("\x1b\\[[0-9;:]*m")
# What rich writes to draw bars: hide and show the cursor, up one line, erase a line.
_BARS = re.compile("\x1b\\[(?:\\?25[lh]|1A|2K)|\r")
_CONTROL = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Case:
    """One command, and what becomes of the answers to it.

    Args:
        words: after the verb.
        kind: of the change; empty for none.
        hosts: whose answers are changed.
        share: of their commands whose answers are changed.
        state: of the cluster: down, up, or busy with a job.
        late: whether the answers to the first questions are sound, so that the command goes on to others.
        seed: of the changes.
    """

    verb: str
    words: tuple[str, ...] = ()
    kind: str = ""
    hosts: tuple[str, ...] = ()
    share: float = 1.0
    state: str = "up"
    late: bool = False
    seed: str = ""

    @property
    def line(self) -> list[str]:
        return [*self.verb.split(), *self.words]


def make(rng: random.Random, verbs: tuple[str, ...] = VERBS) -> Case:
    """Return a random case."""
    verb = rng.choice(verbs)
    words = rng.choice(LINES[verb]) if verb in LINES else ()
    hosts = rng.choice(((rng.choice(NAMES),), (rng.choice(NAMES),), NAMES))
    share = rng.choice((1.0, 0.5, 0.3, 0.15))
    kind = "archive" if verb in _BRINGING and rng.random() < 0.3 else mutations.some(rng)
    return Case(verb, words, kind, hosts, share, rng.choice(STATES), rng.random() < 0.6, str(rng.random()))


class CasedHosts:
    """The hosts of a case; see ``tests.fuzz.fake_hosts.Hosts``."""

    def __init__(self, case: Case) -> None:
        self.case, self.clock = case, Clock()
        self.world = World(case.state)
        self.bugs: list[Exception] = []  # of the fake hosts, not of the client
        self.changed: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def talk(self, host: str, words: list[str], inside: bool) -> tuple[Talk, Change]:
        talk = sound(host, words, inside, self.world)
        if talk is None:
            talk = Printed()
            UNKNOWN[" ".join(" ".join(words[:3]).split())[:100]] += 1
        is_first = any("say begun" in word for word in words)
        if is_first and self.case.late:
            return talk, Change()
        return talk, self._change(host, " ".join(words[-1:]))

    def _change(self, host: str, about: str) -> Change:
        case = self.case
        if not case.kind or case.kind == "refused" or host not in case.hosts:
            return Change()
        # By what is asked, and not by when: threads ask several hosts in any order.
        what = re.sub("[0-9a-f]{16,}", "", about)
        with self._lock:
            key = f"{host} {zlib.crc32(what.encode(errors='replace'))}"
            self._asked[key] += 1
            rng = random.Random(f"{case.seed} {key} {self._asked[key]}")
            if rng.random() >= case.share:
                return Change()
            self.changed[host] += 1
        return mutations.Changed(case.kind, rng)

    def refusal(self, host: str) -> str:
        if self.case.kind == "refused" and host in self.case.hosts:
            self.changed[host] += 1
            return random.Random(self.case.seed).choice(("Connection refused", "a\x1b[2Jb", "no\nroute\0"))
        return ""

    def shown_key(self, host: str) -> Any:
        if self.case.kind and host in self.case.hosts:
            self.changed[host] += 1
            raise explain(Target(host, address(host)), paramiko.SSHException("\x1b[2Jkey\0"))
        return _key(host)


@functools.cache
def _key(host: str) -> Any:
    return paramiko.Ed25519Key.from_private_key(io.StringIO(_private_key()))


def _private_key() -> str:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    return key.private_bytes(*form, serialization.NoEncryption()).decode()


class _Screen(io.BytesIO):
    """The first bytes of what a terminal is shown: a command can pass on output of ranks without end."""

    def write(self, data: Any) -> int:
        super().write(memoryview(data)[: MOST_SHOWN - self.tell()])
        return len(data)


class Terminal(io.TextIOWrapper):
    """A stream that is a terminal to the command, and keeps what it is shown."""

    def __init__(self) -> None:
        self.kept = _Screen()
        super().__init__(self.kept, "utf-8", "surrogateescape", newline="", write_through=True)

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return _nowhere()

    def shown(self) -> str:
        self.flush()
        return self.kept.getvalue().decode("utf-8", "surrogateescape")


@functools.cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_RDWR)


class Broken(AssertionError):
    """A case did what none may do."""


class Box(Sandbox):
    """A sandbox that also keeps what was tried outside of it, and shows where a command hangs.

    Args:
        folder: alone in its parent folder, where everything else is removed after each command.

    Raises:
        ValueError: something else is in the parent folder.
    """

    def __init__(self, folder: Path) -> None:
        if others := [path.name for path in folder.parent.iterdir() if path != folder]:
            raise ValueError(f"{folder.parent} must contain nothing but {folder.name}, found {others[:3]}")
        super().__init__(folder, dict(FILES))
        self.outside: list[str] = []

    def _change(self, path: Any) -> None:
        if isinstance(path, int):
            path = Path(f"/proc/self/fd/{path}").readlink()
        # A relative path may be below an open folder, which the event does not tell: then the look afterwards
        # at the folder and at what is beside it decides.
        try:
            super()._change(path)
        except PermissionError:
            self.outside.append(str(path))
            raise

    def beside(self) -> list[str]:
        """Remove what is beside the folder, and return its names; nothing ever is."""
        found = [path for path in self.folder.parent.iterdir() if path != self.folder]
        for path in found:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        return [path.name for path in found]


@dataclass
class Ended:
    """End of a case."""

    status: int | None
    out: str
    err: str
    error: BaseException | None = None
    over: list[str] = field(default_factory=list)  # commands that took longer than their limit
    heard: dict[str, int] = field(default_factory=dict)  # how many answers of each host were changed


def run(case: Case, box: Box) -> Ended:
    """Run the command of a case in this process."""
    hosts = CasedHosts(case)
    before = sys.argv, sys.stdin, sys.stdout, sys.stderr
    out, err = Terminal(), Terminal()
    sys.argv = ["toolkit", *case.line]
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), out, err
    ended = Ended(0, "", "")
    box.outside = []
    try:
        with _without_engine(), in_place_of_hosts(hosts), box.watched(SECONDS):
            try:
                if case.verb in METHODS:
                    METHODS[case.verb](Cluster("hosts.yaml", warn=lambda finding: None))
                else:
                    cli.main()
            finally:
                hang_up()
    except SystemExit as end:
        ended.status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except ToolkitError as error:
        ended.status = error.exit_code
        if case.verb not in METHODS:
            ended.error = error
    except Contact as contact:
        ended.status, ended.error = None, contact
    except BaseException as error:
        ended.status, ended.error = None, error
    finally:
        sys.argv, sys.stdin, sys.stdout, sys.stderr = before
        signal.signal(signal.SIGINT, signal.default_int_handler)
    ended.out, ended.err, ended.heard = out.shown(), err.shown(), dict(hosts.changed)
    if hosts.bugs:
        raise hosts.bugs[0]
    for link in FakeLink.all:
        ended.over += link.over_limit()
    return ended


@contextmanager
def _without_engine() -> Iterator[None]:
    """Let this machine have no container engine."""

    def no_client(timeout: float) -> Any:
        raise MissingTool("no Docker engine answers on your machine", "start one")

    def no_socket() -> str:
        raise Unusable("no engine")

    sdk: Any = toolkit.remote.engine
    by_socket: Any = toolkit.remote.local_image
    kept = sdk.connect_client, by_socket.configured_socket
    sdk.connect_client, by_socket.configured_socket = no_client, no_socket
    try:
        yield
    finally:
        sdk.connect_client, by_socket.configured_socket = kept


def judge(case: Case, box: Box) -> str:
    """Run a case and return how it ended: refused, ignored or succeeded.

    Raises:
        Broken: it did what none may do.
    """
    _reset_peak()
    memory = _memory("VmRSS")
    ended = run(case, box)
    _judge(case, ended, box)
    grown = _memory("VmHWM") - memory
    if grown > MOST_MEMORY:
        raise Broken(f"memory grew by {grown >> 20} MiB")
    if ended.status not in (0, None):
        return "refused"
    return "succeeded" if not ended.heard else "ignored"


def _judge(case: Case, ended: Ended, box: Box) -> None:
    if isinstance(ended.error, Contact):
        raise Broken(f"contacts the world: {box.contacts}") from ended.error
    if isinstance(ended.error, Hang):
        raise Broken(f"hangs{ended.error.stacks}") from ended.error
    if ended.error is not None:
        raise Broken(f"ends with {type(ended.error).__name__}: {str(ended.error)[:300]}") from ended.error
    shown = ended.out + ended.err
    if "Traceback (most recent call last)" in shown:
        raise Broken(f"prints a traceback: {shown[-3000:]}")
    if ended.over:
        raise Broken(f"outlives its limit: {ended.over}")
    if beside := box.beside():
        raise Broken(f"writes beside the folder: {beside[:5]}")
    if box.outside:
        raise Broken(f"writes outside of the folder: {box.outside[:5]}")
    own = {"known_hosts"} if case.verb in ("trust", "init") else set()
    if wrong := [name for name in box.changes if not _MAY_WRITE.fullmatch(name) and name not in own]:
        raise Broken(f"changes {wrong[:5]}")
    if links := _leading_out(box):
        raise Broken(f"makes links that lead out: {links[:5]}")
    if found := _controls(case, shown):
        raise Broken(f"puts control characters on the terminal: {found}")
    if ended.status not in (0, *range(1, 256)):
        raise Broken(f"ends with status {ended.status}")
    if "--json" in case.words and ended.status == 0 and case.verb not in ("attach", "exec"):
        json.loads(ended.out)
    if ended.status and not shown.strip() and case.verb not in METHODS and case.verb not in _OUTPUT:
        raise Broken(f"ends with {ended.status} and prints nothing")
    if len(case.hosts) == 1 and MAIN not in case.hosts and case.verb in _EACH and case.kind:
        _judge_others(case, shown)


def _judge_others(case: Case, shown: str) -> None:
    """See that hosts whose answers are sound have their outcome."""
    usual = _usual(case.verb, case.words, case.state)
    lost = [name for name in usual if name not in case.hosts and name not in shown]
    if lost:
        raise Broken(f"reports nothing of {', '.join(lost)}")


_BOX: list[Box] = []


@functools.cache
def _usual(verb: str, words: tuple[str, ...], state: str) -> tuple[str, ...]:
    """The hosts that a command reports when all answers are sound."""
    ended = run(Case(verb, words, state=state), _BOX[0])
    return tuple(name for name in NAMES if name in ended.out + ended.err)


def _controls(case: Case, shown: str) -> str:
    text = _SGR.sub("", _BARS.sub("", shown)) if case.verb not in _OUTPUT else _SGR.sub("", shown)
    if case.verb in _OUTPUT:
        text = _BARS.sub("", text).replace("\b", "")
    if "--raw" in case.words or case.verb == "shell":
        return ""
    found = _CONTROL.search(text)
    return "" if found is None else repr(text[max(0, found.start() - 60) : found.end() + 60])


def _leading_out(box: Box) -> list[str]:
    found = []
    for name in box.changes:
        path = box.folder / name
        if path.is_symlink():
            top = box.folder / name.split("/")[0]
            target = Path(os.path.realpath(path))
            if top not in (target, *target.parents):
                found.append(f"{name} -> {path.readlink()}")
    return found


def _reset_peak() -> None:
    """Reset the peak of this process's memory (man 5 proc)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def _memory(name: str) -> int:
    """A line of /proc/self/status in bytes."""
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def check_sound(box: Box) -> None:
    """See that commands succeed when nothing is changed, or cases would show little.

    Raises:
        AssertionError: the answers of a sound host do not suit a command any more.
    """
    for verb in (verb for verb in VERBS if verb not in _FAILING):
        case = Case(verb, LINES[verb][0] if verb in LINES else ())
        ended = run(case, box)
        _judge(case, ended, box)
        assert ended.status == 0, (case, ended.status, ended.out[-2000:], ended.err[-2000:])


@dataclass
class Tally:
    """Outcomes of many cases.

    Args:
        counts: by verb, kind of change and outcome.
        failures: a report of each case that did what none may do.
    """

    counts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.counts.update(other.counts)
        self.failures += other.failures


def many(
    seed: int,
    numbers: Sequence[int],
    verbs: tuple[str, ...] = VERBS,
    most: int = MOST_FAILURES,
    kind: str = "",
) -> Tally:
    """Judge cases by their numbers, in a folder of their own; stop after `most` failures.

    Args:
        kind: of all changes; empty for the kind that each case has.
    """
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="toolkit-fuzz-") as name:
        folder = Path(name).resolve()
        settle(folder / "box")
        box = sandbox(folder / "box")
        for number in numbers:
            case = make(random.Random(f"{seed}/answers/{number}"), verbs)
            case = replace(case, kind=kind) if kind else case
            try:
                outcome = judge(case, box)
            except Broken as error:
                outcome = "BROKEN"
                tally.failures.append(_report(seed, number, case, error))
            tally.counts[case.verb, case.kind, outcome] += 1
            if len(tally.failures) >= most:
                break
    return tally


def _report(seed: int, number: int, case: Case, error: Broken) -> str:
    text = "".join(traceback.format_exception(error))
    return (
        f"\n--- broken: answers, seed {seed}, number {number}: {error}\n{case!r}\n{text}"
        f"again: make fuzz KIND=answers SEED={seed} FIRST={number} N=1\n"
    )


def in_processes(
    seed: int, first: int, count: int, jobs: int, progress: Callable[[int, Tally], None]
) -> Tally:
    """Judge cases in several processes at once; a case is the same in any of them.

    Args:
        progress: is called after each piece, with the number of cases so far and what came of them. If it is
            interrupted, so is this, after the pieces that have begun.
    """
    numbers = range(first, first + count)
    if jobs == 1 or count <= PIECE:
        return many(seed, numbers)
    pieces = [numbers[at : at + PIECE] for at in range(0, count, PIECE)]
    tally, done = Tally(), 0
    context = multiprocessing.get_context("spawn")
    # Ctrl-C reaches all processes of a terminal; it is this one that ends the others.
    with ProcessPoolExecutor(jobs, context, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        try:
            for piece, part in zip(pieces, pool.map(many, repeat(seed), pieces), strict=True):
                tally.add(part)
                done += len(piece)
                progress(done, tally)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return tally


def table(tally: Tally) -> str:
    """Return the number of cases by outcome, for each verb and each kind of change."""
    outcomes = ("refused", "ignored", "succeeded", "BROKEN")
    lines = []
    for title, at in (("verb", 0), ("change", 1)):
        names = sorted({key[at] for key in tally.counts})
        lines.append(f"{title:<18}" + "".join(f"{outcome:>11}" for outcome in outcomes))
        for name in names:
            found = Counter[str]()
            for key, count in tally.counts.items():
                if key[at] == name:
                    found[key[2]] += count
            lines.append(f"{name:<18}" + "".join(f"{found[outcome]:>11}" for outcome in outcomes))
        lines.append("")
    return "\n".join(lines)


def settle(home: Path) -> None:
    """Let nothing of this machine's settings change what comes out."""
    for name in [n for n in os.environ if n.startswith(("TOOLKIT_", "_TOOLKIT", "XDG_"))]:
        del os.environ[name]
    os.environ |= {"HOME": str(home), "COLUMNS": "100"}


def sandbox(folder: Path) -> Box:
    """Return the folder in which commands run."""
    # Made again for every command, the tree of commands would take most of the time.
    commands: Any = typer.main
    commands.get_command = functools.cache(typer.main.get_command)
    for host in NAMES:
        sections(host, True)  # made before a command asks, which would take an error for that of a host
    box = Box(folder)
    _BOX[:] = [box]
    return box
