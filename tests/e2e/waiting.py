"""Waits of the tests. Each names its event; one that fails reports how long it took and what it last saw.

A deadline here is no statement about speed: it ends a wait for something that does not happen. It is long
enough for a machine with other work, and costs nothing if the event comes early. A test about a limit
measures the time between two events itself.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import yaml

from tests.e2e.world import LAB, Toolkit, containers, marked, on, outer, sh

T = TypeVar("T")
STATE = "/home/trainer/.local/state/toolkit"
# States of a job that goes on; every other one is final.
GOING = ("starting", "running")
_SHOWN = 1500  # characters of a value that a failure prints


def until(
    what: str,
    look: Callable[[], T],
    met: Callable[[T], object] = bool,
    seconds: float = 60.0,
    pause: float = 0.1,
) -> T:
    """Look again and again until the value is right; return it.

    Args:
        what: the event, as the failure prints it: "box2 answers".
        look: returns the value; an exception of it ends the wait.
        met: tells whether the value is right.
    """
    start = time.monotonic()
    looks = 1
    while not met(seen := look()):
        waited = time.monotonic() - start
        assert waited < seconds, (
            f"{what}: not within {waited:.0f} s ({looks} looks); last seen: {_shown(seen)}"
        )
        time.sleep(pause)
        looks += 1
    return seen


def _shown(seen: object) -> str:
    text = seen if isinstance(seen, str) else repr(seen)
    return text if len(text) <= _SHOWN else f"… {text[-_SHOWN:]}"


# Hosts

_LISTENERS = "ss -Hltn | awk '{ print $4 }'"


def engine_of(host: str, lab: str = LAB) -> str:
    """Version of the host's own engine; what it said instead where it does not answer."""
    ask = "timeout 20 docker version --format 'engine {{.Server.Version}}' 2>&1 || true"
    return sh(host, ask, lab=lab).strip()


def engine_answers(host: str, lab: str = LAB, seconds: float = 300.0) -> None:
    """Wait for the host's own engine."""
    until(
        f"the engine of {host} answers",
        lambda: engine_of(host, lab),
        lambda said: said.startswith("engine "),
        seconds,
    )


def host_answers(host: str, lab: str = LAB, seconds: float = 300.0) -> None:
    """Wait until the host runs, its engine answers and its sshd takes connections.

    Nothing connects before sshd listens, and then nothing does that would not log in: OpenSSH from 9.8 on
    shuts out an address for a while that connects often and leaves.
    """
    inspect = ["docker", "inspect", "--format", "{{.State.Status}}", outer(host, lab)]

    def state() -> str:
        return subprocess.run(inspect, capture_output=True, text=True).stdout.strip()

    until(f"the container that plays {host} runs", state, lambda said: said == "running", seconds)
    engine_answers(host, lab, seconds)
    listens(host, 22, lab=lab, seconds=seconds)


def listens(host: str, port: int, address: str = "", lab: str = LAB, seconds: float = 60.0) -> None:
    """Wait until a program on the host listens on the port; at this address, where one is named."""
    wanted = f"{address}:{port}"
    until(
        f"a program on {host} listens on {wanted.lstrip(':')}",
        lambda: sh(host, _LISTENERS, lab=lab).split(),
        lambda found: any(one == wanted or (not address and one.endswith(wanted)) for one in found),
        seconds,
    )


def on_host(
    what: str,
    host: str,
    text: str,
    met: Callable[[str], object] = bool,
    lab: str = LAB,
    seconds: float = 60.0,
) -> str:
    """Wait until a shell command on the host prints what is right (default: anything); return it."""
    return until(f"{host}: {what}", lambda: sh(host, text, lab=lab), met, seconds)


# Containers


def container_runs(host: str, cluster: str, name: str, seconds: float = 60.0) -> None:
    """Wait until a container of a cluster runs on the host."""
    until(
        f"container {name} runs on {host}",
        lambda: containers(host, cluster, running=True),
        lambda names: name in names,
        seconds,
    )


# Processes


def programs(host: str, lab: str = LAB) -> list[str]:
    """Command lines of all processes of the host."""
    return [line.strip() for line in on(host, "ps", "-eo", "args", lab=lab).splitlines()]


