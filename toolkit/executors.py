"""One executor per kind of step; each returns "ok" when it changed something and "skipped" when not."""

from __future__ import annotations

import base64
import hashlib
import io
import shlex
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.core.command import Command, Ref, command, script
from toolkit.core.image import image_facts
from toolkit.core.json_text import json_list
from toolkit.core.names import JOBS, identity_reference
from toolkit.core.report import Status
from toolkit.core.result import Result
from toolkit.effects.engine import Engine
from toolkit.effects.image_archive import ImageArchive
from toolkit.effects.runner import ContainerRunner, Runner
from toolkit.effects.tree import tar_stream, total_bytes
from toolkit.errors import CommandFailed, ImageError, ToolkitError
from toolkit.plan.steps import Fetch, File, Run, SendCode, SendImage, Upload, WaitFor

Advance = Callable[[int, int], None]


@dataclass(frozen=True)
class Verdict:
    """What an executor made of its step; ``detail`` for people, ``output`` for who asked for it."""

    status: Status
    detail: str = ""
    output: str = ""


# Statuses of our own wrapper scripts, out of the range that docker and common programs use.
_SKIPPED, _DEAD, _LATE = 213, 214, 215


@dataclass
class Context:
    """What the executors of one plan share: runners, saved outputs, the image saved once for all hosts."""

    runners: Mapping[str, Runner]
    outputs: dict[tuple[str, str], str] = field(default_factory=dict)
    _archives: dict[str, ImageArchive] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def archive(self, reference: str, identity: str, advance: Advance) -> ImageArchive:
        """Return the image of this machine's engine as an archive; saved once, whoever asks first.

        Raises:
            ImageError: the engine has another image under this name than the plan was made for.
        """
        with self._lock:
            if identity not in self._archives:
                engine = Engine.connect()
                image = engine.image(reference)
                if image is None or image.identity != identity:
                    what = f"{reference} is not the image that the plan was made for"
                    raise ImageError(what, "run the command again")
                # By Id: the tag may be moved while the image is being saved.
                chunks = _counted(engine.save(image.id), lambda done: advance(0, 0))
                self._archives[identity] = ImageArchive(chunks)
            return self._archives[identity]

    def close(self) -> None:
        for archive in self._archives.values():
            archive.close()


def _counted(chunks: Iterable[bytes], report: Callable[[int], None]) -> Iterator[bytes]:
    done = 0
    for chunk in chunks:
        yield chunk
        done += len(chunk)
        report(done)


def _require(result: Result, subject: Command, host: str, fix: str = "") -> Result:
    if not result.ok:
        raise CommandFailed(subject.line(), result.status, result.output, host, fix)
    return result


def _run(step: Run, context: Context, advance: Advance) -> Verdict:
    runner = context.runners[step.host]
    subject = step.command.resolved(context.outputs)
    whole = subject
    if step.unless is not None or step.reads is not None:
        whole = _guarded(subject, step.unless and step.unless.resolved(context.outputs), step.reads)
    result = runner.run(whole, step.timeout)
    skipped = step.unless is not None and result.status == _SKIPPED
    if result.status != 0 and not skipped:
        reason = _reason(result)
        raise ToolkitError(
            f"{step.title}: {reason}", step.fix or f"look at it on {step.host}: {subject.line()}"
        )
    output = result.stdout.strip() if step.saves else ""
    if step.saves:
        context.outputs[step.host, step.saves] = output
    return Verdict("skipped" if skipped else "ok", output=output)


def _reason(result: Result) -> str:
    lines = [line for line in result.output.splitlines() if line.strip()]
    return " | ".join(lines[-4:]) if lines else f"ended with status {result.status} and said nothing"


def _guarded(subject: Command, unless: Command | None, reads: Command | None) -> Command:
    """Return check, action and read as one script: one round trip, and no time between check and action."""
    into = " >&2" if reads else ""
    text = f"{subject.shell()}{into}; status=$?"
    if unless is not None:
        # Standard input is the action's; and a program that ends with our own status was not skipped.
        check = f"{unless.shell()} </dev/null >/dev/null 2>&1"
        own = f"[ $status -ne {_SKIPPED} ] || status=1"
        text = f"if {check}; then status={_SKIPPED}; else {text}; {own}; fi"
    if reads is not None:
        text += f"\ncase $status in 0|{_SKIPPED}) {reads.shell()} </dev/null || exit ;; esac"
    return Command(("sh", "-c", f"{text}\nexit $status"), subject.stdin)


def _wait(step: WaitFor, context: Context, advance: Advance) -> Verdict:
    # One round trip: the host itself looks ten times a second.
    text = f"""
end=$(( $(date +%s) + {step.deadline:.0f} )); first=yes
while :; do
  if {step.ready.shell()} >/dev/null 2>&1; then [ "$first" ] && exit {_SKIPPED}; exit 0; fi
  if ! {step.alive.shell()} >/dev/null 2>&1; then {step.explain.shell()}; exit {_DEAD}; fi
  if [ "$(date +%s)" -ge "$end" ]; then {step.explain.shell()}; exit {_LATE}; fi
  first=; sleep 0.1
done"""
    result = context.runners[step.host].run(script(text), step.deadline + 15)
    if result.status == _DEAD:
        raise ToolkitError(f"the container has died: {_reason(result)}", step.fix, step.host)
    if result.status == _LATE:
        what = f"not ready after {step.deadline:.0f} s; last words: {_reason(result)}"
        raise ToolkitError(what, step.fix, step.host)
    if result.status not in (0, _SKIPPED):
        raise ToolkitError(f"{step.title}: {_reason(result)}", step.fix, step.host)
    return Verdict("skipped" if result.status == _SKIPPED else "ok")


