"""The launcher of a job and the command of each rank: set by the user, or by the script's imports."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.core.command import quoted
from toolkit.core.finding import Finding
from toolkit.errors import BadInput, Problem
from toolkit.hostsfile.load import is_file, is_folder
from toolkit.jobs.code import why_not_sent
from toolkit.jobs.script_imports import (
    files_of,
    imports_of,
    launcher_for,
    local_rank_option,
    mentions,
)
from toolkit.launchers import ELASTIC, LAUNCHERS
from toolkit.launchers.job import Job
from toolkit.protocol.transport import EXEC, INSTEAD, WITHOUT_SSH

AUTO = "auto"
# Replaces a script's path if the code is an argument.
_CODE = "the code after -c"
# Limits for reading the imports of a program: number of files, and bytes of each.
_MANY_SOURCES, _LONG_SOURCE = 200, 1 << 20
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.[0-9]+)?)?")
# Options of Python that take a value as the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
# -c and -m, also after other options in one word, as in -uc.
_CODE_FOLLOWS, _MODULE_FOLLOWS = re.compile(r"-[a-zA-VYZ]*c"), re.compile(r"-[a-zA-VYZ]*m")
_ACCELERATE = ("accelerate", "launch")
# Launchers whose scripts can expect the local rank as an option: DeepSpeed's own passes it, and torchrun
# replaces torch.distributed.launch, which passed it.
_PASS_LOCAL_RANK = ("deepspeed", "torchrun")
# Commands that start ranks themselves -> the launcher that the user probably means.
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
    """The launcher of a job and the command of each rank.

    Args:
        command: the command that each rank executes.
        why: the reason for the launcher if ``auto`` chose it; otherwise empty.
        local_rank_word: see ``Job``.
        unconnected: ``auto`` read the script and found no library for distributed training.
    """

    launcher: str
    command: tuple[str, ...]
    why: str = ""
    local_rank_word: str = ""
    unconnected: bool = False


def how_to_start(
    words: Sequence[str], workdir: Path | None, launcher: str, named: bool, alone: bool
) -> Start:
    """Return the launcher and the command of a job; read the script and what it imports from its folder.

    Args:
        words: a script of ``workdir`` with its arguments, or a command.
        launcher: one of ``LAUNCHERS``, or AUTO.
        named: the user named the launcher for this job; otherwise it is that of the hosts file.
        alone: the job has one rank only, which is allowed to start others.

    Raises:
        BadInput: see ``rank_command``; or the command would start ranks itself, once for each rank.
    """
    command = rank_command(words, workdir)
    if tuple(words[:2]) == _ACCELERATE and (launcher in (AUTO, "accelerate") or not named):
        return Start(
            "accelerate",
            command,
            "" if launcher == "accelerate" else "the command starts with accelerate launch",
        )
    if not alone:
        _refuse_nested(words)
    sources = _sources(command, workdir)
    why, unconnected = "", False
    if launcher == AUTO:
        choice = launcher_for(frozenset().union(*map(_imports, sources.values())))
        launcher, why = choice.launcher, _reason(next(iter(sources), ""), choice.module)
        unconnected = bool(sources) and not choice.module
    # rank.py inserts the option after the name of a script.
    passes = launcher in _PASS_LOCAL_RANK and _python_program(command)[0] == "script"
    with _without_warnings():
        word = local_rank_option(sources.values()) if passes else ""
    return Start(launcher, command, why, word, unconnected)


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Hide Python's warnings about the user's code."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _imports(source: str) -> frozenset[str]:
    with _without_warnings():
        return imports_of(source)


def _reason(script: str, module: str) -> str:
    if module:
        return f"{script} imports {module}"
    return (
        f"{script} imports no library for distributed training"
        if script
        else "the command is not a Python script in the code folder"
    )


def _refuse_nested(words: Sequence[str]) -> None:
    plain = ("python" if _PYTHON.fullmatch(words[0]) else words[0], *words[1:3])
    for start, launcher in _THEMSELVES.items():
        if plain[: len(start)] == start:
            name = " ".join(words[: len(start)])
            rest = name if start == _ACCELERATE else ""
            fix = f"toolkit run --launcher {launcher} {f'-- {rest}' if rest else 'SCRIPT'} ..."
            what = f"starts ranks itself, so every rank would start all ranks again; use {fix}, or --np 1"
            raise BadInput("command line", (Problem(name, what),))


def _sources(command: Sequence[str], workdir: Path | None) -> dict[str, str]:
    """Return the Python code that a command runs and what it imports from the folder, by path."""
    kind, index = _python_program(command)
    if kind == "code":
        return {_CODE: command[index]}
    if not kind or workdir is None:
        return {}
    script = _script(command, workdir)
    return read_sources(workdir, script) if script else {}


def _script(command: Sequence[str], workdir: Path) -> str:
    """Return the file of the folder that a command runs; empty if it runs none, or one that is not known."""
    kind, index = _python_program(command)
    candidates = [command[index]] if kind == "script" else [command[0]]
    if kind == "module":
        base = command[index].replace(".", "/")
        candidates = [f"{base}.py", f"{base}/__main__.py"]
    elif tuple(command[:2]) == _ACCELERATE:
        candidates = [word for word in command if word.endswith(".py")][:1]
    return next((path for path in candidates if is_file(workdir / path)), "")


def script_problems(command: Sequence[str], workdir: Path | None) -> list[Problem]:
    """Return the problem of a script that the hosts would not receive with the folder.

    Args:
        command: see ``rank_command``.

    Raises:
        ToolkitError: an ignore file cannot be read.
    """
    is_module = _python_program(command)[0] == "module" or (
        tuple(command[:2]) == _ACCELERATE and bool({"-m", "--module"} & set(command))
    )
    # The image can have a module of the same name.
    if workdir is None or is_module:
        return []
    script = _script(command, workdir)
    if not script or script.startswith("/"):
        return []
    why = why_not_sent(workdir, script)
    return [Problem(script, f"is not sent to the hosts, because {why}")] if why else []


def _python_program(command: Sequence[str]) -> tuple[str, int]:
    """Return ``script``, ``module`` or ``code`` (empty if unknown), and the index of the word that names it.

    Options of Python before it are skipped.
    """
    words = iter(enumerate(command))
    if not _PYTHON.fullmatch(next(words, (0, ""))[1]):
        return "", 0
    for index, word in words:
        following = min(index + 1, len(command) - 1)
        if not word.startswith("-"):
            return ("script" if word.endswith(".py") else ""), index
        if _CODE_FOLLOWS.fullmatch(word):
            return "code", following
        if _MODULE_FOLLOWS.fullmatch(word):
            return "module", following
        if word in _WITH_VALUE:
            next(words, None)
    return "", 0


def rank_command(words: Sequence[str], workdir: Path | None) -> tuple[str, ...]:
    """Return what each rank executes: a Python script through ``python``, another file as itself.

    Raises:
        BadInput: nothing was given, or a script that is not in the folder that is sent.
    """
    if not words:
        raise BadInput(
            "command line", (Problem("", "a script or a command is missing: toolkit run SCRIPT [ARGS…]"),)
        )
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
            # Python takes a name with a leading dash for an option.
            return ("python", f"./{relative}" if relative.startswith("-") else relative, *rest)
        if not local.stat().st_mode & 0o111:
            run = f"run chmod +x {quoted(str(local))}"
            what = f"is not executable; {run}, or put an interpreter such as bash before the file name"
            raise BadInput("command line", (Problem(first, what),))
        return (f"./{relative}", *rest)
    # A word without a slash can be a program of the image.
    if local is not None and is_folder(local) and ("/" in first or first in (".", "..")) and first[0] != "/":
        raise BadInput("command line", (Problem(first, "is a folder; specify a script in this folder"),))
    if first.endswith((".py", ".sh")) and not first.startswith("/"):
        problem = Problem(first, f"does not exist in {workdir}; set the code folder with --workdir DIR")
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
            problem = Problem(
                str(path), f"is outside the code folder {base}; set the code folder with --workdir DIR"
            )
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
    kind, script = _python_program(command)
    if not sources or kind != "script":
        return "", ()
    given = command[script + 1 :]
    own = given[: given.index("--")] if "--" in given else given
    names = dict.fromkeys(word.partition("=")[0] for word in own if word.startswith("-"))
    return command[script], tuple(
        name
        for name in names
        if name in options and not any(mentions(text, name) for text in sources.values())
    )


def launcher_problems(launcher: str) -> list[Problem]:
    """Return what is wrong with the name of a launcher."""
    if launcher in (AUTO, *LAUNCHERS):
        return []
    known = ", ".join(sorted((AUTO, *LAUNCHERS)))
    return [Problem("--launcher", f"should be one of {known}, found {launcher}")]


def elastic_problems(launcher: str, max_restarts: int, why: str = "") -> list[Problem]:
    """Return the problems that prevent an elastic job.

    Args:
        launcher: empty if it is not known.
        why: the reason for the launcher if ``auto`` chose it.
    """
    problems = []
    if launcher in LAUNCHERS and launcher not in ELASTIC:
        known = " or ".join(f"--launcher {name}" for name in ELASTIC)
        chosen = f" ({why})" if why else ""
        problems.append(Problem("--elastic", f"{launcher}{chosen} cannot restart ranks itself; use {known}"))
    if not max_restarts:
        problems.append(
            Problem("--elastic", "this option requires a limit on restarts; add --max-restarts N")
        )
    return problems


def without_ssh(start: Start) -> Start:
    """Return the same start for hosts that cannot reach each other by SSH.

    A launcher that ``auto`` chose is replaced by one that starts the same ranks. A launcher that the user
    named stays.
    """
    instead = INSTEAD.get(start.launcher) if start.why else None
    return replace(start, launcher=instead) if instead else start


def transport_problems(launcher: str, max_restarts: int, why: str = "") -> list[Problem]:
    """Return the problems that prevent the job with ``transport: exec``.

    Args:
        why: the reason for exec if ``transport: auto`` chose it.
    """
    problems = []
    transport = f"{EXEC} ({why})" if why else EXEC
    if launcher in LAUNCHERS and launcher not in WITHOUT_SSH:
        known = " or ".join(f"--launcher {name}" for name in WITHOUT_SSH)
        problems.append(
            Problem("--launcher", f"{launcher} requires SSH, but transport is {transport}; use {known}")
        )
    if max_restarts:
        what = f"restarts require SSH, but transport is {transport}; remove this option"
        problems.append(Problem("--max-restarts", what))
    return problems


# Which code of Horovod 0.28.1 does what: docs/internals/adr, "default launcher".
_GLOO_ELASTIC = (
    "Horovod's rendezvous listens on the main host without authentication, and unpickles the worker "
    "addresses that it receives. Every client that reaches the main host can run programs as you "
    "(CVE-2024-10190), and can read and replace the entries of Horovod's key-value store (CVE-2026-31234)"
)
_GLOO_STATIC = (
    "Horovod's rendezvous listens on the main host without authentication. Every client that reaches the "
    "main host can read and replace the entries of Horovod's key-value store (CVE-2026-31234). The code "
    "execution of CVE-2024-10190 is possible only with --elastic"
)


def launcher_findings(job: Job, start: Start | None = None) -> tuple[Finding, ...]:
    """Return warnings about the launcher of a job."""
    found = []
    if job.launcher == "horovodrun-gloo" or (job.elastic and job.launcher == "horovodrun"):
        what = _GLOO_ELASTIC if job.elastic else _GLOO_STATIC
        which = "--elastic" if job.elastic else "--launcher"
        restarts = f" --max-restarts {job.max_restarts}" if job.elastic else ""
        fix = _run_with(job, f"--launcher horovodrun{restarts}")
        found.append(Finding("launcher", "warning", what, fix, job.main, which))
    # A command that is no Python script, such as a shell script, can connect its ranks in ways unknown here.
    if start is not None and start.unconnected and job.world_size > 1:
        what = (
            f"{start.why}: each of the {job.world_size} ranks does the same work, "
            "unless the ranks communicate in another way"
        )
        found.append(Finding("launcher", "warning", what, _run_with(job, "--np 1"), "", "--launcher auto"))
    return tuple(found)


def _run_with(job: Job, options: str) -> str:
    """Return the command that runs the job's script with these options, without the script's arguments."""
    kind, index = _python_program(job.command)
    if kind == "module":
        return f"toolkit run {options} -- {shlex.join(job.command[: index + 1])}"
    script = job.command[index] if kind == "script" else "SCRIPT"
    return f"toolkit run {options} {shlex.quote(script)}"


def read_sources(folder: Path, script: str) -> dict[str, str]:
    """Return a Python script and what it imports from its folder or from ``folder``, by path, itself first.

    Files that cannot be read, or are no text, are skipped; of a large file only the beginning is read.
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
        for name in sorted(_imports(found[path])):
            places = {beside} if name.startswith(".") else {beside, script.rpartition("/")[0], ""}
            waiting += [each for place in sorted(places) for each in files_of(name, place)]
    return found
