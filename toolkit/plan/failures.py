"""A command that failed on a host becomes one error: the cause if its words tell it, the words, the cure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolkit.core.causes import Unwritable, cause_of, named_paths, why_unwritable
from toolkit.core.command import Result, quoted
from toolkit.core.disk_space import Room, ask_room, parse_room, tightest
from toolkit.core.runner import Runner
from toolkit.errors import ToolkitError
from toolkit.plan.context import KnownFailure, reason
from toolkit.plan.steps import Failure


def failure(
    result: Result, runner: Runner, fix: str = "", paths: Sequence[str] = (), known: Sequence[Failure] = ()
) -> ToolkitError:
    """Return the error for a command that failed.

    Args:
        fix: what to say where the command's words tell no cause that is known.
        paths: where the command writes on the host, for when there is no room.
        known: ways to fail that the step itself knows of; they come first.
    """
    said, host = result.output, runner.name
    for way in known:
        for line in said.splitlines():
            if re.search(way.says, line):
                # The cause stands at the end, behind the names of all the programs that it came through.
                own = line.strip() if len(line) <= 200 else f"…{line[-160:].rstrip()}"
                return KnownFailure(f"{way.what} ({own})", way.fix, host, way.cause)
    words = reason(result)
    if unwritable := why_unwritable(said):
        return _full(unwritable, words, runner, (*named_paths(said), *paths))
    if cause := cause_of(said, host):
        return ToolkitError(f"{cause.what}: {words}", cause.fix, host)
    return ToolkitError(words, fix, host)


def _full(unwritable: Unwritable, words: str, runner: Runner, paths: Sequence[str]) -> ToolkitError:
    host = runner.name
    rooms = rooms_of(runner, *paths)
    room = tightest(rooms, paths)
    where = room.mount if room else "/"
    if unwritable is Unwritable.QUOTA:
        return ToolkitError(f"over the disk quota: {words}", f"on {host}: quota -s; make room", host)
    if unwritable is Unwritable.READ_ONLY:
        what = f"what is to be written to is read-only: {words}"
        return ToolkitError(
            what, f"on {host}: {quoted('findmnt', where)}; dmesg tells of disks that failed", host
        )
    if room is None and rooms:
        # What was written has been cleaned up; paths in an engine's words may be those inside a layer.
        room = next((one for one in rooms if one.path in paths), rooms[-1])
        return ToolkitError(
            f"the disk was full (now {room.line()}): {words}", room_fix(host, room.mount), host
        )
    full = f"the disk is full ({room.line()})" if room else "the disk is full"
    return ToolkitError(f"{full}: {words}", room_fix(host, where), host)


def room_fix(host: str, where: str) -> str:
    """Return what to do on a host where a file system is full."""
    clean = f"make room on {where} ({quoted('df', '-h', where)}; docker system df; docker image prune)"
    return f"on {host}: {clean}, then run the same command again"


def rooms_of(runner: Runner, *paths: str) -> tuple[Room, ...]:
    """Return how much room there is at these paths, then where the host's engine keeps images."""
    return parse_room(runner.run(ask_room(*paths), 30).stdout)
