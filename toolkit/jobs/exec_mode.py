"""Jobs of which each host has a part (`transport: exec`), queried and ended host by host.

A host reports on its own part alone, and only hosts that take part in a job count. Otherwise any host of the
hosts file could report a failed part of a job that runs elsewhere, and have the job ended there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from toolkit.cluster.session import Session
from toolkit.core.answers import Tail, read_answer
from toolkit.core.command import Command, command
from toolkit.core.finding import Finding
from toolkit.errors import ToolkitError
from toolkit.jobs.status import FAULTS, FINAL, JobStatus, parse_status, shifted, together
from toolkit.launchers import starts_from_main
from toolkit.protocol.decode import MOST_BYTES
from toolkit.protocol.host_list import host_list
from toolkit.protocol.jobs import JobRow, Record, Status
from toolkit.protocol.names import program
from toolkit.protocol.transport import EXEC
from toolkit.remote.fanout import fan_out

# Seconds that a stop can take beyond twice its grace, see toolkit/container/job/stop.py. The job can still be
# within the grace of an earlier `stop`.
_STOP_S, _EARLIER_GRACE_S = 180.0, 600.0


@dataclass
class Parts:
    """One job.

    Args:
        statuses: by host, of hosts that take part alone; ``lost`` if no supervisor was left to write the end.
        silent: hosts of the job that did not answer, so that the state of their parts is not known.
        confirmed: the session started the job, or main's record lists its hosts; otherwise each host that is
            counted has confirmed its own part alone.
        disputed: how the records of the hosts contradict each other; empty if they agree.
    """

    id: str
    record: Record
    statuses: dict[str, Status] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    confirmed: bool = False
    disputed: str = ""

    @property
    def status(self) -> JobStatus:
        """The whole job."""
        status = together(self.statuses)
        if self.record.transport == EXEC:
            status = replace(status, hosts=None)  # each reported itself only; the record lists all
        unknown = ""
        if self.disputed:
            status, unknown = replace(status, reason=self.disputed), self.disputed
        elif self.silent and status.state not in FAULTS:
            unknown = f"hosts of the job did not answer: {host_list(self.silent)}"
        if unknown and status.state in FINAL:
            status = replace(status, state="unknown", exit_code=None, ended=None, reason=unknown)
        return parse_status(self.id, status, True, self.record)

    @property
    def unended(self) -> tuple[str, ...]:
        """The hosts on which no end of it is written: where it runs, and where its supervisor was lost."""
        over = [state for state in FINAL if state != "lost"]
        return tuple(host for host, status in self.statuses.items() if status.state not in over)

    @property
    def taken(self) -> dict[str, tuple[int, ...]]:
        """The slots that the job holds, by host.

        Only the host itself can report its own slots as taken. A confirmed list also counts for hosts that
        have not begun: mpirun starts its daemons after the supervisor on main.
        """
        whole = self.status
        begins = self.confirmed and not whole.final

        def holds(host: str) -> bool:
            status = self.statuses.get(host)
            return begins if status is None else status.state not in FINAL

        return {host: slots for host, slots in whole.hosts if holds(host)}


def all_parts(session: Session, ask: Callable[[str], Sequence[JobRow]]) -> list[Parts]:
    """Return all jobs of the cluster, oldest first.

    Warn once of each host that reports on a job in which it takes no part; its report is ignored.

    Args:
        ask: gives the rows of job_list.py of a host.

    Raises:
        ToolkitError: no host answers.
    """
    met = {*session.facts, *session.errors}
    hosts = [host for host in session.inventory.answering if host in met]
    listed, errors = fan_out(hosts, lambda host: _by_our_clock(ask(host)))
    if not listed:
        raise next(iter(errors.values()))
    jobs: dict[str, dict[str, JobRow]] = {}
    for host, rows in listed.items():
        for row in rows:
            jobs.setdefault(row.id, {})[host] = row
    found = []
    ignored: dict[str, str] = {}
    for job, reported in jobs.items():
        parts = _counted(job, reported, session.inventory.main, session.started.get(job, ()))
        parts.silent = tuple(host for host in errors if host in parts.silent)
        if parts.statuses:
            found.append(parts)
            ignored |= {host: job for host in reported if host not in parts.statuses}
    for host, job in ignored.items():
        what = "the job does not run on the host, so toolkit ignores the host's report about the job"
        fix = f"in hosts.yaml: remove {host}  # if you do not trust the reports of {host}"
        session.warn_once(Finding("jobs", "warning", what, fix, host, job))
    return sorted(found, key=lambda parts: parts.status.started)


def _counted(job: str, rows: Mapping[str, JobRow], main: str, started: Sequence[str]) -> Parts:
    """Return a job without the rows of hosts that take no part in it; ``silent`` lists all without a row.

    Args:
        started: the hosts on which this session has started the job; empty if it has not.
    """
    claims = {host: _hosts_of(row.record, main) for host, row in rows.items() if row.record}
    speaking = [host for host, claim in claims.items() if host in claim]
    confirmed = bool(started) or main in speaking
    disputed = ""
    if confirmed:
        hosts = started or claims[main]
    elif len({rows[host].record for host in speaking}) == 1:
        hosts = claims[speaking[0]]
    else:
        hosts = speaking
        disputed = f"{' and '.join(speaking)} have different records of the job" if speaking else ""
    records = {host: record for host, row in rows.items() if host in hosts and (record := row.record)}
    record = records.get(main) or next(iter(records.values()), Record())
    if disputed:  # no host's record counts for another host
        own = (each for host in hosts for each in records[host].hosts or () if each.name == host)
        record = replace(record, hosts=tuple(own))
    statuses = {host: _status(row) for host, row in rows.items() if host in hosts}
    silent = tuple(host for host in hosts if host not in rows)
    return Parts(job, record, statuses, silent, confirmed, disputed)


def _hosts_of(record: Record, main: str) -> tuple[str, ...]:
    """Return the hosts that take part in a job by a record of it."""
    if record.transport != EXEC:
        return (main,)  # it was started over ssh, and main alone reports on it
    first = (main,) if starts_from_main(record.launcher or "", EXEC) else ()
    return tuple(dict.fromkeys((*first, *(host.name for host in record.hosts or ()))))


def _by_our_clock(rows: Sequence[JobRow]) -> list[JobRow]:
    """Return the rows of a host that has just answered, with times by the clock of this machine.

    The clocks of hosts differ by more than a failure takes to spread.
    """
    now = time.time()
    return [replace(row, status=shifted(row.status, now - row.now), now=now) for row in rows]


def _status(row: JobRow) -> Status:
    lost = not row.alive and row.status.state not in FINAL
    return replace(row.status, state="lost") if lost else row.status


def stop_parts(
    session: Session, job: str, hosts: Sequence[str], flags: Sequence[str]
) -> dict[str, ToolkitError]:
    """End a job's parts on these hosts at the request of a user; return the errors of the hosts that failed.

    In two rounds: the ranks on all hosts first, which have their grace, then what started them. A launcher
    that ends takes its ranks with it, wherever they are.

    Args:
        flags: of toolkit/container/job/stop.py.
    """
    failed: dict[str, ToolkitError] = {}
    if len(hosts) > 1:
        failed = end_parts(session, job, hosts, (*flags, "--ranks"))[1]
    return failed | end_parts(session, job, [host for host in hosts if host not in failed], flags)[1]


def end_parts(
    session: Session, job: str, hosts: Iterable[str], flags: Sequence[str] = (), silence: float = 120
) -> tuple[dict[str, Status], dict[str, ToolkitError]]:
    """End a job's parts on these hosts at once; return their statuses, and the errors of those that failed.

    Args:
        flags: of toolkit/container/job/stop.py.
        silence: seconds without a sign of life after which a host counts as one that does not answer. The
            program on the host knows for how long the job can take to end, up to the limit above.
    """
    ask = command(*program("job.stop"), *flags, job)
    grace = float(flags[flags.index("--grace") + 1]) if "--grace" in flags else 0.0
    longest = 2 * max(grace, _EARLIER_GRACE_S) + _STOP_S
    return fan_out(hosts, lambda host: _end(session, host, job, ask, silence, longest))


def _end(session: Session, host: str, job: str, ask: Command, silence: float, longest: float) -> Status:
    output, until = Tail(MOST_BYTES), time.monotonic() + longest

    def take(data: bytes) -> None:
        if time.monotonic() > until:
            what = f"cannot stop job {job}: the stop program on {host} still runs after {longest:.0f} s"
            raise ToolkitError(what, f"toolkit stop {job} --now", host)
        output.take(data)

    result = session.container(host).stream(ask, take, silence=silence)
    result = replace(result, stdout=output.text)
    if not result.ok:
        # 137: the engine's status if the container was killed while the program ran.
        why = (
            result.output
            or f"the stop program on {host} exited with status {result.status} and printed nothing"
        )
        why = f"the container on {host} was killed during the stop" if result.status == 137 else why
        raise ToolkitError(
            f"cannot stop job {job}: {why}", "toolkit down  # stops all jobs and removes the cluster", host
        )
    return read_answer(Status, result.stdout, host, f"the final state of job {job}")
