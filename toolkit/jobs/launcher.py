"""What starts a job's ranks, and what each rank executes: as a person asked, or as the script expects."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.core.finding import Finding
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.load import is_file
from toolkit.jobs.script_imports import (
    FALLBACK,
    files_of,
    imports_of,
    launcher_for,
    mentions,
    takes_local_rank,
)
from toolkit.launchers import ELASTIC, LAUNCHERS
from toolkit.launchers.job import Job
from toolkit.protocol.transport import EXEC, INSTEAD, WITHOUT_SSH

AUTO = "auto"
# Of a program that is looked through for its imports: files, and bytes of each.
_MANY_SOURCES, _LONG_SOURCE = 200, 1 << 20
_PYTHON = ("python", "python3")
_ACCELERATE = ("accelerate", "launch")
# Commands that start ranks themselves -> the launcher in whose place a person may have typed them.
_THEMSELVES = {
    ("accelerate", "launch"): "accelerate",
    ("deepspeed",): "deepspeed",
    ("horovodrun",): "horovodrun",
    ("mpiexec",): "mpirun",
    ("mpirun",): "mpirun",
    ("ray", "start"): "ray",
    ("torchrun",): "torchrun",
    ("python", "-m", "torch.distributed.launch"): "torchrun",
    ("python", "-m", "torch.distributed.run"): "torchrun",
}


@dataclass(frozen=True)
class Start:
    """How ranks are started.

    Args:
        command: what each executes.
        why: where the launcher was chosen here, by what; else empty.
        local_rank_word: see ``Job``.
    """

    launcher: str
    command: tuple[str, ...]
    why: str = ""
    local_rank_word: bool = False


def how_to_start(
    words: Sequence[str], workdir: Path | None, launcher: str, named: bool, alone: bool
) -> Start:
    """Return how the ranks of a job are started; reads the script and what it imports from its folder.

    Args:
        words: a script of ``workdir`` with its arguments, or a command.
        launcher: one of ``LAUNCHERS``, or AUTO.
        named: a person has named it for this job; else it is the hosts file's.
        alone: there is one rank only, which may start others itself.

    Raises:
        BadInput: see ``rank_command``; or the command would start ranks itself, once for each rank.
    """
    command = rank_command(words, workdir)
    if tuple(words[:2]) == _ACCELERATE and (launcher in (AUTO, "accelerate") or not named):
        return Start("accelerate", command, "" if launcher == "accelerate" else "the command says so")
    if not alone:
        _refuse_nested(words)
    sources = _sources(command, workdir)
    script = next(iter(sources), "")
    why = ""
    if launcher == AUTO:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of a person's code is not our affair
            choice = launcher_for(frozenset().union(*map(imports_of, sources.values())))
        launcher = choice.launcher
        why = f"{script} imports {choice.module}" if choice.module else _no_reason(script)
    word = launcher == "deepspeed" and any(map(takes_local_rank, sources.values()))
    return Start(launcher, command, why, word)


def _no_reason(script: str) -> str:
    return f"nothing that {script} imports lets ranks work together" if script else "no script to read"


def _refuse_nested(words: Sequence[str]) -> None:
    plain = ("python" if words[0] in _PYTHON else words[0], *words[1:3])
    for start, launcher in _THEMSELVES.items():
        if plain[: len(start)] == start:
            name = " ".join(words[: len(start)])
            rest = name if start == _ACCELERATE else ""
            fix = f"toolkit run --launcher {launcher} {f'-- {rest}' if rest else 'SCRIPT'} ..."
            what = f"starts ranks itself, and would do so once for every rank; {fix}, or --np 1"
            raise BadInput("command line", (Problem(name, what),))


def _sources(command: Sequence[str], workdir: Path | None) -> dict[str, str]:
    """The script that a command runs, and what it imports from the folder, by path; none is empty."""
    if workdir is None or len(command) < 2 or command[0] not in _PYTHON or not command[1].endswith(".py"):
        return {}
    return read_sources(workdir, command[1]) if is_file(workdir / command[1]) else {}


def rank_command(words: Sequence[str], workdir: Path | None) -> tuple[str, ...]:
    """Return what each rank executes: a Python script through ``python``, another file as itself.

    Raises:
        BadInput: nothing was given, or a script that is not in the folder that is sent.
    """
    if not words:
        raise BadInput("command line", (Problem("", "say what to run: toolkit run SCRIPT [ARGS…]"),))
    first, rest = words[0], tuple(words[1:])
    local = workdir / first if workdir is not None else None
    if local is not None and is_file(local):
        try:
            relative = _below(local, workdir)
        except BadInput:
            if first.startswith("/") and not first.endswith(".py"):
                return (first, *rest)  # a program of the image that this machine happens to have too
            raise
        if first.endswith(".py"):
            return ("python", relative, *rest)
        return (f"./{relative}", *rest)
    if first.endswith((".py", ".sh")) and not first.startswith("/"):
        problem = Problem(first, f"there is no such file in {workdir}; another folder: --workdir DIR")
        raise BadInput("command line", (problem,))
    return (first, *rest)


def _below(path: Path, folder: Path | None) -> str:
    base = (folder or Path()).resolve()
    try:
        # Not resolved at first: a link in the folder is sent as a link, and runs under its own name.
        return Path(os.path.normpath(path.absolute())).relative_to(base).as_posix()
    except ValueError:
        try:
            return path.resolve().relative_to(base).as_posix()
        except ValueError:
            problem = Problem(str(path), f"is outside {base}, the folder that is sent; see --workdir")
            raise BadInput("command line", (problem,)) from None


def misplaced_options(
    words: Sequence[str], workdir: Path | None, options: Collection[str]
) -> tuple[str, tuple[str, ...]]:
    """Return the script, and those of ``options`` that follow it and that its source does not mention.

    Args:
        options: names of the options of the toolkit command that runs ``words``.
    """
    try:
        command = rank_command(words, workdir)
    except BadInput:
        return "", ()
    sources = _sources(command, workdir)
    if not sources:
        return "", ()
    given = command[2:]
    own = given[: given.index("--")] if "--" in given else given
    names = dict.fromkeys(word.partition("=")[0] for word in own if word.startswith("-"))
    return command[1], tuple(
        name
        for name in names
        if name in options and not any(mentions(text, name) for text in sources.values())
    )


def launcher_problems(launcher: str) -> list[Problem]:
    """Return what is wrong with the name of a launcher."""
    if launcher in (AUTO, *LAUNCHERS):
        return []
    known = ", ".join(sorted((AUTO, *LAUNCHERS)))
    return [Problem("--launcher", f"is one of {known}, found {launcher}")]


def elastic_problems(launcher: str, max_restarts: int) -> list[Problem]:
    """Return what keeps a job from being elastic; the launcher may be empty, when it is not known."""
    problems = []
    if launcher in LAUNCHERS and launcher not in ELASTIC:
        known = " or ".join(f"--launcher {name}" for name in ELASTIC)
        problems.append(Problem("--elastic", f"{launcher} cannot start ranks again by itself; {known}"))
    if not max_restarts:
        problems.append(Problem("--elastic", "say how often ranks may be started again: --max-restarts N"))
    return problems


def without_ssh(start: Start) -> Start:
    """Return the same where no host reaches another: a launcher that was chosen here has its equal there."""
    instead = INSTEAD.get(start.launcher) if start.why else None
    return replace(start, launcher=instead) if instead else start


def transport_problems(launcher: str, max_restarts: int) -> list[Problem]:
    """Return what keeps a job from being started where no host reaches another."""
    problems = []
    if launcher in LAUNCHERS and launcher not in WITHOUT_SSH:
        known = " or ".join(f"--launcher {name}" for name in WITHOUT_SSH)
        problems.append(Problem("--launcher", f"{launcher} needs ssh, and transport is {EXEC}; {known}"))
    if max_restarts:
        what = f"a job starts again over ssh alone, and transport is {EXEC}; leave it out"
        problems.append(Problem("--max-restarts", what))
    return problems


def launcher_findings(job: Job, start: Start | None = None) -> tuple[Finding, ...]:
    """Return what is to be known about the way in which a job is started."""
    found = []
    by_gloo = job.launcher == "horovodrun-gloo" or (job.elastic and job.launcher == "horovodrun")
    if by_gloo:
        what = (
            "Horovod with Gloo meets at an HTTP server on main that asks for no password and unpickles what "
            "it gets: whoever reaches main's data address can run programs as you (CVE-2024-10190)"
        )
        which = "--elastic" if job.elastic else "--launcher"
        other = "--launcher torchrun, or without --elastic" if job.elastic else "--launcher horovodrun"
        fix = f"only on a network that you trust; else {other}"
        found.append(Finding("launcher", "warning", what, fix, job.main, which))
    if start is not None and start.why and start.launcher == FALLBACK and job.world_size > 1:
        what = f"{start.why}: each of the {job.world_size} ranks does the same work"
        fix = "--launcher NAME, where they do work together"
        found.append(Finding("launcher", "warning", what, fix, "", "--launcher auto"))
    return tuple(found)


def read_sources(folder: Path, script: str) -> dict[str, str]:
    """Return a Python script and what it imports from its folder or from ``folder``, by path, itself first.

    What cannot be read, or is no text, is passed over; of much only the first is read.
    """
    found: dict[str, str] = {}
    waiting = [script]
    while waiting and len(found) < _MANY_SOURCES:
        path = waiting.pop(0)
        if path in found or not is_file(folder / path):
            continue
        try:
            with (folder / path).open("rb") as file:
                found[path] = file.read(_LONG_SOURCE).decode(errors="replace")
        except OSError:
            continue
        beside = path.rpartition("/")[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python thinks of a person's code is not our affair
            names = imports_of(found[path])
        for name in sorted(names):
            places = {beside} if name.startswith(".") else {beside, script.rpartition("/")[0], ""}
            waiting += [each for place in sorted(places) for each in files_of(name, place)]
    return found
