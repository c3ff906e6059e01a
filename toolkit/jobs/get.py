"""Download of a job's files: those that match on a host, compared with a local folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from toolkit.cluster.session import Session
from toolkit.core.answers import LineStream
from toolkit.core.command import command, quoted
from toolkit.core.local_writer import (
    ELSEWHERE,
    BlockedPath,
    Destination,
    IncomingFile,
    IncomingFiles,
    LocalWriter,
    UnsafeName,
)
from toolkit.core.printable import counted
from toolkit.core.remote_files import (
    INSTALL_FIX,
    Collision,
    Missing,
    NoJob,
    RemoteFile,
    Requested,
    bad_answer,
    decode_listed,
    decode_sent,
    leads_out,
)
from toolkit.core.runner import MOST_SILENCE_S, ContainerRunner
from toolkit.errors import NotReady, ToolkitError
from toolkit.jobs.status import JobStatus
from toolkit.plan.context import failure
from toolkit.protocol.names import JOBS, RUNS, program

# -X utf8: names of files are UTF-8, also if the image sets another locale.
_GIVE = program("send_files", "-S", "-E", "-X", "utf8")
# Bytes of the list of files, about a million names; a list is kept in memory.
_MOST_LISTED = 256 << 20
_SHOWN = 8
_PIECE = 2**15  # bytes of a request that are sent at once

# Bytes done, bytes in all.
Tell = Callable[[int, int], None]


@dataclass(frozen=True)
class Skipped:
    """A file or link that is left out."""

    name: str
    reason: str


@dataclass(frozen=True)
class Found:
    """Files of a host that match the patterns, compared with a local folder.

    Args:
        new: files and links to download.
        there: number of files that exist locally with equal size and time.
        differs: those of ``new`` in whose place something else is here.
        blocked: reasons why files of ``new`` cannot be written: local folders on the way that are links.
        skipped: links that lead out of the folder.
    """

    host: str
    into: Destination
    new: tuple[RemoteFile, ...] = ()
    there: int = 0
    differs: tuple[RemoteFile, ...] = ()
    blocked: tuple[str, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(one.size for one in self.new)


@dataclass(frozen=True)
class Got:
    """Files that were downloaded; sizes in bytes.

    Args:
        files: number of files and links.
        skipped: links that were left out, each with the reason.
    """

    host: str
    into: str
    files: int
    bytes: int
    there: int
    skipped: tuple[Skipped, ...] = ()


class NoFolder(NotReady):
    """The host has no folder of the job."""


class NoSuchFile(ToolkitError):
    """The host has none of the requested files."""


def default_folder(job: str) -> Destination:
    """Return the local folder for a job's files if no other is named; it is never sent as code."""
    return Destination(Path(RUNS), (job,))


def find_files(session: Session, host: str, job: str, patterns: Sequence[str], into: Destination) -> Found:
    """Return the files of a job on a host that match the patterns, compared with the local folder.

    Raises:
        NotReady: the container is not running.
        NoFolder: the job was not on this host.
        NoSuchFile: nothing matches; lists the existing files.
        ToolkitError: two files would get the same local name, the host lists a file that was not requested,
            or its answer is not valid.
    """
    runner = session.container(host)
    folder = str(JOBS / job / "code")
    files: dict[str, RemoteFile] = {}
    missing: list[Missing] = []
    requested = Requested(folder, patterns)
    lines, size = LineStream(host), 0

    def take(data: bytes) -> None:
        nonlocal size
        size += len(data)
        if size > _MOST_LISTED:
            what = f"the list of the job's files is larger than {_MOST_LISTED >> 20} MiB"
            fix = f"toolkit get --job {job} PATTERN  # use a pattern that matches fewer files"
            raise ToolkitError(what, fix, host)
        for line in lines.take(data):
            add(line.decode(errors="replace"))

    def add(line: str) -> None:
        one = decode_listed(line, host)
        if isinstance(one, NoJob):
            raise NoFolder(f"the host has no folder of job {job}", "toolkit jobs", host)
        if isinstance(one, Collision):
            raise _collision(one, host, job, patterns, into)
        if isinstance(one, Missing):
            missing.append(one)
        elif one.name not in requested:
            what = (
                f"the host listed a file that toolkit did not request: {one.name!a}; no file was downloaded"
            )
            raise ToolkitError(what, INSTALL_FIX, host)
        elif one.name in files:
            raise bad_answer("a name that occurs twice", one.name, host)
        else:
            files[one.name] = one

    result = runner.stream(command(*_GIVE, "list", folder, *patterns), take, silence=MOST_SILENCE_S)
    if not result.ok:
        raise failure(result, runner)
    if missing:
        raise _no_such_file(missing, host, job)
    try:
        return _compared(host, into, list(files.values()))
    except OSError as error:
        what = f"cannot read {into.path}: {error.strerror or error}"
        raise ToolkitError(what, f"run the same command again with {ELSEWHERE}", host) from error


