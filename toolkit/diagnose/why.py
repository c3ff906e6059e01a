"""Diagnosis of a job that hangs or has failed: query all hosts at once, judge, and write a bundle."""

from __future__ import annotations

import base64
import json
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit import __version__
from toolkit.cluster.session import Session
from toolkit.core.answers import answer_of, read_answer
from toolkit.core.causes import words_of
from toolkit.core.command import TIMED_OUT, command, script
from toolkit.diagnose.evidence import Evidence, parse_host, place_ranks
from toolkit.diagnose.known_errors import KnownError, match
from toolkit.diagnose.show import why_text
from toolkit.diagnose.verdict import FINAL, Verdict, judge
from toolkit.errors import BadInput, NotReady, ToolkitError
from toolkit.hostsfile.load import read_secrets
from toolkit.jobs.records import find_job, job_status, newest_job
from toolkit.jobs.status import JobStatus, exception_of, parse_status
from toolkit.launchers import starts_from_main
from toolkit.protocol.decode import DecodeError, decode, decode_json
from toolkit.protocol.engine import ContainerState
from toolkit.protocol.evidence import MOST_BYTES, Inspected, InspectedNow, Kept
from toolkit.protocol.jobs import RecordHost, Status
from toolkit.protocol.names import INSIDE, container_name, program
from toolkit.protocol.redact import masked, masked_text, secret_pairs, secret_values
from toolkit.protocol.transport import EXEC
from toolkit.remote.fanout import fan_out

