"""Executor of Upload: files that are as they should be are left alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import os
import tarfile

from toolkit.core.command import Command, Ref, script
from toolkit.executors.context import Advance, Context, Verdict
from toolkit.executors.failures import failure
from toolkit.plan.steps import File, Upload

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
    seen = runner.run(look(step), 60)
    if not seen.ok:
        raise failure(seen, runner)
    changed = differing(step, context, seen.stdout)
    if not changed:
        return Verdict("skipped")
    result = runner.run(_written(changed), 120)
    if not result.ok:
        raise failure(result, runner, paths=[file.path for file, _ in changed])
    return Verdict("ok", f"{len(changed)} of {len(step.files)} files")


def look(step: Upload) -> Command:
    """Return the command that says how the step's files are on the host."""
    return script(_LOOK, *(file.path for file in step.files))


def differing(step: Upload, context: Context, said: str) -> list[tuple[File, bytes]]:
    """Return the files that are not as they are to be, by what ``look`` printed, with their contents."""
    numbers, sums, modes = (line.split() for line in f"{said}\n\n".split("\n")[:3])
    # One that went, or was shut, between two of its questions: then nothing is known of any.
    known = zip(sums, modes, strict=True) if len(numbers) == len(sums) == len(modes) else ()
    there = dict(zip(map(int, numbers), known, strict=False))
    wanted = ((file, _text(file, context).encode()) for file in step.files)
    return [
        (file, data)
        for number, (file, data) in enumerate(wanted)
        if there.get(number) != (hashlib.sha256(data).hexdigest(), f"{file.mode:o}")
    ]


def _text(file: File, context: Context) -> str:
    parts = (p.resolve(context.outputs) if isinstance(p, Ref) else p for p in file.content)
    return "".join(p for p in parts if p is not None)


def _written(files: list[tuple[File, bytes]]) -> Command:
    """Return the command that writes files, with their contents on its standard input: no argv has them."""
    groups = [list(each) for _, each in itertools.groupby(files, key=lambda pair: _group(pair[0]))]
    words: list[str] = []
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number, group in enumerate(groups):
            first = group[0][0]
            alone = ("file", first.path, f"{first.mode:o}")
            words += alone if first.in_place else ("folder", os.path.dirname(first.path))
            for file, data in group:
                entry = tarfile.TarInfo(f"{number}/{os.path.basename(file.path)}")
                entry.size, entry.mode = len(data), file.mode
                archive.addfile(entry, io.BytesIO(data))
        archive.addfile(tarfile.TarInfo("whole"))
    # On the file system that they go to.
    base = os.path.commonpath([os.path.dirname(file.path) for file, _ in files])
    command = script(_WRITE, base, *words)
    return Command(command.argv, gzip.compress(packed.getvalue(), 6, mtime=0))


def _group(file: File) -> tuple[str, str]:
    """Neighbours of one folder go into place together; one whose inode stays goes alone."""
    return os.path.dirname(file.path), file.path if file.in_place else ""