def _compared(host: str, into: Destination, files: Sequence[RemoteFile]) -> Found:
    new: list[RemoteFile] = []
    differs: list[RemoteFile] = []
    blocked: list[str] = []
    skipped: list[Skipped] = []
    there = 0
    with LocalWriter(into, host) as local:
        for one in files:
            if one.link is not None and leads_out(one.name, one.link):
                skipped.append(Skipped(one.name, "the link points outside the folder"))
                continue
            try:
                state = local.state(one)
            except UnsafeName as error:
                skipped.append(Skipped(one.name, error.what))
                continue
            except BlockedPath as error:
                blocked.append(error.what)
                state = "new"
            if state == "there":
                there += 1
                continue
            new.append(one)
            differs += [one] if state == "differs" else []
    return Found(host, into, tuple(new), there, tuple(differs), tuple(blocked), tuple(skipped))


def _no_such_file(missing: Sequence[Missing], host: str, job: str) -> NoSuchFile:
    first = missing[0]
    names = ", ".join(one.pattern for one in missing)
    if first.there:
        return NoSuchFile(
            f"job {job} wrote no file that matches {names}", f"toolkit get --job {job} FILE", host
        )
    where = first.called or "the working directory of the job"
    more = f" and {first.more} more" if first.more else ""
    what = f"job {job} has no file {names}"
    fix = quoted("toolkit", "exec", host, "--", "ls", first.place)
    return NoSuchFile(f"{what}; {where} contains: {', '.join(first.names) or 'no files'}{more}", fix, host)


def _collision(
    one: Collision, host: str, job: str, patterns: Sequence[str], into: Destination
) -> ToolkitError:
    if not set(one.patterns) <= set(patterns):
        return bad_answer("a pattern that was not requested", one.patterns, host)
    first, second = one.patterns
    what = (
        f"no file was downloaded, because {first} and {second} match different files that toolkit would "
        f"write to {into.path / one.name}"
    )
    get = ("toolkit", "get", "--job", job, "--host", host, "-o")
    both = (quoted(*get, str(into.path / at), pattern) for at, pattern in (("1", first), ("2", second)))
    return ToolkitError(what, " && ".join(both), host)


def with_earlier_jobs(
    error: NoFolder | NoSuchFile, known: Sequence[JobStatus], job: str, options: Sequence[str]
) -> ToolkitError:
    """Return the error about the newest job, extended by the ids of earlier jobs that can have the files.

    Args:
        known: oldest first.
        options: paths and options of the command, for the fix.
    """
    earlier = [one.id for one in reversed(known) if one.id != job]
    if not earlier:
        return error
    what = f"{error.what}; job {job} is the newest job; earlier jobs: {_some(earlier, ', ', 3)}"
    fix = quoted("toolkit", "get", "--job", earlier[0], *options)
    return type(error)(what, f"{fix}  # or with the id of another job", error.host)


def check_local(found: Sequence[Found], replace: bool) -> None:
    """Refuse to write through local links, and without ``replace`` to replace local files that differ.

    Raises:
        ToolkitError: names the links or the files.
    """
    blocked = list(dict.fromkeys(reason for one in found for reason in one.blocked))
    if blocked:
        raise ToolkitError(
            f"no file was downloaded: {_some(blocked, '; ')}",
            f"remove the link or move the file, or run the same command again with {ELSEWHERE}",
        )
    files = [str(one.into.path / file.name) for one in found for file in one.differs]
    if files and not replace:
        number = counted(len(files), "local file")
        what = f"no file was downloaded, because toolkit would replace {number}: {_some(files, ', ')}"
        raise ToolkitError(
            what, "run the same command again with -o DIR, or with --force to replace the local files"
        )


