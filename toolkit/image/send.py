"""Executors of SendImage and PullImage: missing layers come from other hosts or from this machine."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from toolkit.core.answers import Tail, answer_of, json_list
from toolkit.core.command import TIMED_OUT, Command, Result, command, script
from toolkit.core.disk_space import size
from toolkit.core.engines import DOCKER, PODMAN
from toolkit.core.image import image_facts, registry_of
from toolkit.core.printable import counted as number_of
from toolkit.errors import ImageError, ToolkitError, Unreachable
from toolkit.image.archive import ImagePayload, make_archive, read_archive
from toolkit.image.layer_reader import Unreadable
from toolkit.image.layers import (
    Group,
    Holdings,
    ImageLayers,
    groups_of,
    held,
    holdings_command,
    lacking,
    parse_holdings,
    room_needed,
)
from toolkit.image.source import ImageSource
from toolkit.plan.context import Advance, Context, Verdict, counted, failure, room_fix
from toolkit.plan.steps import PullImage, SendImage
from toolkit.protocol.engine import ImageInspect
from toolkit.protocol.names import image_names, part_name
from toolkit.transfer.host import Declined, load_program, relay_program
from toolkit.transfer.relay import GIVEN_UP_AFTER_S, LEAST, Relay

# Slightly less than the computed space, so that an image that barely fits is not refused.
_LEAST_ROOM = 0.95
_AGAIN = "run the same command again"
_RESTART = {
    DOCKER: "sudo systemctl restart docker  # then run the same command again",
    PODMAN: "podman info  # if this command hangs, check the disk of ~/.local/share/containers; "
    "then run the same command again",
}
_ASK_S = 120.0  # seconds for an answer of a host's engine
_PULLED_BYTES = 64  # more than the last line of _PULL
_LOADED_BYTES = 1 << 16  # of the output of `docker load`
# The second line is printed only for a complete image: `docker images` omits an image of the containerd store
# with missing blobs, which `docker image inspect` reports.
_LOOK = 'docker image inspect "$1" && docker images --quiet --no-trunc "$1"'

# Arguments: current name, names to add, "--", names to remove.
_NAME = """
id=$1; shift
while [ "$1" != -- ]; do docker tag "$id" "$1" || exit; shift; done
shift; [ $# = 0 ] || docker rmi "$@" >/dev/null 2>&1
exit 0
"""

# Without a terminal, `docker pull` prints nothing while it downloads a layer. So the script prints an empty
# line when the host has received another MiB. -9: another signal is lost if it reaches the forked process
# before that process has become `sleep`.
_PULL = """
before=$(docker image inspect --format '{{.Id}}' "$1" 2>/dev/null)
received() { awk 'NR > 2 { sub(/.*:/, ""); n += $1 } END { print int(n / 1048576) }' /proc/net/dev; }
last=$(received)
( trap 'kill -9 $!; exit' TERM
while sleep 20 >/dev/null & wait $! && kill -0 $$; do
    now=$(received); [ "$now" = "$last" ] || { last=$now; echo; }
done ) 2>/dev/null & beat=$!
docker pull "$1"; status=$?
kill $beat
[ $status = 0 ] || exit $status
after=$(docker image inspect --format '{{.Id}}' "$1") || exit
[ "$before" = "$after" ] || echo pulled
"""


def send_image(step: SendImage, context: Context, advance: Advance) -> Verdict:
    """Load the image into the host's engine, without the layers it has, and verify the result.

    Each group of layers is an image of its own under a temporary name. These images are removed when the
    transfer has succeeded or failed. If the connection breaks, they stay, and the next attempt reuses them.
    """
    source = _source(step, context)
    shared = _shipment(step, context, source, source.parts) if source.parts and step.address else None
    try:
        return Sending(step, context, source, shared, advance).run()
    finally:
        if shared:
            shared.relay.absent(step.host)


def _source(step: SendImage, context: Context) -> ImageSource:
    """Return the image of the local engine; it is opened once, by the first caller.

    Raises:
        MissingTool: no engine answers.
        ImageError: under this name the engine has a different image than when the plan was made.
    """
    key = (ImageSource, step.identity)
    return context.share(
        key, lambda: ImageSource.open(step.reference, step.identity, step.image, context.engine)
    )


def _shipment(step: SendImage, context: Context, source: ImageSource, parts: ImageLayers) -> Shipment:
    def make() -> Shipment:
        alike = [s for s in context.steps if isinstance(s, SendImage) and s.identity == step.identity]
        payload = ImagePayload(source, parts, step.identity, secrets.token_hex(2))
        return Shipment(Relay(payload, {s.host for s in alike} & set(context.runners)), payload)

    return context.share((Relay, step.identity), make)


def pull_image(step: PullImage, context: Context, advance: Advance) -> Verdict:
    """Run `docker pull` on the host; skipped if the name refers to the same image afterwards."""
    output = Tail(_PULLED_BYTES)
    runner = context.runners[step.host]
    # The duration of a pull depends on the host and its registry.
    result = runner.stream(script(_PULL, step.reference), output.take, silence=GIVEN_UP_AFTER_S)
    fix = f"on {step.host}: {context.engine} pull {step.reference}"
    if result.status == TIMED_OUT:
        registry = registry_of(step.reference)
        what = (
            f"the pull from the registry {registry} made no progress for {GIVEN_UP_AFTER_S / 60:.0f} minutes"
        )
        raise ImageError(what, fix, step.host)
    if not result.ok:
        raise failure(result, runner, fix, known=step.failures)
    return Verdict("ok" if output.text.rpartition("\n")[2] == "pulled" else "skipped")


@dataclass(frozen=True)
class Shipment:
    """Transfer of an image to all hosts of a plan, and its payload."""

    relay: Relay
    payload: ImagePayload

    def close(self) -> None:
        self.relay.close()


@dataclass(frozen=True)
class _Arrived:
    """The received image: temporary name, content digest, and whether it is complete in the engine."""

    name: str
    identity: str
    whole: bool


class Sending:
    """Transfer of one image to one host."""

    def __init__(
        self,
        step: SendImage,
        context: Context,
        source: ImageSource,
        shared: Shipment | None,
        advance: Advance,
    ) -> None:
        self.step, self.runner, self.source, self.shared = step, context.runners[step.host], source, shared
        self.engine = context.engine
        self.restart = f"on {step.host}: {_RESTART[context.engine]}"
        self.advance = advance
        self.token = secrets.token_hex(2)
        self.made: dict[str, None] = {}
        self.layers = self.sent = self.relayed = self.total = self.milliseconds = 0
        self.way = ""

    def run(self) -> Verdict:
        holdings = self._holdings()
        earlier = holdings.parts_of(self.step.identity)
        try:
            how = self._bring(holdings, earlier)
        except Unreachable:
            raise
        except BaseException:
            with contextlib.suppress(ToolkitError, OSError):
                self._ask(script(_NAME, "", "--", *self.made))
            raise
        amounts = (
            ("bytes", self.sent),
            ("from_here", self.sent - self.relayed),
            ("layers", self.layers),
            ("of", len(self.source.image.diff_ids)),
            *((("transfer_ms", self.milliseconds),) if self.milliseconds else ()),
        )
        return Verdict("ok", f"{size(self.sent)}, {how}", amounts=amounts)

    def _bring(self, holdings: Holdings, earlier: Sequence[str]) -> str:
        """Transfer the image, assign its names, and return a description of the transfer."""
        if parts := self.source.parts:
            try:
                self._name(self._in_groups(parts, holdings), earlier)
                went_on = "; resumed an earlier attempt" if earlier else ""
                return f"{self.layers} of {number_of(len(parts.layers), 'layer')}{self.way}{went_on}"
            except Unreadable as error:
                self.source.give_up(error.what)
        self._name(self._whole(holdings), earlier)
        why = self.source.why_whole
        return f"as a single archive, because toolkit cannot read the layers of the image one by one: {why}"

    # Layer by layer

    def _in_groups(self, parts: ImageLayers, holdings: Holdings) -> _Arrived:
        sizes = [layer.size for layer in parts.layers]
        first = held(parts.diff_ids, holdings.chains)
        # If the host has all layers, the image config is still missing.
        groups = groups_of(sizes, first) or (Group(first, first),)
        sent = [parts.size(group) for group in groups]
        self._require_room(holdings, room_needed(holdings.store, sent))
        self.total = sum(sent)
        name = self._from_others(parts, first) if self.shared and self.total >= LEAST else ""
        if not name:
            # Layers that arrived before the failure are already there.
            first = held(parts.diff_ids, self._holdings().chains) if self.made else first
            for group in groups_of(sizes, first) or (Group(first, first),):
                name = self._load(parts, group)
        arrived = self._look(name)
        if arrived.whole or not first:
            return arrived
        # The host unpacked the layers below from other blobs (for example compressed ones), and also needs
        # ours.
        for group in _below(sizes, 0, first):
            self.total += parts.size(group)
            self._load(parts, group)
        return self._look(self._load(parts, Group(len(sizes), len(sizes))))

    def _from_others(self, parts: ImageLayers, first: int) -> str:
        """Join the transfer to all hosts; return the temporary name, empty if the image did not arrive."""
        assert self.shared is not None
        relay, payload = self.shared.relay, self.shared.payload
        program = relay_program(self.step.cluster, self.step.identity, self.step.address)
        brought = relay.bring(
            self.runner,
            program,
            first,
            self.step.address,
            self.step.mbit,
            self.advance,
            responds=lambda: self.runner.run(command("docker", "version"), _ASK_S).status != TIMED_OUT,
            fix=self.restart,
        )
        if isinstance(brought, Declined):
            self.way = f", from your machine, not from other hosts: {brought.reason}"
            return ""
        # Including refused archives: the containerd store keeps their names.
        self.made |= dict.fromkeys(one.name for one in payload.archives if one.group.start >= first)
        loaded = [one for one in payload.archives if one in brought.segments]
        self.sent += brought.wire
        self.relayed += max(0, brought.wire - brought.fed)
        self.layers += sum(one.group.stop - one.group.start for one in loaded)
        self.milliseconds = round(1000 * brought.seconds)
        link = f" of {self.step.mbit:.0f}" if self.step.mbit else ""
        mbit = 8 * brought.wire / brought.seconds / 1e6 if brought.seconds else 0.0
        speed = f", {mbit:.0f}{link} Mb/s" if mbit else ""
        self.way = "".join(
            (
                f", from {brought.giver}" if brought.giver else "",
                speed,
                f" ({brought.note})" if brought.note else "",
            )
        )
        if not brought.refused:
            return loaded[-1].name
        if lacking(brought.refused, parts.diff_ids) is None:
            result = Result(1, brought.refused, "", 0)
            raise failure(result, self.runner, _AGAIN)
        return ""

    def _load(self, parts: ImageLayers, group: Group, again: bool = True) -> str:
        """Load a group. If layers below it are missing, load those first and then the group again."""
        one = make_archive(parts, group, self.step.identity, self.token)
        self.made[one.name] = None
        with contextlib.closing(read_archive(self.source, one)) as pieces:  # type: ignore[type-var]
            result, output = self._stream(pieces)
        if result.ok:
            self.layers += group.stop - group.start
            return one.name
        first = lacking(f"{output}\n{result.stderr}", parts.diff_ids[: group.start])
        if first is None or not again:
            raise failure(replace(result, stdout=output), self.runner, _AGAIN)
        sizes = [layer.size for layer in parts.layers]
        for earlier in _below(sizes, first, group.start):
            self.total += parts.size(earlier)
            self._load(parts, earlier, again=False)
        self.total += one.size
        return self._load(parts, group, again=False)

    # As a single archive

    def _whole(self, holdings: Holdings) -> _Arrived:
        self.total = self.source.image.size
        self._require_room(holdings, 2 * self.total)
        with contextlib.closing(self.source.whole()) as tap:
            result, output = self._stream(tap)
        if not result.ok:
            raise failure(replace(result, stdout=output), self.runner, _AGAIN)
        self.layers = len(self.source.image.diff_ids)
        name = part_name(self.step.identity, self.token, self.layers)
        self.made[name] = None
        # The archive has no image name; the last word of the output is its Id.
        self._ask(script(_NAME, output.strip().rpartition(" ")[2], name, "--"))
        return self._look(name)

    # Common helpers

    def _stream(self, chunks: Iterable[bytes]) -> tuple[Result, str]:
        before = self.sent

        def report(done: int) -> None:
            self.sent = before + done
            self.advance(self.sent, max(self.total, self.sent))

        output = Tail(_LOADED_BYTES)
        load = load_program(self.step.cluster, self.step.identity)
        result = self.runner.stream(load, output.take, counted(chunks, report), GIVEN_UP_AFTER_S)
        if result.status == TIMED_OUT:
            what = f"the container engine has stored nothing for {GIVEN_UP_AFTER_S / 60:.0f} minutes"
            raise ImageError(what, self.restart, self.step.host)
        return result, output.text

    def _ask(self, question: Command) -> str:
        return self._answer(question).stdout

    def _answer(self, question: Command) -> Result:
        answer = self.runner.run(question, _ASK_S)
        if not answer.ok:
            raise failure(answer, self.runner)
        return answer

    def _holdings(self) -> Holdings:
        with answer_of(self.step.host, "the image list"):
            nonce = secrets.token_hex(8)
            return parse_holdings(self._answer(holdings_command(nonce)).raw, nonce)

    def _require_room(self, holdings: Holdings, needed: int) -> None:
        room, host = holdings.room, self.step.host
        if room is None or room.free >= _LEAST_ROOM * needed:
            return
        what = f"{room.path} has too little space for the image: {room.line()}; loading needs {size(needed)}"
        raise ImageError(what, room_fix(host, room.mount, self.engine), host)

    def _look(self, name: str) -> _Arrived:
        output = self._ask(script(_LOOK, name))
        with answer_of(self.step.host, f"the description of image {name}"):
            found = json_list(ImageInspect, output)
        identity = image_facts(found[0]).identity if found else ""
        return _Arrived(name, identity, output.rstrip().rpartition("\n")[2].startswith("sha256:"))

    def _name(self, arrived: _Arrived, earlier: Sequence[str]) -> None:
        """Verify the image on the host, assign its names and remove the temporary ones."""
        if arrived.identity != self.step.identity:
            raise ImageError("the received image differs from the sent image", _AGAIN, self.step.host)
        if not arrived.whole:
            what = "the container engine did not keep all layers of the image"
            raise ImageError(what, self.restart, self.step.host)
        names = image_names(self.step.identity, self.step.reference)
        self._ask(script(_NAME, arrived.name, *names, "--", *dict.fromkeys((*self.made, *earlier))))


def _below(sizes: Sequence[int], first: int, stop: int) -> Iterator[Group]:
    """Yield the groups of the layers from ``first`` to ``stop``."""
    for group in groups_of(sizes, first):
        if group.start < stop:
            yield Group(group.start, min(group.stop, stop))
