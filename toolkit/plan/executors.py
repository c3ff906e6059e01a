"""Executors of Run, WaitFor and Upload: commands on a host, and checks before and after them."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import itertools
import math
import os
import re
import shlex
import tarfile
from dataclasses import replace
from pathlib import Path

from toolkit.core.command import Command, Kind, Ref, command, script
from toolkit.core.engines import translate_engine
from toolkit.core.printable import counted
from toolkit.errors import ToolkitError
from toolkit.plan.context import Advance, Context, Verdict, failure, reason, text_of
from toolkit.plan.steps import CANNOT_TELL, File, Run, Stamp, Upload, WaitFor
from toolkit.protocol.decode import whole
from toolkit.protocol.host_list import host_list

# Statuses of toolkit's wrapper scripts, outside the range that docker and common programs use.
_SKIPPED, _DEAD, _LATE = 213, 214, 215

# The numbers of those that are there, then their sums, then their modes: a few processes for all files.
# sha256sum begins a line with a backslash where the name has one.
_LOOK = r"""
number=0
for f; do
  shift
  if [ -f "$f" ] && [ -r "$f" ]; then set -- "$@" "$f"; printf '%s ' "$number"; fi
  number=$((number + 1))
done
echo
[ $# -gt 0 ] || exit 0
sha256sum -- "$@" | sed 's/^\\//' | cut -c1-64 | tr '\n' ' '; echo
stat -c %a -- "$@" | tr '\n' ' '; echo
"""

# Aside first, so that an archive that does not arrive whole, or finds the disk full, changes nothing; then
# into place folder by folder. Arguments: where to lay aside, then for each group of files "folder DIRECTORY"
# or "file PATH MODE" for one whose inode stays.
_WRITE = """
set -e; umask 077
aside=$(mktemp -d "$1/.toolkit-new.XXXXXX"); trap 'rm -rf "$aside"' EXIT; trap 'exit 1' HUP INT TERM; shift
# m: the time of writing, by which Python detects changed modules; the archive has no times.
gzip -dc | tar -xpomf - -C "$aside"
# Comes last: tar is content with an archive that ends after any file.
[ -e "$aside/whole" ]
group=0
while [ $# -gt 0 ]; do
  case $1 in
    folder) mv -f "$aside/$group"/* "$2/"; shift 2 ;;
    file) cat "$aside/$group/${2##*/}" >"$2"; chmod "$3" "$2"; shift 3 ;;
  esac
  group=$((group + 1))
