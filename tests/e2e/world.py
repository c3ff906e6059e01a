"""The toolkit as a person calls it, and the hosts as seen from outside the toolkit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# The practice cluster that the tests make; another name lets two runs use one machine at the same time.
LAB = os.environ.get("TOOLKIT_TEST_LAB", "ci")
# A second one, whose hosts have two network cards.
CARDS = f"{LAB}-cards"
PROGRAM = str(Path(sys.executable).with_name("toolkit"))
# In the environment of every process that these tests start.
OURS = f"TOOLKIT_TESTS_OF={os.getpid()}"
os.environ.update([OURS.split("=")])
# What care.py looks after: processes that tests have started, the first hosts file of every cluster, and
# whether a fixture of more than one test is being set up (conftest.py keeps that up to date).
STARTED: list[subprocess.Popen[str]] = []
CLUSTERS: dict[str, Toolkit] = {}
LASTING: list[bool] = []


@dataclass
class Done:
    """A finished command: exit status, output, duration in seconds."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Toolkit:
    """Calls `toolkit` with one hosts file; of another program and environment if these are named."""

    def __init__(
        self, hosts: Path, folder: Path, program: str = PROGRAM, env: dict[str, str] | None = None
    ) -> None:
        self.hosts, self.folder, self.program = hosts, folder, program
        self.env = env or {**os.environ, "TOOLKIT_HOSTS": str(hosts)}
        # A cluster of a fixture that several tests share is brought up again when one of them fails.
        self.lasting = bool(LASTING and LASTING[-1])

    def run(self, *words: str, check: bool = False, timeout: float = 900) -> Done:
        # The deadline ends what hangs. The first `up` sends an image of 1 GB, beside whatever else runs here.
        self._remember()
        start = time.monotonic()
        done = subprocess.run(
            [self.program, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        result = Done(done.returncode, done.stdout, done.stderr, time.monotonic() - start)
        if check:
            assert result.status == 0, (
                f"toolkit {' '.join(words)}: {result.status}\n{done.stdout}{done.stderr}"
            )
        return result

    def start(self, *words: str) -> subprocess.Popen[str]:
        self._remember()
        process = subprocess.Popen(
            [self.program, *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        STARTED.append(process)
        return process

    def _remember(self) -> None:
        """Record the cluster under its name; a variant of its hosts file does not replace the first one."""
        try:
            name = yaml.safe_load(self.hosts.read_text())["cluster"]
        except (OSError, yaml.YAMLError, KeyError, TypeError):
            return
        known = CLUSTERS.get(str(name))
        if known is None or not known.hosts.exists() or (self.lasting and not known.lasting):
            CLUSTERS[str(name)] = self


def heed_signals() -> None:
    """Undo what a program inherits from a shell that runs the tests in the background, or from nohup."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def outer(host: str, lab: str = LAB) -> str:
    """The container that plays a practice host."""
    return f"toolkit-lab-{lab}-{host}"


def on(host: str, *argv: str, lab: str = LAB) -> str:
    """Run a command as root on a practice host, past the toolkit; return its output."""
    done = subprocess.run(["docker", "exec", outer(host, lab), *argv], capture_output=True, text=True)
    return done.stdout + done.stderr


def sh(host: str, text: str, lab: str = LAB) -> str:
    return on(host, "sh", "-c", text, lab=lab)


def run_as_root(host: str, text: str, lab: str = LAB) -> None:
    """Run a shell text as root on a practice host; fail the test, with what it printed, if it fails.

    A change of a host that did not happen must not look like a defect of the command that is tested.
    """
    argv = ["docker", "exec", outer(host, lab), "sh", "-c", text]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, (
        f"on {host}: {text}\nended with {done.returncode}: {done.stdout}{done.stderr}"
    )


def containers(host: str, cluster: str, running: bool = False) -> list[str]:
    """Names of the cluster's containers on a host, stopped ones too unless only ``running`` count."""
    filters = ("--filter", f"label=toolkit.cluster={cluster}", *(() if running else ("-a",)))
    return on(host, "docker", "ps", *filters, "--format", "{{.Names}}").split()


def logins(host: str) -> int:
    """Return the number of SSH logins that the host's own sshd has accepted."""
    return int(sh(host, "grep -c 'Accepted publickey' /var/log/sshd.log || true").split()[0])


def marked(host: str, mark: str) -> list[str]:
    """Command lines of the host's processes whose environment holds this line."""
    # grep is one process; tr for each process of the host took half a second of a busy machine.
    text = (
        'for p in $(grep -lszFx -e "$1" /proc/[0-9]*/environ); do '
        'tr "\\0" " " <"${p%environ}cmdline"; echo; done 2>/dev/null'
    )
    return [line for line in on(host, "sh", "-c", text, "sh", mark).splitlines() if line.strip()]


def interrupt(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGINT)


def _bytes_of(pid: str, name: str) -> bytes:
    """Read a file of a process; a Path would take most of the time of a look at all processes."""
    with open(f"/proc/{pid}/{name}", "rb", 0) as file:  # noqa: PTH123
        return file.read()


def _recognize_lab() -> Callable[[str], bool]:
    """Return what tells whether a process belongs to the lab or to these tests."""
    ask = ["docker", "ps", "--no-trunc", "--quiet", "--filter", f"label=toolkit.lab={LAB}"]
    hosts = subprocess.run(ask, check=True, capture_output=True, text=True).stdout.split()
    # Control groups: of a host, and of the containers in hosts without a namespace of their own for them.
    groups = [group.encode() for group in (f"/toolkit-lab/{LAB}/", *hosts)]
    known: set[str] = set()

    def of_lab(pid: str) -> bool:
        if pid not in known:
            try:
                within = _bytes_of(pid, "cgroup")
                of_host = any(group in within for group in groups)
                if not of_host and OURS.encode() not in _bytes_of(pid, "environ"):
                    return False  # or not yet: a container's first process enters its group after its start
            except OSError:
                return False
            known.add(pid)
        return True

    return of_lab


@contextmanager
def watched_processes() -> Iterator[set[str]]:
    """Collect the command lines and environments of the lab's processes and our own while the block runs.

    Processes of the practice hosts and of the containers in them are processes of this machine. Those of
    another lab, which other tests may use at the same time, are left out. The set is filled at the end.
    """
    seen: set[str] = set()
    raw: set[bytes] = set()
    over = threading.Event()
    of_lab = _recognize_lab()

    def look() -> None:
        while not over.is_set():
            for pid in os.listdir("/proc"):  # noqa: PTH208
                if pid.isdigit() and of_lab(pid):
                    for name in ("cmdline", "environ"):
                        try:
                            raw.add(_bytes_of(pid, name))
                        except OSError:
                            continue
            over.wait(0.02)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()
        seen |= {text.replace(b"\0", b" ").decode(errors="replace") for text in raw}
