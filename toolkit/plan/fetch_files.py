"""Executor of Fetch: a stream of files, each written as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field

from toolkit.core.command import command
from toolkit.core.host_programs import packed
from toolkit.core.local_writer import (
    IncomingFile,
    IncomingFiles,
    LocalWriter,
    destination,
    split_name,
)
from toolkit.core.printable import counted
from toolkit.core.runner import MOST_SILENCE_S
from toolkit.errors import ToolkitError, Unreachable
from toolkit.plan.context import Advance, Context, Verdict, failure
from toolkit.plan.steps import Fetch
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.files import MOST_BYTES, JobFile, JobFileRefused, JobFilesEnd
from toolkit.protocol.names import JOB_ID, JOBS

_WITHOUT = "toolkit down --no-save  # removes the cluster without downloading the job records"
_AGAIN = "run the same command again"
_SHOWN = 3


def fetch(step: Fetch, context: Context, advance: Advance) -> Verdict:
    """Download the output of the jobs on the host to the local folder."""
    try:
        with LocalWriter(destination(step.into), step.host) as writer:
            return _fetch(step, context, writer, advance)
    except Unreachable:
        raise
    except ToolkitError as error:
        fix = f"{error.fix}\n{_WITHOUT}" if error.fix else _WITHOUT
        raise ToolkitError(error.what, fix, step.host) from error
    except OSError as error:
        what = f"toolkit cannot write the downloaded files to {step.into}: {error.strerror or error}"
        fix = f"free disk space on your machine, or make {step.into} writable\n{_WITHOUT}"
        raise ToolkitError(what, fix) from error


def _fetch(step: Fetch, context: Context, writer: LocalWriter, advance: Advance) -> Verdict:
    # The program's text, because the host can have the programs of an earlier version.
    # -X utf8: names of files are UTF-8, also if the image sets another locale.
    python = ("python3", "-I", "-S", "-X", "utf8", "-c", packed("send_files"))
    runner = context.runners[step.host]
    stream = JobFiles(writer, lambda done: advance(done, 0))
    collect = command(*step.inside, *python, "jobs", str(JOBS))
    result = runner.stream(collect, stream, silence=MOST_SILENCE_S)
    if not result.ok:
        raise failure(result, runner)
    if stream.unread:
        paths, saved = stream.unread_text(), counted(stream.count, "other file")
        raise ToolkitError(f"the host cannot read {paths}; toolkit saved {saved} in {step.into}", step.fix)
    if not stream.ended:
        raise ToolkitError("the list of job files is incomplete", _AGAIN)
    if not stream.count:
        return Verdict("skipped", "no job records")
    return Verdict("ok", f"{counted(stream.count, 'file')} in {step.into}")


@dataclass
class JobFiles(IncomingFiles):
    """Takes the files of all jobs; each gets its name when it is complete.

    Args:
        unread: number of files and folders that the host cannot read; ``shown`` are the first of them.
        ended: the host has sent all files.
    """

    count: int = 0
    unread: int = 0
    shown: list[str] = field(default_factory=list)
    ended: bool = False

    def begin(self, line: bytes) -> tuple[IncomingFile | None, int]:
        try:
            if self.ended:
                raise DecodeError("", "a line follows the end of the list")
            value = load_json(line, MOST_BYTES)
            keys = value if isinstance(value, dict) else {}
            if "end" in keys:
                self.ended = decode(JobFilesEnd, value).end
            elif "refused" in keys:
                gone = decode(JobFileRefused, value)
                self.unread += 1
                self.shown += [f"{gone.name!a} ({gone.refused})"] if self.unread <= _SHOWN else []
            else:
                sent = decode(JobFile, value)
                return self.writer.create(self._local_name(sent.name)), sent.size
        except DecodeError as error:
            raise ToolkitError(f"the host sent an invalid list of job files: {error}", _AGAIN) from error
        return None, 0

    def finish(self, file: IncomingFile) -> None:
        file.commit()
        self.count += 1

    def unread_text(self) -> str:
        more = self.unread - len(self.shown)
        return ", ".join(self.shown) + (f" and {more} more" if more else "")

    def _local_name(self, name: str) -> str:
        """Return JOB/HOST/PATH for JOB/PATH."""
        job, *rest = split_name(name)
        left_there = rest in ([], ["job.json"], [".sent"]) or "__pycache__" in rest[:-1]
        if left_there or not JOB_ID.fullmatch(job):
            raise ToolkitError(f"the host sent {name!a}, which is not a file that a job wrote", _AGAIN)
        return "/".join((job, self.writer.host, *rest))
