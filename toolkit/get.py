"""Results of a job: which files match on a host, which of them are here already, and the rest of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from toolkit.api import Session
from toolkit.core.command import command
from toolkit.core.names import INSIDE, JOBS, RUNS
from toolkit.effects.landing import Coming, Landing, put_link, safe_target, standing
from toolkit.effects.runner import ContainerRunner
from toolkit.errors import NotReady, ToolkitError
from toolkit.executors.failures import failure

_GIVE = ("python3", "-S", "-E", str(INSIDE / "give.py"))
_LIST_SECONDS = 120.0
_SHOWN = 8

# Bytes done, bytes in all.
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Found:
    """What a host has of the files that are asked for, held against a local folder.

    Args:
        into: the local folder.
        new: files and links that are to be brought.
        there: how many are here already, equal in size and time.
        differs: those of ``new`` in whose place something else is here.
        outside: links that lead out of the folder; they are left out.
    """

    host: str
    into: Path
    new: tuple[Coming, ...] = ()
    there: int = 0
    differs: tuple[Coming, ...] = ()
    outside: tuple[Coming, ...] = ()

    @property
    def size(self) -> int:
        """Bytes that are to be brought."""
        return sum(coming.size for coming in self.new)


@dataclass(frozen=True)
class Got:
    """What came of it; sizes in bytes."""

    host: str
    into: str
    files: int
    bytes: int
    there: int


class NoFolder(NotReady):
    """The host has no folder of the job."""


class NoSuchFile(ToolkitError):
    """The host has nothing of what is asked for."""


def default_folder(job: str) -> Path:
    """Return the local folder for a job's files if no other is named; it is never sent as code."""
    return Path(RUNS, job)


def find_files(session: Session, host: str, job: str, patterns: Sequence[str], into: Path) -> Found:
    """Return what a job's files on a host match the patterns, and how they stand here.

    Raises:
        NotReady: the container does not run.
        NoFolder: the job was not on this host.
        NoSuchFile: nothing matches; says what is there.
    """
    runner = session.container(host)
    folder = str(JOBS / job / "code")
    result = runner.run(command(*_GIVE, "list", folder, *patterns), _LIST_SECONDS)
    if not result.ok:
        raise failure(result, runner)
    coming: list[Coming] = []
    missing = []
    for line in result.stdout.splitlines():
        one = json.loads(line)
        if one.get("nothing"):
            raise NoFolder(f"there is no folder of job {job}", "toolkit status lists the jobs", host)
        if "missing" in one:
            missing.append(one)
        else:
            coming.append(Coming(**one))
    if missing:
        raise _no_such_file(missing, host, job)
    return _held_against(host, into, coming)


def _held_against(host: str, into: Path, coming: Sequence[Coming]) -> Found:
    new: list[Coming] = []
    differs: list[Coming] = []
    outside: list[Coming] = []
    for one in coming:
        target = safe_target(into, one)
        if target is None:
            outside.append(one)
        elif (how := standing(target, one)) != "there":
            new.append(one)
            differs += [one] if how == "differs" else []
    there = len(coming) - len(new) - len(outside)
    return Found(host, into, tuple(new), there, tuple(differs), tuple(outside))


def _no_such_file(missing: Sequence[dict[str, object]], host: str, job: str) -> NoSuchFile:
    first = missing[0]
    names = ", ".join(str(one["missing"]) for one in missing)
    if first["there"]:
        return NoSuchFile(
            f"job {job} has written nothing to {names}", "name a file of the code by itself", host
        )
    where = first["called"] or "the job's folder"
    there = ", ".join(map(str, first["names"])) if isinstance(first["names"], list) else ""
    more = f" and {first['more']} more" if first["more"] else ""
    what = f"job {job} has no {names}"
    return NoSuchFile(
        f"{what}; in {where}: {there or 'nothing'}{more}", f"toolkit exec {host} -- ls {first['place']}", host
    )


def refuse_overwriting(found: Sequence[Found]) -> None:
    """Refuse to replace local files that differ from what would come.

    Raises:
        ToolkitError: names them.
    """
    files = [str(one.into / coming.name) for one in found for coming in one.differs]
    if files:
        more = f" and {len(files) - _SHOWN} more" if len(files) > _SHOWN else ""
        what = (
            f"these differ from what would come, and nothing was brought: {', '.join(files[:_SHOWN])}{more}"
        )
        raise ToolkitError(what, "another folder: -o DIR; to replace them: --force")


def bring(session: Session, found: Found, tell: Tell) -> Got:
    """Bring the files; each appears under its name when all of it is here.

    Raises:
        ToolkitError: a file cannot be read there or written here; what came before it stays.
    """
    runner = session.container(found.host)
    # A host's word about itself is not trusted to name a place elsewhere: links come when all files have.
    files = [(one, found.into / one.name) for one in found.new if one.link is None]
    if files:
        landing = Landing(files, lambda done: tell(done, found.size))
        try:
            _receive(runner, landing)
        except OSError as error:
            what = f"cannot write to {found.into}: {error.strerror or error}"
            raise ToolkitError(what, "make room there, or use -o DIR; what has come stays") from error
        finally:
            landing.close()
    links = [one for one in found.new if one.link is not None]
    for one in links:
        put_link(found.into / one.name, one.link or "")
    size = landing.taken if files else 0
    return Got(found.host, str(found.into), len(found.new), size, found.there)


def _receive(runner: ContainerRunner, landing: Landing) -> None:
    asked = json.dumps([one.path for one, _ in landing.files]).encode()
    result = runner.stream(command(*_GIVE, "send"), landing, [asked])
    if not result.ok or not landing.whole:
        raise failure(result, runner, "run the same command again: it goes on from what is there")
    if landing.refused:
        one, why = landing.refused[0]
        others = len(landing.refused) - 1
        more = f", and {others} more" if others else ""
        raise ToolkitError(f"cannot read {one.path} ({why}){more}", "the others have come", runner.name)
