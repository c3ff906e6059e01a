"""Executor of Upload: files that are as they should be are left alone."""

from __future__ import annotations

import base64
import hashlib
import shlex

from toolkit.core.command import Ref, command, script
from toolkit.executors.context import Advance, Context, Verdict
from toolkit.executors.failures import failure
from toolkit.plan.steps import File, Upload

_LOOK = """
for f; do
  if [ -f "$f" ]; then printf '%s %s\\n' "$(sha256sum <"$f" | cut -c1-64)" "$(stat -c %a "$f")"
  else echo absent; fi
done"""


def upload(step: Upload, context: Context, advance: Advance) -> Verdict:
    """Write the files that differ in content or mode from what is there."""
    runner = context.runners[step.host]
    wanted = [(file, _text(file, context).encode()) for file in step.files]
    look = script(_LOOK, *(file.path for file in step.files))
    seen = runner.run(look, 60)
    if not seen.ok:
        raise failure(seen, runner)
    present = seen.stdout.splitlines()
    changed = [
        (file, data)
        for (file, data), now in zip(wanted, present, strict=True)
        if now.split() != [_sha256(data), f"{file.mode:o}"]
    ]
    if not changed:
        return Verdict("skipped")
    # As a script on standard input: contents never stand on a command line.
    text = "set -e\numask 077\n" + "".join(_write(file, data) for file, data in changed)
    put = command("sh", stdin=text.encode())
    result = runner.run(put, 120)
    if not result.ok:
        raise failure(result, runner, paths=[file.path for file, _ in changed])
    return Verdict("ok", f"{len(changed)} of {len(wanted)} files")


def _text(file: File, context: Context) -> str:
    parts = (p.resolve(context.outputs) if isinstance(p, Ref) else p for p in file.content)
    return "".join(p for p in parts if p is not None)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(file: File, data: bytes) -> str:
    path, packed = shlex.quote(file.path), base64.encodebytes(data).decode()
    new = shlex.quote(f"{file.path}.toolkit-new")
    put = (
        f"cat {new} >{path}; rm {new}; chmod {file.mode:o} {path}" if file.in_place else f"mv -f {new} {path}"
    )
    return f"base64 -d >{new} <<'END'\n{packed}END\nchmod {file.mode:o} {new}\n{put}\n"
