"""Jobs of which each host has a part (`transport: exec`), asked and ended host by host."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from toolkit.api import Session
from toolkit.core.answers import read_answer
from toolkit.core.command import Command, command
from toolkit.core.job_status import FAULTS, FINAL, JobStatus, parse_status, shifted, together
from toolkit.core.names import INSIDE
from toolkit.core.transport import EXEC
from toolkit.effects.fanout import fan_out
from toolkit.errors import ToolkitError
from toolkit.protocol.jobs import JobRow, Record, Status


@dataclass
class Parts:
    """One job.

    Args:
        statuses: by host; ``lost`` where nobody was left to write how it ended.
        silent: hosts of the job that did not answer, so that nothing is known of their parts.
    """

    id: str
    record: Record
    statuses: dict[str, Status] = field(default_factory=dict)
    silent: tuple[str, ...] = ()

    @property
    def status(self) -> JobStatus:
        """The whole job."""
        status = together(self.statuses)
        if self.record.transport == EXEC:
            status = replace(status, hosts=None)  # each has told of itself alone; all stand in the record
        if self.silent and status.state in FINAL and status.state not in FAULTS:
            reason = f"nothing answers there: {', '.join(self.silent)}"
            status = replace(status, state="unknown", exit_code=None, ended=None, reason=reason)
        return parse_status(self.id, status, True, self.record)

    @property
    def unended(self) -> tuple[str, ...]:
        """The hosts on which no end of it is written: where it runs, and where its supervisor was lost."""
        over = [state for state in FINAL if state != "lost"]
        return tuple(host for host, status in self.statuses.items() if status.state not in over)


def all_parts(session: Session, ask: Callable[[str], Sequence[JobRow]]) -> list[Parts]:
    """Return all jobs of the cluster, oldest first.

    Args:
        ask: gives the rows of listing.py of a host.

    Raises:
        ToolkitError: no host answers.
    """
    met = {*session.facts, *session.errors}
    rows, errors = fan_out([host for host in session.inventory.answering if host in met], ask)
    if not rows:
        raise next(iter(errors.values()))
    found: dict[str, Parts] = {}
    for host, listed in rows.items():
        for row in listed:
            parts = found.setdefault(row.id, Parts(row.id, row.record or Record()))
            lost = not row.alive and row.status.state not in FINAL
            # By the clock of this machine: hosts' own differ by more than a failure takes to spread.
            status = shifted(row.status, time.time() - row.now)
            parts.statuses[host] = replace(status, state="lost") if lost else status
    for parts in found.values():
        taking_part = {host.name for host in parts.record.hosts or ()}
        parts.silent = tuple(host for host in errors if host in taking_part)
    return sorted(found.values(), key=lambda parts: parts.status.started)


def stop_parts(
    session: Session, job: str, hosts: Sequence[str], flags: Sequence[str], seconds: float
) -> dict[str, ToolkitError]:
    """End a job's parts on these hosts as a person has asked; return the errors of the hosts that failed.

    In two rounds: the ranks on all hosts first, which have their grace, then what started them. A launcher
    that ends takes its ranks with it, wherever they are.

    Args:
        flags: of toolkit/inside/stop.py.
        seconds: after which a host counts as one that does not answer.
    """
    failed: dict[str, ToolkitError] = {}
    if len(hosts) > 1:
        failed = end_parts(session, job, hosts, (*flags, "--ranks"), seconds)[1]
    return failed | end_parts(session, job, [host for host in hosts if host not in failed], flags, seconds)[1]


def end_parts(
    session: Session, job: str, hosts: Iterable[str], flags: Sequence[str] = (), seconds: float = 120
) -> tuple[dict[str, Status], dict[str, ToolkitError]]:
    """End a job's parts on these hosts at once; return their statuses, and the errors of those that failed.

    Args:
        flags: of toolkit/inside/stop.py.
        seconds: after which a host counts as one that does not answer.
    """
    ask = command("python3", str(INSIDE / "stop.py"), *flags, job)
    return fan_out(hosts, lambda host: _end(session, host, job, ask, seconds))


def _end(session: Session, host: str, job: str, ask: Command, seconds: float) -> Status:
    result = session.container(host).run(ask, seconds)
    if not result.ok:
        # 137: the engine's word for a container that was killed under the program.
        why = result.output or f"{host}'s program ended with {result.status}, without a word"
        why = f"{host}'s container was killed meanwhile" if result.status == 137 else why
        raise ToolkitError(f"cannot end {job}: {why}", "toolkit down ends everything", host)
    return read_answer(Status, result.stdout, host, f"the end of {job}")