_LOOK = """
for f; do
  if [ -f "$f" ]; then printf '%s %s\\n' "$(sha256sum <"$f" | cut -c1-64)" "$(stat -c %a "$f")"
  else echo absent; fi
done"""


def _upload(step: Upload, context: Context, advance: Advance) -> Verdict:
    runner = context.runners[step.host]
    wanted = [(file, _text(file, context).encode()) for file in step.files]
    look = script(_LOOK, *(file.path for file in step.files))
    present = _require(runner.run(look, 60), look, step.host).stdout.splitlines()
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
        raise ToolkitError(f"{step.title}: {_reason(result)}", "is the disk full?", step.host)
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


def _send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    runner = context.runners[step.host]
    archive = context.archive(step.reference, step.identity, advance)
    info = command("docker", "info", "--format", "{{json .DriverStatus}}")
    store = _require(runner.run(info, 60), info, step.host).stdout
    first = 0
    if "io.containerd.snapshotter" not in store:
        # The containerd store refuses an archive that leaves layers out; see docs/architecture.md.
        first = archive.missing(_layer_chains(runner, step.host))
    total = archive.size(first)
    load = command("docker", "load", "--quiet")
    chunks = _counted(archive.stream(first), lambda done: advance(done, total))
    said: list[bytes] = []
    result = runner.stream(load, said.append, chunks)
    if not result.ok:
        raise ImageError(f"docker load: {_reason(result)}", "is the disk full? docker system df", step.host)
    loaded = b"".join(said).decode(errors="replace").strip().rpartition(" ")[2]
    _verify(runner, step, loaded)
    return Verdict(
        "ok", f"{total / 1e6:.0f} MB, {len(archive.layers) - first} of {len(archive.layers)} layers"
    )


def _verify(runner: Runner, step: SendImage, loaded: str) -> None:
    """Give the loaded image its identity's name, once what the host holds has proved to be that identity."""
    inspect = command("docker", "image", "inspect", loaded)
    found = json_list(_require(runner.run(inspect, 60), inspect, step.host).stdout)
    image = image_facts(found[0])
    if image.identity != step.identity:
        raise ImageError("what arrived is not what was sent", "run the command again", step.host)
    tag = script(
        'docker tag "$1" "$2" && docker tag "$1" "$3"',
        image.id,
        identity_reference(step.identity),
        step.reference,
    )
    _require(runner.run(tag, 60), tag, step.host)


def _layer_chains(runner: Runner, host: str) -> list[tuple[str, ...]]:
    ask = script(
        "ids=$(docker images --quiet --all --no-trunc | sort -u)\n"
        '[ -z "$ids" ] || docker image inspect --format "{{json .RootFS.Layers}}" $ids'
    )
    lines = _require(runner.run(ask, 60), ask, host).stdout.splitlines()
    return [tuple(layers) for line in lines for layers in [json_list(line)] if layers]


def _send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    runner = ContainerRunner(context.runners[step.host], step.container)
    source = Path(step.source) if step.source else None
    total = total_bytes(source, step.paths) if source else 0
    unpack = script(
        'umask 022; mkdir -p "$1" && tar -x --no-same-owner -C "$1" && touch "$1/.sent"', step.target
    )
    chunks = _counted(
        tar_stream(source, step.paths, {"job.json": step.job, "record.json": step.record}),
        lambda done: advance(done, total),
    )
    result = runner.stream(unpack, lambda data: None, chunks)
    if not result.ok:
        raise ToolkitError(f"{step.title}: {_reason(result)}", "is the disk full?", step.host)
    return Verdict("ok", f"{total / 1e6:.1f} MB")


# Everything but the snapshot itself: logs, records, and what the job wrote after its code had come.
# job.json stays: it holds the variables that the person gave, and some of those are secrets.
_COLLECT = r"""
cd "$1" || exit 1
for job in */; do
  [ -e "$job.sent" ] || continue
  find "$job" -name __pycache__ -prune -o -type f ! -name job.json ! -name .sent \
    \( ! -path "${job}code/*" -o -newer "$job.sent" \) -print0
done | tar -c --null --no-recursion -T -
"""


def _fetch(step: Fetch, context: Context, advance: Advance) -> Verdict:
    packed = io.BytesIO()
    collect = script(_COLLECT, str(JOBS)).within(*step.inside)
    result = context.runners[step.host].stream(collect, lambda data: _keep(packed, data))
    _require(result, collect, step.host, "to go on without them: toolkit down --no-save")
    packed.seek(0)
    count = 0
    with tarfile.open(fileobj=packed) as tar:
        for member in tar:
            job = Path(member.name).parts[0] if member.name else ""
            if member.isfile() and ".." not in Path(member.name).parts and not member.name.startswith("/"):
                member.name = str(Path(job) / step.host / Path(*Path(member.name).parts[1:]))
                tar.extract(member, step.into, set_attrs=False)
                count += 1
    if not count:
        return Verdict("skipped", "no jobs")
    return Verdict("ok", f"{count} files in {step.into}")


def _keep(into: io.BytesIO, data: bytes) -> None:
    into.write(data)


EXECUTORS: dict[type, Any] = {
    Run: _run,
    Upload: _upload,
    WaitFor: _wait,
    SendImage: _send_image,
    SendCode: _send_code,
    Fetch: _fetch,
}
