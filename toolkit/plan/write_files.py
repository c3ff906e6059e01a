"""Executor of Upload: files that are as they should be are left alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import tarfile
from pathlib import Path

from toolkit.core.command import Command, script
from toolkit.plan.context import Advance, Context, Verdict, text_of
from toolkit.plan.failures import failure
from toolkit.plan.steps import File, Upload
from toolkit.protocol.numbers import whole

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
gzip -dc | tar -xpof - -C "$aside"
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


def upload(step: Upload, context: Context, advance: Advance) -> Verdict:
    """Write the files that differ in content or mode from what is there."""
    runner = context.runners[step.host]
    seen = runner.run(upload_question(step, context), 60)
    if not seen.ok:
        raise failure(seen, runner)
    changed = _differing(step, context, seen.stdout)
    if not changed:
        return Verdict("skipped")
    result = runner.run(_written(changed), 120)
    if not result.ok:
        raise failure(result, runner, paths=[file.path for file, _ in changed])
    return Verdict("ok", f"{len(changed)} of {len(step.every)} files")


def upload_question(step: Upload, context: Context) -> Command:
    """Return the command that says how the step's files are on the host."""
    return script(_LOOK, *(file.path for file in step.every))


def upload_settled(step: Upload, context: Context, said: str) -> Verdict | None:
    """Return the verdict where all files are as they are to be, by what ``upload_question`` printed."""
    return None if _differing(step, context, said) else Verdict("skipped")


def _differing(step: Upload, context: Context, said: str) -> list[tuple[File, bytes]]:
    """Return the files that are not as they are to be, with their contents."""
    numbers, sums, modes = (line.split() for line in f"{said}\n\n".split("\n")[:3])
    # One that went, or was shut, between two of its questions: then nothing is known of any.
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
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, group in enumerate(groups):
            first = group[0][0]
            alone = ("file", first.path, f"{first.mode:o}")
            words += alone if first.in_place else ("folder", _folder(first))
            for file, data in group:
                entry = tarfile.TarInfo(f"{number}/{Path(file.path).name}")
                entry.size, entry.mode = len(data), file.mode
                archive.addfile(entry, io.BytesIO(data))
        archive.addfile(tarfile.TarInfo("whole"))
    # On the file system that they go to.
    base = os.path.commonpath([_folder(file) for file, _ in files])
    command = script(_WRITE, base, *words)
    return Command(command.argv, gzip.compress(packed.getvalue(), 6, mtime=0))


def _group(file: File) -> tuple[str, str]:
    """Neighbours of one folder go into place together; one whose inode stays goes alone."""
    return _folder(file), file.path if file.in_place else ""


def _folder(file: File) -> str:
    return str(Path(file.path).parent)
