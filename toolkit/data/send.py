"""Executors of SendData and RemoveData: missing shards come from other hosts or from this machine."""

from __future__ import annotations

import base64
import json
import threading
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from toolkit.core.answers import answer_of
from toolkit.core.causes import is_denied
from toolkit.core.command import TIMED_OUT, Command, Result, command, quoted, script
from toolkit.core.disk_space import size
from toolkit.core.printable import counted
from toolkit.core.runner import Runner
from toolkit.data.source import DataPayload, Need
from toolkit.errors import NotReady, ToolkitError
from toolkit.plan.context import Advance, Context, Verdict, failure, room_fix, rooms_of
from toolkit.plan.steps import RemoveData, SendData
from toolkit.protocol.decode import DecodeError, decode, load_json
from toolkit.protocol.relay import DataDone, DataSeen, NoProgram
from toolkit.protocol.shards import Shard
from toolkit.transfer.host import Brought, Declined, Obstacle, data_program, data_relay_program
from toolkit.transfer.relay import Relay

T = TypeVar("T")

_AGAIN = "run the same command again  # sends only the missing data"
# Seconds to scan a folder: a million files on a busy disk take long.
_LOOK = 600.0
# Prints a line if the account records files. Also removes the parent folders, which are empty after the last
# data set.
_DROP_ACCOUNT = """
[ ! -e "${1:?}/journal" ] || echo journal
rm -f "$1"/* && rmdir "$1" "${1%/*}" "${1%/*/*}" 2>/dev/null
"""


class _Transfers:
    """Transfers of one data set: one to all hosts, and one for each host that joins too late."""

    def __init__(self, step: SendData, hosts: Collection[str]) -> None:
        self._step = step
        self._lock = threading.Lock()
        self.first = self._make(hosts)
        self._all = [self.first]

    def _make(self, hosts: Collection[str]) -> Relay:
        return Relay(DataPayload(Path(self._step.source), self._step.content), hosts)

    def alone(self, host: str) -> Relay:
        with self._lock:
            self._all.append(self._make((host,)))
            return self._all[-1]

    def close(self) -> None:
        for relay in self._all:
            relay.close()


def send_data(step: SendData, context: Context, advance: Advance) -> Verdict:
    """Send the missing shards and write the completion mark; skipped if the host has the complete set."""

    key = (SendData, step.title, step.source, step.content.identity)

    def same(other: SendData) -> bool:
        return (other.title, other.source, other.content.identity) == key[1:]

    def make() -> _Transfers:
        steps = [one for one in context.steps if isinstance(one, SendData) and same(one)]
        return _Transfers(step, {one.host for one in steps} & set(context.runners))

    transfers = context.share(key, make)
    try:
        return _Sending(step, context, transfers, advance).run()
    finally:
        transfers.first.absent(step.host)


class _Sending:
    """Transfer of one data set to one host."""

    def __init__(self, step: SendData, context: Context, transfers: _Transfers, advance: Advance) -> None:
        self.step, self.transfers, self.advance = step, transfers, advance
        self.runner, self.engine = context.runners[step.host], context.engine
        self.wanted = [shard.name for shard in step.content.shards]

    def run(self) -> Verdict:
        step = self.step
        seen = self._ask(DataSeen, "look", {"wanted": self.wanted})
        if seen.unknown:
            # Without a record of the folder, names, sizes and times decide which shards need not be sent
            # again.
            texts = json.dumps([shard.entries.decode() for shard in step.content.shards]).encode()
            packed = base64.b64encode(zlib.compress(texts, 6)).decode()
            seen = self._ask(DataSeen, "adopt", {"wanted": self.wanted, "entries": packed})
        missing = frozenset(seen.missing)
        if unknown := [number for number in missing if number >= len(self.wanted)]:
            last = f"the last shard of the data set is {len(self.wanted) - 1}"
            what = f"the host reports shard {unknown[0]} as missing, but {last}"
            raise ToolkitError(what, _AGAIN, step.host)
        if not missing and seen.set == step.content.identity:
            return Verdict("skipped")
        self._require_room(seen, [step.content.shards[number] for number in missing])
        brought = self._bring(missing) if missing else None
        mark = {
            "set": step.content.identity,
            "files": step.content.files,
            "bytes": step.content.size,
        }
        done = self._ask(DataDone, "finish", {"wanted": self.wanted, "mark": mark})
        return self._verdict(len(missing), brought, done)

    def _bring(self, missing: frozenset[int]) -> Brought:
        step, advance, need = self.step, self.advance, Need(missing, self.step.path, self.step.account)
        program = data_relay_program(
            step.path, step.account, step.cluster, step.image, step.user, step.address
        )
        relay = self.transfers.first
        brought = relay.bring(self.runner, program, need, step.address, step.mbit, advance)
        if isinstance(brought, Declined) and brought.obstacle is Obstacle.LATE:
            relay = self.transfers.alone(step.host)
            brought = relay.bring(self.runner, program, need, step.address, step.mbit, advance)
        if isinstance(brought, Declined):
            if brought.obstacle is Obstacle.NO_PYTHON:
                raise _no_python(brought.reason, step.host)
            raise self._failure(Result(1, "", brought.reason, 0.0))
        if brought.refused:
            raise self._failure(Result(1, brought.refused, "", 0.0))
        return brought

    def _verdict(self, missing: int, brought: Brought | None, done: DataDone) -> Verdict:
        gone = f"removed {counted(done.gone, 'old file')}" if done.gone else ""
        stay = f"kept {counted(done.stay, 'old file')} that changed on the host" if done.stay else ""
        if brought is None:
            return Verdict("ok", "; ".join(filter(None, (gone, stay))) or "no data was missing")
        speed = 8 * brought.wire / brought.seconds / 1e6 if brought.seconds else 0.0
        link = f" of {self.step.mbit:.0f}" if self.step.mbit else ""
        way = "".join(
            (
                f"{missing} of {counted(len(self.wanted), 'shard')}",
                f", from {brought.giver}" if brought.giver else "",
                f", {speed:.0f}{link} Mb/s" if speed else "",
                f" ({brought.note})" if brought.note else "",
            )
        )
        amounts = (
            ("bytes", brought.wire),
            ("from_here", brought.fed),
            ("shards", missing),
            ("of", len(self.wanted)),
            ("transfer_ms", round(1000 * brought.seconds)),
        )
        detail = "; ".join(filter(None, (f"{size(brought.wire)}, {way}", gone, stay)))
        return Verdict("ok", detail, amounts=amounts)

    def _ask(self, kind: type[T], word: str, order: Mapping[str, object]) -> T:
        step = self.step
        program = data_program(step.path, step.account, step.cluster, step.image, step.user, word)
        return _answer(kind, self.runner, program, order, self._failure)

    def _require_room(self, seen: DataSeen, shards: Collection[Shard]) -> None:
        needed = sum(shard.room for shard in shards)
        files = sum(shard.entries.count(b'["f"') + shard.entries.count(b'["d"') for shard in shards)
        few = 0 <= seen.inodes < files
        if seen.free >= needed and not few:
            return
        step, host = self.step, self.step.host
        room = next((one for one in rooms_of(self.runner, step.path) if one.path == step.path), None)
        where = room.mount if room else step.path
        lacks = counted(files, "inode") if few and seen.free >= needed else size(needed)
        left = room.line() if room else f"{size(seen.free)} free"
        what = f"the free space in {step.path} is too small: {left}; the missing data needs {lacks}"
        fix = (
            f"{room_fix(host, where, self.engine)}; or, under data: in hosts.yaml, "
            "set path: to a folder with more free space"
        )
        raise NotReady(what, fix, host)

    def _failure(self, result: Result) -> ToolkitError:
        return _failure(result, self.runner, self.step.path)


