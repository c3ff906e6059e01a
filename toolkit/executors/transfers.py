"""Executor of Fetch: bytes in a stream, never whole in memory."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from toolkit.core.command import Command, script
from toolkit.core.counted import counted
from toolkit.core.names import JOBS
from toolkit.errors import ToolkitError
from toolkit.executors.context import Advance, Context, Verdict
from toolkit.executors.failures import failure
from toolkit.plan.steps import Fetch

# Everything but the snapshot itself: logs, records, and what the job wrote after its code had come; by the
# time that the kernel notes, since files that a job copies or unpacks may keep an older one.
# job.json stays: it may hold the variables that the person gave, and some of those are secrets.
_COLLECT = r"""
cd "$1" || exit 1
for job in */; do
  [ -e "$job.sent" ] || continue
  find "$job" -name __pycache__ -prune -o -type f ! -name job.json ! -name .sent \
    \( ! -path "${job}code/*" -o -cnewer "$job.sent" \) -print0
done | tar -c --null --no-recursion -T -
"""


def fetch(step: Fetch, context: Context, advance: Advance) -> Verdict:
    """Bring what the jobs wrote on the host into the local folder."""
    collect = script(_COLLECT, str(JOBS)).within(*step.inside)
    into = Path(step.into)
    try:
        into.mkdir(parents=True, exist_ok=True)
        return _fetch_into(step, context, collect, into, advance)
    except OSError as error:
        what = f"cannot write to {into}: {error.strerror or error}"
        raise ToolkitError(what, "make room there, or go on without them: toolkit down --no-save") from error


def _fetch_into(step: Fetch, context: Context, collect: Command, into: Path, advance: Advance) -> Verdict:
    # On disk, beside where it goes: checkpoints may be larger than this machine's memory.
    with tempfile.TemporaryFile(dir=into) as packed:

        def keep(data: bytes) -> None:
            packed.write(data)
            advance(packed.tell(), 0)

        runner = context.runners[step.host]
        result = runner.stream(collect, keep)
        if not result.ok:
            error, without = failure(result, runner), "to go on without them: toolkit down --no-save"
            raise ToolkitError(error.what, f"{error.fix}; {without}" if error.fix else without, step.host)
        if not packed.tell():
            return Verdict("skipped", "no jobs")
        packed.seek(0)
        with tarfile.open(fileobj=packed) as tar:
            count = sum(_unpack(tar, member, into, step.host) for member in tar if member.isfile())
    if not count:
        return Verdict("skipped", "no jobs")
    return Verdict("ok", f"{counted(count, 'file')} in {step.into}")


def _unpack(tar: tarfile.TarFile, member: tarfile.TarInfo, into: Path, host: str) -> int:
    job, *rest = Path(member.name).parts
    source = tar.extractfile(member)
    # What a job wrote is not trusted to name a place outside of its own folder.
    if source is None or not rest or member.name.startswith("/") or ".." in rest or job == "..":
        return 0
    target = into / job / host / Path(*rest)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    return 1
