"""Executors of SendImage, SendCode and Fetch: bytes in streams, never whole in memory."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from dataclasses import replace
from pathlib import Path

from toolkit.core.command import Command, command, script
from toolkit.core.image import image_facts
from toolkit.core.json_text import json_list
from toolkit.core.names import JOBS, image_names
from toolkit.core.result import Result
from toolkit.core.room import size
from toolkit.effects.runner import ContainerRunner, Runner
from toolkit.effects.tree import tar_stream, total_bytes
from toolkit.errors import ImageError, ToolkitError
from toolkit.executors.context import Advance, Context, Verdict, counted
from toolkit.executors.failures import failure, room_fix, rooms_of
from toolkit.plan.steps import Fetch, PullImage, SendCode, SendImage

# `docker load` keeps the archive and the unpacked layers side by side: 2.0 times their size, as measured. A
# little less, lest one be refused that would just have fitted.
_LOAD_FACTOR = 1.9


def send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    """Load the image into the host's engine, less the layers it has, and verify what came of it."""
    runner = context.runners[step.host]
    archive = context.archive(step.reference, step.identity, advance)
    info = command("docker", "info", "--format", "{{json .DriverStatus}}")
    store = _ask(runner, info).stdout
    containerd = "io.containerd.snapshotter" in store
    # The containerd store refuses an archive that leaves layers out; see docs/architecture.md.
    first = 0 if containerd else archive.missing(_layer_chains(runner))
    total = archive.size(first)
    _require_room(runner, step, total, containerd)
    load = command("docker", "load", "--quiet")
    chunks = counted(archive.stream(first), lambda done: advance(done, total))
    said: list[bytes] = []
    result = runner.stream(load, said.append, chunks)
    output = b"".join(said).decode(errors="replace")
    if not result.ok:
        raise failure(replace(result, stdout=output), runner)
    _verify(runner, step, output.strip().rpartition(" ")[2])
    return Verdict("ok", f"{size(total)}, {len(archive.layers) - first} of {len(archive.layers)} layers")


def _ask(runner: Runner, question: Command) -> Result:
    answer = runner.run(question, 60)
    if not answer.ok:
        raise failure(answer, runner)
    return answer


def _require_room(runner: Runner, step: SendImage, total: int, containerd: bool) -> None:
    rooms = rooms_of(runner)
    if not rooms:
        return
    room = rooms[0] if containerd else rooms[-1]
    if room.free < _LOAD_FACTOR * total:
        what = f"no room for it in {room.path}: {room.line()}; while it is loaded it takes "
        fix = f"{room_fix(step.host, room.mount)}; or load it there by hand"
        raise ImageError(f"{what}{size(2 * total)}", fix, step.host)


def _verify(runner: Runner, step: SendImage, loaded: str) -> None:
    """Give the loaded image its identity's name, once what the host holds has proved to be that identity."""
    inspect = command("docker", "image", "inspect", loaded)
    found = json_list(_ask(runner, inspect).stdout)
    image = image_facts(found[0])
    if image.identity != step.identity:
        raise ImageError("what arrived is not what was sent", "run the command again", step.host)
    names = image_names(step.identity, step.reference)
    tag = script('id=$1; shift; for name; do docker tag "$id" "$name" || exit; done', image.id, *names)
    _ask(runner, tag)


_PULL = """
before=$(docker image inspect --format '{{.Id}}' "$1" 2>/dev/null)
docker pull --quiet "$1" >&2 || exit
after=$(docker image inspect --format '{{.Id}}' "$1") || exit
[ "$before" = "$after" ] || echo pulled
"""


def pull_image(step: PullImage, context: Context, advance: Advance) -> Verdict:
    """Let the host pull the image; skipped when its name means the same image as before."""
    said: list[bytes] = []
    runner = context.runners[step.host]
    # As a stream, which has no time limit: how long a pull takes is between the host and its registry.
    result = runner.stream(script(_PULL, step.reference), said.append)
    if not result.ok:
        fix = f"on {step.host}: docker pull {step.reference}"
        raise failure(result, runner, fix, known=step.failures)
    return Verdict("ok" if b"pulled" in b"".join(said) else "skipped")


def _layer_chains(runner: Runner) -> list[tuple[str, ...]]:
    ask = script(
        "ids=$(docker images --quiet --all --no-trunc | sort -u)\n"
        '[ -z "$ids" ] || docker image inspect --format "{{json .RootFS.Layers}}" $ids'
    )
    lines = _ask(runner, ask).stdout.splitlines()
    return [tuple(layers) for line in lines for layers in [json_list(line)] if layers]


def send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    """Unpack the job's folder, job file and code together, in the host's container."""
    runner = ContainerRunner(context.runners[step.host], step.container)
    source = Path(step.source) if step.source else None
    total = total_bytes(source, step.paths) if source else 0
    unpack = script(
        'umask 022; mkdir -p "$1" && tar -x --no-same-owner -C "$1" && touch "$1/.sent"', step.target
    )
    chunks = counted(
        tar_stream(source, step.paths, {"job.json": step.job, "record.json": step.record}),
        lambda done: advance(done, total),
    )
    result = runner.stream(unpack, lambda data: None, chunks)
    if not result.ok:
        raise failure(result, runner, paths=[step.target])
    return Verdict("ok", size(total))


# Everything but the snapshot itself: logs, records, and what the job wrote after its code had come.
# job.json stays: it may hold the variables that the person gave, and some of those are secrets.
_COLLECT = r"""
cd "$1" || exit 1
for job in */; do
  [ -e "$job.sent" ] || continue
  find "$job" -name __pycache__ -prune -o -type f ! -name job.json ! -name .sent \
    \( ! -path "${job}code/*" -o -newer "$job.sent" \) -print0
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
    return Verdict("ok", f"{count} files in {step.into}")


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