def remove_data(step: RemoveData, context: Context, advance: Advance) -> Verdict:
    """Remove the staged data; skipped if neither the folder nor a record of its files exists."""
    runner = context.runners[step.host]
    drop = script(_DROP_ACCOUNT, step.account)
    there = runner.run(command("test", "-d", step.path), 60)
    if there.status == TIMED_OUT:
        what = f"the file system of {step.path} does not respond"
        fix = (
            f"on {step.host}: findmnt -lo TARGET,SOURCE,FSTYPE  # shows the server of {quoted(step.path)}; "
            "repair the server, then run the same command again"
        )
        raise NotReady(what, fix, step.host)
    if there.status == 1:
        if runner.run(drop, 60).stdout:
            detail = f"the folder {step.path} does not exist; removed only the record of its files"
            return Verdict("ok", detail)
        return Verdict("skipped")
    if not there.ok:
        raise _failure(there, runner, step.path)
    program = data_program(step.path, step.account, step.cluster, step.image, step.user, "remove")
    done = _answer(DataDone, runner, program, {}, lambda result: _failure(result, runner, step.path))
    runner.run(drop, 60)
    if not step.keep:
        runner.run(command("rmdir", "--ignore-fail-on-non-empty", step.path), 60)
    if not (done.gone or done.stay or done.left):
        return Verdict("ok" if not step.keep else "skipped")
    stay = f"kept {counted(done.stay, 'file')} that changed on the host" if done.stay else ""
    left = (
        f"kept {counted(done.left, 'file')} that toolkit did not write" if done.left and not done.stay else ""
    )
    return Verdict("ok", "; ".join(filter(None, (counted(done.gone, "file"), stay, left))))


def _answer(
    kind: type[T],
    runner: Runner,
    program: Command,
    order: Mapping[str, object],
    fault: Callable[[Result], ToolkitError],
) -> T:
    result = runner.run(replace(program, stdin=json.dumps(order).encode()), _LOOK)
    try:
        answer = load_json(result.stdout.strip().rpartition("\n")[2]) if result.ok else None
    except DecodeError:
        answer = None
    if not isinstance(answer, dict):
        raise fault(result)
    with answer_of(runner.name, "the state of the data folder"):
        if isinstance(answer.get("missing"), str):
            raise _no_python(decode(NoProgram, answer).missing, runner.name)
        return decode(kind, answer)


def _no_python(what: str, host: str) -> NotReady:
    return NotReady(what.strip(), "toolkit image send  # or install Python 3.8 or newer on the host", host)


def _failure(result: Result, runner: Runner, path: str) -> ToolkitError:
    output, host = result.output, runner.name
    if is_denied(output):
        last = output.strip().rpartition("\n")[2]
        fix = (
            f"on {host}: sudo install -d -o $(id -un) {command(path).line()}"
            "  # or, under data: in hosts.yaml, set path: to a folder that the SSH user can write to"
        )
        return NotReady(f"the SSH user cannot write to the data folder: {last}", fix, host)
    return failure(result, runner, _AGAIN, [path])