done
"""


def run(step: Run, context: Context, advance: Advance) -> Verdict:
    """Run the command unless there is nothing to do, again for a status in ``again``; keep what it saves."""
    targets, lost = _targets(step, context)
    if lost and len(lost) == len(targets):
        return Verdict("not run", f"an earlier step failed on {host_list(lost)}")
    without = f"toolkit left out hosts on which an earlier step failed: {host_list(lost)}" if lost else ""
    runner = context.runners[step.host]
    subject = _own(step.command, context)
    whole = subject
    if step.unless is not None or step.reads is not None:
        check, kept = _check(step.unless, context)
        whole = _guarded(subject, check, kept, step.reads and _own(step.reads, context), step.prints)
    result, detail = runner.run(whole, step.timeout), ""
    if result.status in step.again:
        detail = f"the second attempt succeeded after the first attempt failed: {reason(result)}"
        result = runner.run(whole, step.timeout)
    if step.unsure and result.status == CANNOT_TELL:
        return Verdict("not run", reason(result), fix=step.unsure)
    skipped = step.unless is not None and result.status == _SKIPPED
    if result.status != 0 and not skipped:
        raise failure(result, runner, step.fix or _by_hand(step.host, subject), known=step.failures)
    output = _saved(step, context, result.stdout)
    if skipped:
        return Verdict("skipped", without, output)
    return Verdict("ok", "; ".join(filter(None, (step.why, without, detail))), output)


def _targets(step: Run, context: Context) -> tuple[list[str], list[str]]:
    """Return the other hosts that the command refers to, then those of them that saved nothing."""
    refs = [t for t in step.command.argv if isinstance(t, Ref) and t.host != step.host]
    lost = [ref.host for ref in refs if ref.resolve(context.outputs) is None]
    return list(dict.fromkeys(ref.host for ref in refs)), list(dict.fromkeys(lost))


def run_question(step: Run, context: Context) -> Command | None:
    """Return the query whose status and output show whether the step is done; see ``run_verdict``.

    None if the query depends on outputs of earlier steps.
    """
    if isinstance(step.unless, Stamp):
        return command("cat", step.unless.path) if step.reads is None else None
    if step.unless is None or _refers(step.unless) or _refers(step.reads):
        return None
    lines = [f"{_own(step.unless, context).shell()} >/dev/null"]
    if step.reads is not None:
        lines.append(_own(step.reads, context).shell())
    return Command(("sh", "-c", " && ".join(lines)), translated=True)


def run_verdict(step: Run, context: Context, answer: str) -> Verdict | None:
    """Return the verdict if the answer to ``run_question`` shows that the step is done."""
    if _targets(step, context)[1]:
        return None
    if isinstance(step.unless, Stamp) and answer.strip() != text_of(step.unless.content, context).strip():
        return None
    return Verdict("skipped", "", _saved(step, context, answer))


def _refers(command: Command | None) -> bool:
    return command is not None and any(isinstance(token, Ref) for token in command.argv)


def _saved(step: Run, context: Context, answer: str) -> str:
    """Save what was printed as a value of the step's kind, and return it.

    Raises:
        ToolkitError: the host printed something else.
    """
    if not step.saves:
        return ""
    try:
        value = step.kind.parse(answer)
    except ValueError as error:
        fix = _by_hand(step.host, _own(step.reads or step.command, context))
        raise ToolkitError(f"the host returned an invalid value: {error}", fix, step.host) from None
    if step.kind is not Kind.REPORT:
        context.outputs[step.host, step.saves] = value
    return value


def _own(command: Command, context: Context) -> Command:
    """Return a command with the outputs of earlier steps, translated for the engine of the hosts."""
    return translate_engine(command.resolved(context.outputs), context.engine)


def _by_hand(host: str, subject: Command) -> str:
    line = subject.line()
    short = len(line) <= 120 and "\n" not in line
    otherwise = "run the same command again with -v to see the command that failed"
    return f"on {host}: {line}" if short else otherwise


def _check(unless: Command | Stamp | None, context: Context) -> tuple[str, str]:
    """Return shell text that tests whether the step is done, and shell text to run after the action."""
    if unless is None:
        return "", ""
    if isinstance(unless, Command):
        # Standard input is the action's.
        return f"{_own(unless, context).shell()} </dev/null >/dev/null 2>&1", ""
    path, text = shlex.quote(unless.path), text_of(unless.content, context)
    check = f'[ "$(cat {path} 2>/dev/null)" = {shlex.quote(text.strip())} ]'
    return check, f"(umask 077; printf %s {shlex.quote(text)} >{path}) || status=1"


def _guarded(subject: Command, check: str, kept: str, reads: Command | None, prints: bool) -> Command:
    """Return check, action and read as one script: one round trip, and no time between check and action.

    Args:
        check, kept: see ``_check``.
        prints: see ``Run``.
    """
    into = " >&2" if reads and not prints else ""
    text = f"{subject.shell()}{into}; status=$?"
    if check:
        # A program that exits with the status of the wrapper script was not skipped.
        own = f"[ $status -ne {_SKIPPED} ] || status=1"
        after = f"; [ $status -ne 0 ] || {kept}" if kept else ""
        text = f"if {check}; then status={_SKIPPED}; else {text}; {own}{after}; fi"
    if reads is not None:
        statuses = _SKIPPED if prints else f"0|{_SKIPPED}"
        text += f"\ncase $status in {statuses}) {reads.shell()} </dev/null || exit ;; esac"
    return Command(("sh", "-c", f"{text}\nexit $status"), subject.stdin, translated=True)


def wait_question(step: WaitFor, context: Context) -> Command | None:
    """Return the command that succeeds if the wait is unnecessary."""
    return None if _refers(step.ready) else _own(step.ready, context)


def wait_verdict(step: WaitFor, context: Context, answer: str) -> Verdict | None:
    """Return the verdict where ``wait_question`` has succeeded."""
    return Verdict("skipped")


def wait(step: WaitFor, context: Context, advance: Advance) -> Verdict:
    """Wait on the host until it is ready, has died, or the deadline has passed."""
    ready, alive, explain = (_own(each, context) for each in (step.ready, step.alive, step.explain))
    # One round trip: the host itself looks ten times a second.
    text = f"""
end=$(( $(date +%s) + {math.ceil(step.deadline)} )); first=yes
while :; do
  if {ready.shell()} >/dev/null 2>&1; then [ "$first" ] && exit {_SKIPPED}; exit 0; fi
  if ! {alive.shell()} >/dev/null 2>&1; then {explain.shell()}; exit {_DEAD}; fi
  if [ "$(date +%s)" -ge "$end" ]; then {explain.shell()}; exit {_LATE}; fi
  first=; sleep 0.1