def _some(names: Sequence[str], comma: str, most: int = _SHOWN) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return comma.join(names[:most]) + more


def bring(session: Session, found: Found, tell: Tell, keep_modes: bool = False) -> Got:
    """Download the files; each gets its name when it is complete, and links are created last.

    Args:
        keep_modes: keep execute bits.

    Raises:
        ToolkitError: a file cannot be read on the host or written here; files that are complete stay.
    """
    runner = session.container(found.host)
    files = [one for one in found.new if one.link is None]
    links = [one for one in found.new if one.link is not None]
    skipped, received = list(found.skipped), 0
    try:
        with LocalWriter(found.into, found.host, found.size, len(found.new), keep_modes) as writer:
            if files:
                received = _receive(runner, writer, files, lambda done: tell(done, found.size))
            for one in links:
                try:
                    reason = writer.link(one.name, one.link or "")
                except ToolkitError as error:
                    reason = error.what
                skipped += [Skipped(one.name, reason)] if reason else []
    except OSError as error:
        what = f"cannot write the downloaded files to {found.into.path}: {error.strerror or error}"
        raise ToolkitError(
            what,
            f"free disk space on your machine, or run the same command again with {ELSEWHERE}  "
            "# toolkit keeps the complete files",
        ) from error
    count = len(found.new) + len(found.skipped) - len(skipped)
    return Got(found.host, str(found.into.path), count, received, found.there, tuple(skipped))


def _pieces(data: bytes) -> Iterator[bytes]:
    return (data[at : at + _PIECE] for at in range(0, len(data), _PIECE))


def _receive(
    runner: ContainerRunner, writer: LocalWriter, files: Sequence[RemoteFile], tell: Callable[[int], None]
) -> int:
    """Receive the files; return the number of bytes."""
    stream = FileStream(writer, tell, files)
    query = json.dumps([[one.path, one.size, one.inode] for one in files]).encode()
    result = runner.stream(command(*_GIVE, "send"), stream, _pieces(query), MOST_SILENCE_S)
    if not result.ok or not stream.complete:
        raise failure(result, runner, "run the same command again to continue the download")
    if stream.refused:
        one, why = stream.refused[0]
        others = len(stream.refused) - 1
        more = f" and {counted(others, 'more file')}" if others else ""
        what = f"the host cannot read {one.path} ({why}){more}; the other files were downloaded"
        raise ToolkitError(
            what, quoted("toolkit", "exec", runner.name, "--", "ls", "-l", one.path), runner.name
        )
    return stream.received


@dataclass
class FileStream(IncomingFiles):
    """Takes the requested files; a file must not be larger than it was announced in the listing.

    Args:
        files: as requested, in this order.
    """

    files: Sequence[RemoteFile]
    refused: list[tuple[RemoteFile, str]] = field(default_factory=list)
    _next: int = 0
    _mtime: int = 0

    def begin(self, line: bytes) -> tuple[IncomingFile | None, int]:
        host = self.writer.host
        if self.complete:
            raise ToolkitError(
                f"the host sent more files than the {len(self.files)} that toolkit requested",
                INSTALL_FIX,
                host,
            )
        sent, wanted = decode_sent(line, host), self.files[self._next]
        if sent.refused:
            self.refused.append((wanted, sent.refused))
            self._next += 1
            return None, 0
        if sent.size > wanted.size:
            raise bad_answer(
                f"{wanted.name!a} is larger than the listed {wanted.size} bytes", sent.size, host
            )
        self._mtime = sent.mtime
        return self.writer.create(wanted.name), sent.size

    def finish(self, file: IncomingFile) -> None:
        file.commit(self.files[self._next].mode & 0o755, self._mtime)
        self._next += 1

    @property
    def complete(self) -> bool:
        """Return whether every file has come or was refused."""
        return self._next == len(self.files)