# Stacks of many processes take time; a host that needs longer counts as one without an answer.
_LOOK_SECONDS, _STATE_SECONDS = 25.0, 5.0
# The exit code of Python if it cannot open its program, and the code of toolkit if the program is missing.
_CANNOT_OPEN, _MISSING = 2, 66
_PROGRAM = "run.py"
_REPR_WIDTH = 120
# Watchdogs of several hosts save one stall within this time, which includes differences between clocks.
_APART_S = 120.0
_BY_SIGNAL = 128  # exit codes of ranks that a signal ended are greater
_TRACEBACK = "Traceback (most recent call last)"
_OVERLAP = 1024  # number of characters that identify the earlier end of a log
# Characters that are not allowed in file names of the bundle, so that no name leads to another folder.
_FILE = re.compile(r"^\.+|[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class InspectedHost:
    """Report of one host, without secrets.

    Args:
        container: see ``HostSeen``.
        printed: the report as JSON, for the bundle.
        is_older: whether the program that inspects ranks is missing in the host's container.
    """

    seen: InspectedNow
    container: str = ""
    printed: Mapping[str, Any] = field(default_factory=dict)
    is_older: bool = False


@dataclass(frozen=True)
class Answer:
    """Result of the diagnosis, with secrets masked.

    Args:
        job: the job as main recorded it; ``state`` is unknown if main did not report the job.
        evidence: the judged evidence: current, or from the inspection by the watchdog.
        reports: the report of each host.
        stalled: the reason for the watchdog's inspection if its evidence is judged; otherwise empty.
    """

    job: JobStatus
    evidence: Evidence
    verdict: Verdict
    known: tuple[KnownError, ...]
    reports: Mapping[str, InspectedHost]
    stalled: str = ""

    def __str__(self) -> str:
        """Return the text that `toolkit why` prints."""
        return why_text(self.job, self.evidence, self.verdict, self.known)

    def __repr__(self) -> str:
        return f"Answer({self.job.id!r}, {textwrap.shorten(self.verdict.what, _REPR_WIDTH)!r})"


def ask_why(session: Session, word: str = "") -> Answer:
    """Query every host of a job about the activity of its ranks, and return the verdict.

    A host that does not answer is evidence as well.

    Args:
        word: the id of the job, or the last part of the id; empty for the newest job.

    Raises:
        ToolkitError: no host answers; NotReady: there is no such job.
    """
    session.require_some()
    secrets = secrets_of(session)
    main = session.inventory.main
    try:
        job = job_status(session, word) if word else newest_job(session)
    except ToolkitError as error:
        if isinstance(error, NotReady) and main not in session.errors and _runs(session, main):
            raise
        # The job might hang because of the main host; the workers have its record too.
        job = _from_workers(session, word, error)
    reports = _look(session, job.id, _hosts_of(session, job), secrets)
    _refuse_older(reports)
    evidence = _evidence(job, {name: (one.seen, one.container) for name, one in reports.items()})
    known = _known(job, reports, evidence)
    verdict, stalled = judge(evidence), ""
    kept = _kept(reports, [name for name, _ in job.hosts] if session.inventory.in_parts else [main])
    if kept and job.state in FINAL and job.state != "succeeded" and _lasted(kept, evidence, reports):
        before = _before(job, kept)
        stalled = kept.why or ""
        earlier = judge(before)
        what = f"{verdict.what}; before the job ended ({stalled or 'the job stalled'}): {earlier.what}"
        evidence, verdict = before, replace(earlier, what=what)
    verdict = replace(verdict, what=masked_text(verdict.what, secrets))
    return Answer(masked_job(job, secrets), evidence, verdict, known, reports, stalled)


def _hosts_of(session: Session, job: JobStatus) -> list[str]:
    """Return the hosts that have files of the job: its hosts, and main if the launcher runs there."""
    hosts = [name for name, _ in job.hosts]
    if hosts and session.inventory.in_parts and not starts_from_main(job.launcher, EXEC):
        return hosts
    return list(dict.fromkeys([session.inventory.main, *hosts]))


def _kept(reports: Mapping[str, InspectedHost], names: Sequence[str]) -> Kept | None:
    """Return the evidence that watchdogs have saved of a stall of the job.

    Args:
        names: the hosts with a watchdog: main, or all hosts if each watchdog reports on its host only.
    """
    found = {name: kept for name in names if name in reports and (kept := reports[name].seen.kept)}
    # The ranks of all hosts must have stalled, and at the same time.
    if not found or len(found) < len(names) or any(kept.over for kept in found.values()):
        return None
    times = [kept.at for kept in found.values()]
    if max(times) - min(times) > _APART_S:
        return None
    first = found[names[0]]
    if len(names) == 1:
        return first
    hosts = tuple(host for name, kept in found.items() for host in kept.hosts if host.host == name)
    return replace(first, hosts=hosts, slots=None)


def _lasted(kept: Kept, evidence: Evidence, reports: Mapping[str, InspectedHost]) -> bool:
    """Return whether the stall lasted until the end of the job.

    Since the stall, no rank has failed, except by a time-out, and no rank has printed, except its errors.
    """
    failed = evidence.rank(evidence.failed_rank) if evidence.failed_rank is not None else None
    raised = exception_of(failed.lines) if failed else ""
    if raised and not any(error.timeout or error.follows for error in match([raised])):
        return False
    before = {(one.host, rank.rank): rank.tail for one in kept.hosts for rank in one.ranks}
    printed = [
        lines
        for name, one in reports.items()
        for rank in one.seen.ranks
        if (name, rank.rank) in before and (lines := _after(before[name, rank.rank], rank.tail))
    ]
    if any(error.timeout for error in match(line for lines in printed for line in lines)):
        return True
    if failed and not raised and 0 < (failed.exit_code or 0) < _BY_SIGNAL:
        return False
    # The end of a job can cause errors on its other ranks.
    return all(_TRACEBACK in lines[0] or match(lines[:1]) for lines in printed)


def _after(before: str, tail: str) -> list[str]:
    """Return the lines that follow an earlier end of the same log."""
    if tail == before:
        return []
    end = before[-_OVERLAP:]
    after = tail.partition(end)[2] if end and end in tail else tail
    return [line for line in after.splitlines() if line.strip()]


def _before(job: JobStatus, kept: Kept) -> Evidence:
    """Return the evidence of the time at which a watchdog inspected the job."""
    then = replace(job, state="running", hosts=tuple((kept.slots or dict(job.hosts)).items()))
    return _evidence(then, {one.host: (one, "") for one in kept.hosts})


def _runs(session: Session, host: str) -> bool:
    try:
        session.container(host)
    except ToolkitError:
        return False
    return True


def secrets_of(session: Session) -> tuple[str, ...]:
    """Return the values of the file's secrets, and of its variables whose names are names of secrets."""
    inventory = session.inventory
    values: list[str] = []
    with suppress(BadInput):  # if another user owns the files, the hosts mask the values that they know
        values += [value for _, value in read_secrets(inventory)]
    pairs = [*inventory.env, *(pair for host in inventory.hosts for pair in host.env)]
    return secret_values([*values, *secret_pairs(pairs)])


def masked_job(job: JobStatus, secrets: tuple[str, ...]) -> JobStatus:
    """Return the job without secrets in its command, its reasons and its last lines."""

    def each(texts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(masked_text(text, secrets) for text in texts)

    return replace(
        job,
        command=each(job.command),
        reason=masked_text(job.reason, secrets),
        restarts=each(job.restarts),
        last_lines=each(job.last_lines),
    )


def _from_workers(session: Session, word: str, error: ToolkitError) -> JobStatus:
    """Return the job from the records of the workers, if the main host does not answer."""
    others = [name for name in session.facts if name != session.inventory.main]
    status = Status(state="unknown", reason=f"{session.inventory.main}: {error.what}")
    known = {}
    for report in _look(session, word, others, ()).values():
        if about := report.seen.job:
            hosts = tuple(RecordHost(host.name, host.slots) for host in about.hosts or ())
            known[about.id] = parse_status(about.id, status, True, replace(about.record, hosts=hosts))
    if not known:
        raise error
    # A worker reports the newest job in which it took part. An id begins with the time of the start.
    return find_job(tuple(known.values()), word) if word else known[max(known)]


def _look(
    session: Session, job: str, names: Iterable[str], secrets: tuple[str, ...]
) -> dict[str, InspectedHost]:
    """Return the report of each host, or its error, and the state of its container."""
    names = list(names)
    found, failed = fan_out(names, lambda name: _look_on(session, job, name, secrets))
    for name, error in failed.items():
        found[name] = _silent(name, masked_text(error.what, secrets))
    return {name: found[name] for name in names}


def _silent(name: str, error: str, container: str = "", is_predicate: bool = False) -> InspectedHost:
    printed = {"host": name, "error": error, "container": container}
    return InspectedHost(InspectedNow(host=name, error=error, is_predicate=is_predicate), container, printed)


def _look_on(session: Session, job: str, name: str, secrets: tuple[str, ...]) -> InspectedHost:
    if name not in session.inventory.names:
        return _silent(name, "is no longer in hosts.yaml", is_predicate=True)
    if name in session.errors:
        raise session.errors[name]
    container = masked_text(_container_words(session, name), secrets)
    try:
        hidden = [word for secret, _ in session.inventory.secrets for word in ("--secret", secret)]
        inspect = command(*program("diagnose.inspect_ranks"), *([job] if job else []), *hidden)
        result = session.container(name).run(inspect, _LOOK_SECONDS)
        if result.status == TIMED_OUT:
            error = f"did not answer within {_LOOK_SECONDS:.0f} s"
            return _silent(name, error, container, is_predicate=True)
        if not result.ok:
            found = _silent(name, masked_text(words_of(result.output), secrets), container)
            is_older = result.status == _CANNOT_OPEN and _lacks_program(session, name)
            return replace(found, is_older=is_older)
        what = "the state of the ranks"
        raw = masked(read_answer(dict[str, object], result.stdout, name, what, MOST_BYTES), secrets)
        with answer_of(name, what):
            return InspectedHost(decode(InspectedNow, raw), container, {**raw, "container": container})
    except ToolkitError as error:
        return _silent(name, masked_text(error.what, secrets), container)


def _lacks_program(session: Session, name: str) -> bool:
    look = script(f'[ -e "$1" ] || exit {_MISSING}', str(INSIDE / _PROGRAM))
    return session.container(name).run(look, _STATE_SECONDS).status == _MISSING


def _refuse_older(reports: Mapping[str, InspectedHost]) -> None:
    """Raise an error if the program that inspects ranks is missing in a host's container."""
    for name, one in reports.items():
        if one.is_older:
            what = f"the container has no {_PROGRAM}, because an older version of toolkit created the cluster"
            raise NotReady(what, "toolkit up", name)


def _container_words(session: Session, name: str) -> str:
    """Return the state of the host's container; empty if the container runs or cannot be inspected."""
    place = container_name(session.inventory.cluster, session.inventory.role(name))
    inspect = command("docker", "inspect", "--format", "{{json .State}}", place)
    result = session.runners[name].run(inspect, _STATE_SECONDS)
    if not result.ok:
        return (
            ""
            if result.status == TIMED_OUT
            else f"toolkit cannot inspect the container {place}, or the container does not exist"
        )
    try:
        state = decode_json(ContainerState, result.stdout)
    except DecodeError:
        return ""
    if state.paused:
        return f"the container {place} is paused (on {name}: {session.inventory.engine} unpause {place})"
    if state.running:
        return ""
    if state.status == "created":
        words = f"the container {place} was created but never started"
    else:
        words = f"the container {place} exited with exit code {state.exit_code}"
    words += " because the container ran out of memory" if state.out_of_memory else ""
    return f"{words}: {state.error}" if state.error else words


def _evidence(job: JobStatus, inspected: Mapping[str, tuple[Inspected, str]]) -> Evidence:
    """Return the evidence for the verdict: the report of each host, and the state of its container."""
    about = next((seen.job for seen, _ in inspected.values() if seen.job), None)
    rows = (about.hosts if about else None) or ()
    addresses = {row.address: row.name for row in rows}
    # The job first: an elastic job can continue on other hosts than those of its attempt.
    slots = [(name, len(taken)) for name, taken in job.hosts] or [(row.name, row.slots) for row in rows]
    hosts = [parse_host(name, seen, addresses, container) for name, (seen, container) in inspected.items()]
    planned = [name for name, count in slots for _ in range(count)]
    placed = place_ranks(planned, hosts, job.state in FINAL)
    return Evidence(job.id, job.state, job.reason, placed, tuple(hosts), job.failed_rank, job.lost_host)


def _known(
    job: JobStatus, reports: Mapping[str, InspectedHost], evidence: Evidence
) -> tuple[KnownError, ...]:
    """Return the known errors in the output, those of the rank that failed first before the others.

    Errors that only follow from other errors come last, and are left out if the rank raised an exception.
    """
    failed = evidence.rank(evidence.failed_rank) if evidence.failed_rank is not None else None
    raised = exception_of(failed.lines) if failed else ""
    first = [] if failed is None else reports[failed.host].seen.ranks
    texts = [rank.tail for rank in first if failed and rank.rank == failed.rank] + [job.reason]
    for one in reports.values():
        texts += [one.seen.output or "", *(rank.tail for rank in one.seen.ranks)]
    own = match([raised])
    found = sorted(
        match(line for text in texts for line in text.splitlines()), key=lambda error: error.follows
    )
    return tuple(error for error in found if error in own or not (raised and error.follows))


def bundle_files(answer: Answer, report: str, result: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the files of the bundle by name; all secrets are masked.

    Args:
        report: the text that toolkit printed.
        result: the result as JSON.
    """
    files = {
        "report.txt": report.encode(),
        "why.json": (json.dumps(result, indent=2) + "\n").encode(),
        "version.txt": f"toolkit {__version__}\n".encode(),
    }
    for name, one in answer.reports.items():
        plain = {key: value for key, value in one.printed.items() if key not in ("output", "ras", "lease")}
        plain["ranks"] = [
            {key: value for key, value in rank.items() if key not in ("tail", "dumps")}
            for rank in one.printed.get("ranks", ())
        ]
        files[f"hosts/{name}.json"] = (json.dumps(plain, indent=1) + "\n").encode()
        seen = one.seen
        for text, place in (
            (seen.output, "output.log"),
            (seen.ras, "nccl-ras.txt"),
            (seen.lease, "lease.log"),
        ):
            if text:
                files[f"hosts/{name}/{place}"] = text.encode()
        for rank in seen.ranks:
            files[f"hosts/{name}/rank-{rank.rank}.log"] = rank.tail.encode()
            for dump, data in (rank.dumps or {}).items():
                with suppress(ValueError):
                    files[f"hosts/{name}/{_FILE.sub('_', dump)}"] = base64.b64decode(data)
    return files
