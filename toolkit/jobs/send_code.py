"""Executors of SendCode, StartJob, StartDaemons: talks with the program on the host that does them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from toolkit.core.code import Entry
from toolkit.core.disk_space import size
from toolkit.errors import ToolkitError
from toolkit.jobs.code import contents
from toolkit.plan.context import Advance, Context, Verdict, failure
from toolkit.plan.steps import SendCode, StartDaemons, StartJob
from toolkit.protocol.session import ENDED, Heard
from toolkit.remote.container_session import Desk

# The program on the host gives up after 60 s, see toolkit/container/job/exec_mode.py.
_RANKS_S = 90.0
# Parts of the code that a host can ask for; an honest one asks a few times.
_ROUNDS = 50
# Without progress. Files are written one by one, of which the host tells.
_CODE_S = 120.0


def send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    """Make the job's folder; of the code only what the host lacks travels."""
    desk = context.desks.open(context.runners[step.host], step.container)
    before = desk.sent
    talk = _Talk(step, desk, advance)
    last = talk.hold()
    if not last.done:
        result = desk.finish()  # raises what went wrong on this machine: a refusal would be its consequence
        if last.refused:
            raise ToolkitError(last.refused, last.fix, step.host)
        raise failure(result, desk.runner, paths=[step.target])
    amounts = (("bytes", desk.sent - before), ("content", talk.content))
    details = []
    if step.source:
        details = [f"{size(talk.content)} of {size(step.tree.total)}" if talk.content else "nothing new"]
    if last.damage:
        details.append(f"warning: the code store was damaged and has been replaced: {last.damage}")
    return Verdict("ok", "; ".join(details), amounts=amounts)


def start_job(step: StartJob, context: Context, advance: Advance) -> Verdict:
    """Start the supervisor, which goes on without us."""
    desk = context.desks.open(context.runners[step.host], step.container)
    desk.say({"do": "start", "job": step.job, "variables": step.variables})
    if desk.hear(f"the start of {step.job}").started != step.job:
        raise failure(desk.finish(), desk.runner)
    return Verdict("ok")


def start_daemons(step: StartDaemons, context: Context, advance: Advance) -> Verdict:
    """Pass on what the launcher asks for, host by host; then it has all that it needs of us."""
    variables = dict(zip((host for host, _ in step.others), step.variables, strict=True))
    containers, desk = dict(step.others), context.desks.open(context.runners[step.host], step.container)
    desk.say({"do": "asks", "job": step.job, "hosts": list(containers)})
    done = 0
    while (heard := desk.hear(f"what the launcher of {step.job} starts on other hosts", _RANKS_S)).host:
        host = heard.host
        if host not in containers or done == len(containers):
            what = f"its launcher starts {step.job} on {host!r}, which was not asked for"
            raise ToolkitError(what, f"toolkit logs {step.job}", step.host)
        start = {"do": "start", "job": step.job, "daemon": heard.command, "variables": variables[host]}
        error = _start_daemon(context, host, containers[host], start)
        desk.say({"error": error})
        done += 1
    if heard == ENDED:
        raise failure(desk.finish(), desk.runner)
    if heard.refused:
        raise ToolkitError(heard.refused, heard.fix, step.host)
    if done < len(containers):  # the launcher has ended before, and says why in the job's log
        return Verdict("ok", f"{done} of {len(containers)}")
    # A client that stops now must leave no launcher that waits for a daemon.
    idle = []
    for host, container in step.others:
        other = context.desks.open(context.runners[host], container)
        other.say({"do": "begun", "job": step.job})
        if not other.hear(f"the first rank of {step.job}", _RANKS_S).begun:
            idle.append(host)
    # A client that follows the job gets the reason; without one the job could wait without end.
    return Verdict("ok", f"no rank has begun on {', '.join(idle)}: toolkit logs {step.job}" if idle else "")


def _start_daemon(context: Context, host: str, container: str, start: dict[str, str]) -> str:
    """Start it; returns why it was not."""
    desk = context.desks.open(context.runners[host], container)
    desk.say(start)
    try:
        if desk.hear(f"the start of {start['job']}").started == start["job"]:
            return ""
        return failure(desk.finish(), desk.runner).what
    except ToolkitError as error:
        return error.what


class _Talk:
    """The client of ``toolkit/container/code/snapshot.py``."""

    def __init__(self, step: SendCode, desk: Desk, advance: Advance) -> None:
        self._step, self._desk, self._advance = step, desk, advance
        self.content = 0

    def hold(self) -> Heard:
        """Answer what is asked; return the last word."""
        step, tree, desk = self._step, self._step.tree, self._desk
        about = {"job": PurePosixPath(step.target).name, "tree": tree.digest if step.source else ""}
        texts = dict.fromkeys(("job.json", "record.json"), step.job)
        desk.say({"do": "code", **about, "number": tree.number, "marks": tree.marks.hex(), "texts": texts})
        for _ in range(_ROUNDS):
            heard = desk.hear("the code to be written there", _CODE_S)
            if heard.buckets is not None:
                packed = zlib.compress(json.dumps(tree.of_buckets(heard.buckets)).encode(), 6)
                desk.say({"entries": len(packed)}, (packed,))
            elif heard.needs is not None:
                needed = [tree.entries[first : last + 1] for first, last in heard.needs]
                if sum(map(len, needed)) > len(tree.entries):
                    raise ToolkitError("it asked for more files than the code has", "run it again", step.host)
                desk.give(self._contents([entry for entries in needed for entry in entries]))
            else:
                return heard
        raise ToolkitError(f"it asked for parts of the code {_ROUNDS} times", "run it again", step.host)

    def _contents(self, entries: list[Entry]) -> Iterator[bytes]:
        total = self.content + sum(entry.size for entry in entries)
        for data in contents(Path(self._step.source), entries):
            yield data
            self.content += len(data)
            self._advance(self.content, total)
