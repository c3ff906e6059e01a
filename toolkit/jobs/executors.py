"""Executors of SendCode, StartJob and StartDaemons, with the client side of their protocols."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from toolkit.core.code import Entry
from toolkit.core.disk_space import size
from toolkit.core.printable import counted
from toolkit.errors import ToolkitError
from toolkit.jobs.code import contents
from toolkit.plan.context import Advance, Context, Verdict, failure
from toolkit.plan.steps import SendCode, StartDaemons, StartJob
from toolkit.protocol.jobs import ENDED, SessionAnswer
from toolkit.remote.container_session import ContainerSession

# The program on the host gives up after 60 s, see toolkit/container/job/exec_mode.py.
_RANKS_S = 90.0
# Parts of the code that a host can ask for; an honest one asks a few times.
_ROUNDS = 50
# Seconds without progress. The host reports each file that it writes.
_CODE_S = 120.0
_AGAIN = "run the same command again"


def send_code(step: SendCode, context: Context, advance: Advance) -> Verdict:
    """Create the job's folder; send only code that is missing on the host."""
    session = context.container_sessions.open(context.runners[step.host], step.container)
    before = session.sent
    talk = _Talk(step, session, advance)
    last = talk.hold()
    if not last.done:
        result = (
            session.finish()
        )  # raises what went wrong on this machine: a refusal would be its consequence
        if last.refused:
            raise ToolkitError(last.refused, last.fix, step.host)
        raise failure(result, session.runner, paths=[step.target])
    amounts = (("bytes", session.sent - before), ("content", talk.content))
    details = []
    if step.source:
        details = [
            f"sent {size(talk.content)} of {size(step.tree.total)}" if talk.content else "no new content"
        ]
    if last.damage:
        details.append(f"warning: toolkit replaced the code store on the host: {last.damage}")
    return Verdict("ok", "; ".join(details), amounts=amounts)


def start_job(step: StartJob, context: Context, advance: Advance) -> Verdict:
    """Start the supervisor, which continues without the client."""
    session = context.container_sessions.open(context.runners[step.host], step.container)
    session.send({"do": "start", "job": step.job, "variables": step.variables})
    if session.receive(f"the start of {step.job}").started != step.job:
        raise failure(session.finish(), session.runner)
    return Verdict("ok")


def start_daemons(step: StartDaemons, context: Context, advance: Advance) -> Verdict:
    """Start the processes that the launcher requests, host by host, until every host has its process."""
    variables = dict(zip((host for host, _ in step.others), step.variables, strict=True))
    containers, session = (
        dict(step.others),
        context.container_sessions.open(context.runners[step.host], step.container),
    )
    session.send({"do": "asks", "job": step.job, "hosts": list(containers)})
    done = 0
    while (answer := session.receive(f"the start requests of the launcher of job {step.job}", _RANKS_S)).host:
        host = answer.host
        if host not in containers or done == len(containers):
            what = f"the launcher of job {step.job} requested an unexpected process on {host!r}"
            raise ToolkitError(what, f"toolkit logs {step.job}", step.host)
        start = {"do": "start", "job": step.job, "daemon": answer.command, "variables": variables[host]}
        error = _start_daemon(context, host, containers[host], start)
        session.send({"error": error})
        done += 1
    if answer == ENDED:
        raise failure(session.finish(), session.runner)
    if answer.refused:
        raise ToolkitError(answer.refused, answer.fix, step.host)
    if done < len(containers):  # the launcher has exited; the job's log contains the reason
        return Verdict("ok", f"started {done} of {counted(len(containers), 'daemon')}")
    # A client that stops now must leave no launcher that waits for a daemon.
    idle = []
    for host, container in step.others:
        other = context.container_sessions.open(context.runners[host], container)
        other.send({"do": "begun", "job": step.job})
        if not other.receive(f"the start of the first rank of job {step.job}", _RANKS_S).begun:
            idle.append(host)
    # A client that follows the job gets the reason; without one the job could wait without end.
    return Verdict("ok", f"no rank started on {', '.join(idle)}; see toolkit logs {step.job}" if idle else "")


def _start_daemon(context: Context, host: str, container: str, start: dict[str, str]) -> str:
    """Start it; returns why it was not."""
    session = context.container_sessions.open(context.runners[host], container)
    session.send(start)
    try:
        if session.receive(f"the start of {start['job']}").started == start["job"]:
            return ""
        return failure(session.finish(), session.runner).what
    except ToolkitError as error:
        return error.what


class _Talk:
    """The client of ``toolkit/container/code/snapshot.py``."""

    def __init__(self, step: SendCode, session: ContainerSession, advance: Advance) -> None:
        self._step, self._session, self._advance = step, session, advance
        self.content = 0

    def hold(self) -> SessionAnswer:
        """Answer the requests; return the last message."""
        step, tree, session = self._step, self._step.tree, self._session
        about = {"job": PurePosixPath(step.target).name, "tree": tree.digest if step.source else ""}
        texts = dict.fromkeys(("job.json", "record.json"), step.job)
        session.send(
            {"do": "code", **about, "number": tree.number, "marks": tree.marks.hex(), "texts": texts}
        )
        for _ in range(_ROUNDS):
            answer = session.receive("the result of the code transfer", _CODE_S)
            if answer.buckets is not None:
                packed = zlib.compress(json.dumps(tree.of_buckets(answer.buckets)).encode(), 6)
                session.send({"entries": len(packed)}, (packed,))
            elif answer.needs is not None:
                needed = [tree.entries[first : last + 1] for first, last in answer.needs]
                if sum(map(len, needed)) > len(tree.entries):
                    raise ToolkitError(
                        "the host requested more files than the code contains", _AGAIN, step.host
                    )
                session.send_bytes(self._contents([entry for entries in needed for entry in entries]))
            else:
                return answer
        raise ToolkitError(
            f"the code transfer did not finish after {_ROUNDS} requests from the host", _AGAIN, step.host
        )

    def _contents(self, entries: list[Entry]) -> Iterator[bytes]:
        total = self.content + sum(entry.size for entry in entries)
        for data in contents(Path(self._step.source), entries):
            yield data
            self.content += len(data)
            self._advance(self.content, total)