def program_runs(host: str, line: str, lab: str = LAB, seconds: float = 60.0) -> None:
    """Wait until a process of the host has exactly this command line.

    A command line that merely holds it belongs to a program that is about to start it.
    """
    until(f"{line!r} runs on {host}", lambda: programs(host, lab), lambda found: line in found, seconds)


def program_gone(host: str, words: str, lab: str = LAB, seconds: float = 60.0) -> None:
    """Wait until no process of the host has these words on its command line."""
    until(
        f"no process on {host} has {words!r} on its command line",
        lambda: [line for line in programs(host, lab) if words in line],
        lambda found: not found,
        seconds,
    )


def rank_runs(host: str, job: str, line: str = "", seconds: float = 60.0) -> None:
    """Wait until a process of the job runs on the host, with exactly this command line where one is named.

    Without a line any process with the job's tag counts, also one that only prepares the host.
    """
    until(
        f"job {job} runs {line or 'a process'} on {host}",
        lambda: [each.strip() for each in marked(host, f"TOOLKIT_JOB={job}")],
        lambda found: line in found if line else found,
        seconds,
    )


def job_gone(host: str, job: str, seconds: float = 60.0) -> None:
    """Wait until no process of the host has the job's tag."""
    until(
        f"no process of job {job} is left on {host}",
        lambda: marked(host, f"TOOLKIT_JOB={job}"),
        lambda found: not found,
        seconds,
    )


# Jobs


def job_file(tool: Toolkit, job: str, name: str = "output.log", host: str = "", lab: str = LAB) -> str:
    """Text of a file in the job's folder on a host (default: main); empty while it is not there.

    It is read past the toolkit: a look costs a tenth of a `toolkit logs`.
    """
    data = yaml.safe_load(tool.hosts.read_text())
    place = host or data.get("main") or next(iter(data["hosts"]))
    path = f"{STATE}/{data['cluster']}/{place}/jobs/{job}/{name}"
    return sh(place, f"cat {path} 2>/dev/null || true", lab=lab)


def job_output(tool: Toolkit, job: str, lab: str = LAB) -> str:
    """Return a job's output: main's file; with `transport: exec` those of all hosts, one after another."""
    data = yaml.safe_load(tool.hosts.read_text())
    hosts = data["hosts"] if data.get("transport") == "exec" else [""]
    return "".join(job_file(tool, job, host=host, lab=lab) for host in hosts)


def job_prints(
    tool: Toolkit, job: str, text: str, times: int = 1, seconds: float = 120.0, lab: str = LAB
) -> str:
    """Wait until the job's output holds a text this many times; return the output."""
    return until(
        f"job {job} prints {text!r} {times} times",
        lambda: job_output(tool, job, lab=lab),
        lambda said: said.count(text) >= times,
        seconds,
    )


def job_state(tool: Toolkit, job: str) -> str:
    """State of a job, as `toolkit jobs` tells it; what that said instead where it cannot."""
    done = tool.run("jobs", "--json")
    try:
        return next(str(row["state"]) for row in done.json if row["id"] == job)
    except (json.JSONDecodeError, StopIteration, TypeError, KeyError):
        return f"exit status {done.status}: {done.out}{done.err}"


def job_reaches(tool: Toolkit, job: str, *states: str, seconds: float = 120.0) -> str:
    """Wait until the job is in one of these states; return it."""
    return until(
        f"job {job} is {' or '.join(states)}",
        lambda: job_state(tool, job),
        lambda state: state in states,
        seconds,
    )


def holds(what: str, look: Callable[[], T], met: Callable[[T], object], seconds: float) -> T:
    """Look for this long and assert each time that the value is right; return the last one.

    For what must NOT happen: there is no event to wait for.
    """
    end = time.monotonic() + seconds
    while True:
        seen = look()
        assert met(seen), f"{what}: {_shown(seen)}"
        if time.monotonic() > end:
            return seen
        time.sleep(0.1)


def all_gone(hosts: Sequence[str], job: str, seconds: float = 60.0) -> None:
    """Wait until no process of these hosts has the job's tag."""
    for host in hosts:
        job_gone(host, job, seconds)