done"""
    result = context.runners[step.host].run(replace(script(text), translated=True), step.deadline + 15)
    if result.status == _DEAD and any(re.search(way.says, result.output) for way in step.failures):
        raise failure(result, context.runners[step.host], step.fix, known=step.failures)
    if result.status == _DEAD:
        raise ToolkitError(f"the container exited: {reason(result)}", step.fix, step.host)
    if result.status == _LATE:
        what = f"the container was not ready after {step.deadline:g} s; last output: {reason(result)}"
        raise ToolkitError(what, step.fix, step.host)
    if result.status not in (0, _SKIPPED):
        raise failure(result, context.runners[step.host], step.fix)
    return Verdict("skipped" if result.status == _SKIPPED else "ok")


def upload(step: Upload, context: Context, advance: Advance) -> Verdict:
    """Write the files whose content or mode differs on the host."""
    runner = context.runners[step.host]
    there = ""
    # If the probe found none of the files, all are written: a file that exists now can be replaced too.
    if step.known != "" or not context.recent:
        seen = runner.run(upload_question(step, context), 60)
        if not seen.ok:
            raise failure(seen, runner)
        there = seen.stdout
    changed = _differing(step, context, there)
    if not changed:
        return Verdict("skipped")
    result = runner.run(_written(changed), 120)
    if not result.ok:
        raise failure(result, runner, paths=[file.path for file, _ in changed])
    return Verdict("ok", f"wrote {len(changed)} of {counted(len(step.every), 'file')}")


def upload_question(step: Upload, context: Context) -> Command:
    """Return the command that reports the state of the step's files on the host."""
    return script(_LOOK, *(file.path for file in step.every))


def upload_verdict(step: Upload, context: Context, answer: str) -> Verdict | None:
    """Return the verdict if all files match, by the output of ``upload_question``."""
    return None if _differing(step, context, answer) else Verdict("skipped")


def _differing(step: Upload, context: Context, answer: str) -> list[tuple[File, bytes]]:
    """Return the files that differ from the plan, with their contents."""
    numbers, sums, modes = (line.split() for line in f"{answer}\n\n".split("\n")[:3])
    # A file disappeared or became unreadable during the query: then no answer is usable.
    known = zip(sums, modes, strict=True) if len(numbers) == len(sums) == len(modes) else ()
    there = dict(zip(map(whole, numbers), known, strict=False))
    wanted = ((file, text_of(file.content, context).encode()) for file in step.every)
    return [
        (file, data)
        for number, (file, data) in enumerate(wanted)
        if there.get(number) != (hashlib.sha256(data).hexdigest(), f"{file.mode:o}")
    ]


def _written(files: list[tuple[File, bytes]]) -> Command:
    """Return the command that writes files, with their contents on its standard input: no argv has them."""
    groups = [list(each) for _, each in itertools.groupby(files, key=lambda pair: _group(pair[0]))]
    words: list[str] = []
    packed: list[bytes] = []
    for number, group in enumerate(groups):
        first = group[0][0]
        alone = ("file", first.path, f"{first.mode:o}")
        words += alone if first.in_place else ("folder", _folder(first))
        packed.append(_packed(tuple((f"{number}/{Path(f.path).name}", f.mode, data) for f, data in group)))
    packed += [_packed((("whole", 0o644, b""),)), gzip.compress(bytes(2 * tarfile.BLOCKSIZE), mtime=0)]
    # On the file system of the destination.
    base = os.path.commonpath([_folder(file) for file, _ in files])
    command = script(_WRITE, base, *words)
    return Command(command.argv, b"".join(packed))


# The programs are the same for all hosts. Parts of a gzip file can be compressed one by one (RFC 1952, 2.2).
@functools.lru_cache(maxsize=64)
def _packed(files: tuple[tuple[str, int, bytes], ...]) -> bytes:
    """Return files as part of a compressed archive, without the end of the archive.

    Args:
        files: name, mode and content of each.
    """
    blocks = io.BytesIO()
    for name, mode, data in files:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), mode
        blocks.write(entry.tobuf(tarfile.USTAR_FORMAT))
        blocks.write(data.ljust(-(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0"))
    return gzip.compress(blocks.getvalue(), 6, mtime=0)


def _group(file: File) -> tuple[str, str]:
    """Neighbours of one folder go into place together; one whose inode stays goes alone."""
    return _folder(file), file.path if file.in_place else ""


def _folder(file: File) -> str:
    return str(Path(file.path).parent)
