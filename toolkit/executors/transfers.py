"""Executors of SendImage, SendCode and Fetch: bytes in streams, never whole in memory."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from pathlib import Path

from toolkit.core.command import Command, command, script
from toolkit.core.image import image_facts
from toolkit.core.json_text import json_list
from toolkit.core.names import JOBS, identity_reference
from toolkit.effects.runner import ContainerRunner, Runner
from toolkit.effects.tree import tar_stream, total_bytes
from toolkit.errors import ImageError, ToolkitError
from toolkit.executors.context import Advance, Context, Verdict, counted, failed, reason, require
from toolkit.plan.steps import Fetch, PullImage, SendCode, SendImage


def send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    runner = context.runners[step.host]
    archive = context.archive(step.reference, step.identity, advance)
    info = command("docker", "info", "--format", "{{json .DriverStatus}}")
    store = require(runner.run(info, 60), info, step.host).stdout
    first = 0
    if "io.containerd.snapshotter" not in store:
        # The containerd store refuses an archive that leaves layers out; see docs/architecture.md.
        first = archive.missing(_layer_chains(runner, step.host))
    total = archive.size(first)
    load = command("docker", "load", "--quiet")
    chunks = counted(archive.stream(first), lambda done: advance(done, total))
    said: list[bytes] = []
    result = runner.stream(load, said.append, chunks)
    if not result.ok:
        raise ImageError(f"docker load: {reason(result)}", "is the disk full? docker system df", step.host)
    loaded = b"".join(said).decode(errors="replace").strip().rpartition(" ")[2]
    _verify(runner, step, loaded)
    return Verdict(
        "ok", f"{total / 1e6:.0f} MB, {len(archive.layers) - first} of {len(archive.layers)} layers"
    )


def _verify(runner: Runner, step: SendImage, loaded: str) -> None:
    """Give the loaded image its identity's name, once what the host holds has proved to be that identity."""
    inspect = command("docker", "image", "inspect", loaded)
    found = json_list(require(runner.run(inspect, 60), inspect, step.host).stdout)
    image = image_facts(found[0])
    if image.identity != step.identity:
        raise ImageError("what arrived is not what was sent", "run the command again", step.host)
    # Under the name of the hosts file too, unless that name is a digest, which nobody can give.
    names = (identity_reference(step.identity), *(() if "@" in step.reference else (step.reference,)))
    tag = script('id=$1; shift; for name; do docker tag "$id" "$name" || exit; done', image.id, *names)
    require(runner.run(tag, 60), tag, step.host)


_PULL = """
before=$(docker image inspect --format '{{.Id}}' "$1" 2>/dev/null)
docker pull --quiet "$1" >&2 || exit
after=$(docker image inspect --format '{{.Id}}' "$1") || exit
[ "$before" = "$after" ] || echo pulled
"""


def pull_image(step: PullImage, context: Context, advance: Advance) -> Verdict:
    said: list[bytes] = []
    # As a stream, which has no time limit: how long a pull takes is between the host and its registry.
    result = context.runners[step.host].stream(script(_PULL, step.reference), said.append)
    if not result.ok:
        fix = f"on {step.host}: docker pull {step.reference}"
        raise failed(step.title, result, step.failures, fix, step.host)
    return Verdict("ok" if b"pulled" in b"".join(said) else "skipped")


def _layer_chains(runner: Runner, host: str) -> list[tuple[str, ...]]:
    ask = script(
        "ids=$(docker images --quiet --all --no-trunc | sort -u)\n"
        '[ -z "$ids" ] || docker image inspect --format "{{json .RootFS.Layers}}" $ids'
    )
    lines = require(runner.run(ask, 60), ask, host).stdout.splitlines()
    return [tuple(layers) for line in lines for layers in [json_list(line)] if layers]


def send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
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
        raise ToolkitError(f"{step.title}: {reason(result)}", "is the disk full?", step.host)
    return Verdict("ok", f"{total / 1e6:.1f} MB")


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

        result = context.runners[step.host].stream(collect, keep)
        require(result, collect, step.host, "to go on without them: toolkit down --no-save")
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
