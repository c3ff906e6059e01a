"""Executor of Fetch: a stream of bytes, never completely in memory."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from typing import IO, cast

from toolkit.core.command import Command, script
from toolkit.core.local_writer import LocalWriter, TarHeaders, UnsafeName, destination, split_name
from toolkit.core.printable import counted
from toolkit.core.runner import MOST_SILENCE_S
from toolkit.errors import ToolkitError
from toolkit.plan.context import Advance, Context, Verdict, failure
from toolkit.plan.steps import Fetch
from toolkit.protocol.names import JOB_ID, JOBS

# Everything but the snapshot itself: logs, records, and what the job wrote after its code had come; by the
# time that the kernel notes, since files that a job copies or unpacks can keep an older one.
# A file with two names comes twice: a link to another member of the archive would not be written here.
# job.json stays on the host: it can contain variables from the command line, which can be secrets.
# A job id begins with a letter or digit, so find takes no folder for an option.
_COLLECT = r"""
cd "$1" || exit 1
for job in [A-Za-z0-9]*/; do
  [ -e "$job.sent" ] || continue
  find "$job" -name __pycache__ -prune -o -type f ! -name job.json ! -name .sent \
    \( ! -path "${job}code/*" -o -cnewer "$job.sent" \) -print0
done | tar -c --hard-dereference --null --no-recursion -T -
"""
_LEFT_THERE = ("job.json", ".sent")


_WITHOUT = "toolkit down --no-save  # removes the cluster without downloading the job records"
_AGAIN = "run the same command again"
_PIECE = 2**20
_SHOWN = 3


def fetch(step: Fetch, context: Context, advance: Advance) -> Verdict:
    """Download the output of the jobs on the host to the local folder."""
    collect = script(_COLLECT, str(JOBS)).within(*step.inside)
    try:
        with LocalWriter(destination(step.into), step.host) as writer:
            return _fetch(step, context, collect, writer, advance)
    except OSError as error:
        what = f"cannot write the downloaded files to {step.into}: {error.strerror or error}"
        fix = f"free disk space on this machine, or make {step.into} writable\n{_WITHOUT}"
        raise ToolkitError(what, fix) from error


def _fetch(step: Fetch, context: Context, collect: Command, writer: LocalWriter, advance: Advance) -> Verdict:
    # On disk, next to the destination: checkpoints can be larger than this machine's memory.
    with writer.scratch() as packed:

        def keep(data: bytes) -> None:
            writer.take(len(data))
            packed.write(data)
            advance(packed.tell(), 0)

        runner = context.runners[step.host]
        result = runner.stream(collect, keep, silence=MOST_SILENCE_S)
        if not result.ok:
            raise _or_without(failure(result, runner), step.host)
        if not packed.tell():
            return Verdict("skipped", "no job records")
        try:
            count, skipped, others = _unpack(packed, writer, step.host)
        except ToolkitError as error:
            raise _or_without(error, step.host) from error
    more = f" and {others} more" if others else ""
    left_out = f"skipped files with unexpected names: {', '.join(skipped)}{more}" if skipped else ""
    if not count:
        return Verdict("skipped", left_out or "no job records")
    return Verdict("ok", "; ".join(filter(None, (f"{counted(count, 'file')} in {step.into}", left_out))))


def _or_without(error: ToolkitError, host: str) -> ToolkitError:
    return ToolkitError(error.what, f"{error.fix}\n{_WITHOUT}" if error.fix else _WITHOUT, host)


def _unpack(packed: IO[bytes], writer: LocalWriter, host: str) -> tuple[int, list[str], int]:
    """Write the files of the archive.

    Returns:
        Their number; some names that are not those of job files, and the number of the others.
    """
    count, others = 0, 0
    skipped: list[str] = []
    for member in _members(packed):
        name = _local_name(member, host)
        if not name:
            if len(skipped) < _SHOWN:
                skipped.append(ascii(member.name))
            else:
                others += 1
            continue
        file, left = writer.create(name), member.size
        packed.seek(member.offset_data)
        while left:
            data = packed.read(min(left, _PIECE))
            if not data:
                raise ToolkitError("the archive of the job records is truncated", _AGAIN, host)
            file.write(data)
            left -= len(data)
        file.commit()
        count += 1
    return count, skipped, others


def _local_name(member: tarfile.TarInfo, host: str) -> str:
    """Return JOB/HOST/PATH for JOB/PATH of the archive; empty for what was not requested."""
    try:
        job, *rest = split_name(member.name)
    except UnsafeName:
        return ""
    if not JOB_ID.fullmatch(job) or not rest or rest[-1] in _LEFT_THERE or "__pycache__" in rest:
        return ""
    return "/".join((job, host, *rest))


def _members(packed: IO[bytes]) -> Iterator[tarfile.TarInfo]:
    """Yield the regular files of an uncompressed archive.

    Raises:
        ToolkitError: the archive cannot be read, or has a member that `tar` on a host does not write.
    """
    try:
        packed.seek(0)
        tar = tarfile.TarFile(fileobj=cast("IO[bytes]", TarHeaders(packed)))
        # The offset is 0 if there is no first member; Python 3.10 would then look before the start.
        while tar.offset and (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # or all of them stay in memory
            if member.size < 0 or member.issparse():
                raise tarfile.ReadError(f"the member {member.name!a} is sparse or has a negative size")
            if member.isfile():
                yield member
        packed.seek(tar.offset)
        if packed.read(tarfile.BLOCKSIZE) != tarfile.NUL * tarfile.BLOCKSIZE:
            raise tarfile.ReadError(
                "the end of the archive is missing"
            )  # to tarfile, a header that is not valid ends it too
    except OSError:
        raise  # of this machine
    except Exception as error:  # tarfile raises many kinds for headers that are not valid
        what = f"the archive of the job records cannot be read: {error}"
        raise ToolkitError(what, _AGAIN) from error
