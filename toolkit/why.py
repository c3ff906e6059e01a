"""Why a job hangs or has failed: all hosts asked at once, judged, and kept as a bundle for a report."""

from __future__ import annotations

import base64
import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from toolkit import __version__
from toolkit.api import Session
from toolkit.core.answers import answer_of
from toolkit.core.causes import words_of
from toolkit.core.command import command
from toolkit.core.evidence import Evidence, HostSeen, parse_host
from toolkit.core.hang import FINAL, judge
from toolkit.core.job_status import JobStatus, parse_status
from toolkit.core.mask import masked, masked_text, secret_pairs, secret_values
from toolkit.core.names import INSIDE, container_name
from toolkit.core.result import TIMED_OUT
from toolkit.core.verdict import Verdict
from toolkit.effects.fanout import fan_out
from toolkit.errors import BadInput, NotReady, ToolkitError
from toolkit.inputs import read_secrets
from toolkit.protocol.decode import decode
from toolkit.protocol.jobs import Record, Status
from toolkit.records import job_status, newest_job

# Stacks of many processes take a while; a host that needs longer counts as one that does not answer.
_LOOK_SECONDS, _STATE_SECONDS = 25.0, 5.0
_KNOWN = "toolkit.core.known_errors"
_PROGRAM = "inspect_ranks.py"


@dataclass(frozen=True)
class Known:
    """A known error whose words stand in the job's output."""

    name: str
    what: str
    fix: str


@dataclass(frozen=True)
class Answer:
    """What came of asking why; nothing in it is a secret any more.

    Args:
        job: as main has it; ``state`` is unknown where main did not say.
        evidence: what was judged: of now, or of when the watchdog looked.
        said: what each host printed, as JSON.
        stalled: what made the watchdog look, when its evidence was judged; else empty.
    """

    job: JobStatus
    evidence: Evidence
    verdict: Verdict
    known: tuple[Known, ...]
    said: Mapping[str, Any]
    stalled: str = ""


def ask_why(session: Session, word: str = "") -> Answer:
    """Ask every host of a job what its ranks are doing, and judge.

    A host that does not answer is evidence as well.

    Args:
        word: the job's id or the last part of it; empty for the newest one.

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
        # Main is what the job hangs on, perhaps; the workers know of it too.
        job = _from_workers(session, word, error)
    names = list(dict.fromkeys([main, *(name for name, _ in job.hosts)]))
    said = _look(session, job.id, names)
    _refuse_older(said)
    said = {name: masked(one, secrets) for name, one in said.items()}
    evidence = _evidence(session, job, said)
    verdict, stalled = judge(evidence), ""
    kept = _kept(said)
    if kept and job.state in FINAL and job.state != "succeeded" and _lasted(kept, said):
        before = _evidence(
            session, replace(job, state="running"), {one["host"]: one for one in kept["hosts"]}
        )
        stalled = str(kept.get("why") or "")
        earlier = judge(before)
        what = f"{verdict.what}; before that, {stalled or 'when it stood still'}: {earlier.what}"
        evidence, verdict = before, replace(earlier, what=what)
    verdict = replace(verdict, what=masked_text(verdict.what, secrets))
    return Answer(masked_job(job, secrets), evidence, verdict, _known(_lines(job, said)), said, stalled)


def _kept(said: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """What watchdogs have kept: main's of all hosts, or each host's of its own part."""
    found = [one["kept"] for one in said.values() if one.get("kept")]
    if not found:
        return None
    return {**found[0], "hosts": [host for kept in found for host in kept["hosts"]]}


def _lasted(kept: Mapping[str, Any], said: Mapping[str, Mapping[str, Any]]) -> bool:
    """Whether some rank has said nothing more since: else the watchdog looked at another stall."""
    after = {rank["rank"]: rank.get("tail") for one in said.values() for rank in one.get("ranks", ())}
    before = [rank for one in kept["hosts"] for rank in one.get("ranks", ())]
    return any(rank.get("tail") == after.get(rank["rank"]) for rank in before)


def _runs(session: Session, host: str) -> bool:
    try:
        session.container(host)
    except ToolkitError:
        return False
    return True


def secrets_of(session: Session) -> tuple[str, ...]:
    """Return values of the file's secrets and of its variables whose names say that they are secret."""
    inventory = session.inventory
    values: list[str] = []
    with suppress(BadInput):  # somebody else's files, perhaps: the hosts mask what they know of
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
    """The job as a worker knows it, when main says nothing."""
    others = [name for name in session.facts if name != session.inventory.main]
    for name, said in _look(session, word, others).items():
        if about := said.get("job"):
            status = Status(state="unknown", reason=f"{session.inventory.main}: {error.what}")
            with answer_of(name, "its newest job"):
                return parse_status(str(about["id"]), status, True, decode(Record, about))
    raise error


def _look(session: Session, job: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What each host printed, or its error; and how its container stands."""
    names = list(names)
    found, failed = fan_out(names, lambda name: _look_on(session, job, name))
    for name, error in failed.items():
        found[name] = {"host": name, "error": error.what, "container": ""}
    return {name: found[name] for name in names}


def _look_on(session: Session, job: str, name: str) -> dict[str, Any]:
    if name not in session.inventory.names:
        return {"host": name, "error": "does not stand in the hosts file any more", "container": ""}
    if name in session.errors:
        raise session.errors[name]
    container = _container_words(session, name)
    try:
        hidden = [word for secret, _ in session.inventory.secrets for word in ("--secret", secret)]
        ask = command("python3", str(INSIDE / _PROGRAM), *([job] if job else []), *hidden)
        result = session.container(name).run(ask, _LOOK_SECONDS)
    except ToolkitError as error:
        return {"host": name, "error": error.what, "container": container}
    if result.status == TIMED_OUT:
        error_words = f"does not answer within {_LOOK_SECONDS:.0f} s"
        return {"host": name, "error": error_words, "container": container}
    if not result.ok:
        return {"host": name, "error": words_of(result.output), "container": container}
    said: dict[str, Any] = json.loads(result.stdout.strip().splitlines()[-1])
    return {**said, "container": container}


def _refuse_older(said: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse to take a toolkit that cannot look for a host that does not answer."""
    for name, one in said.items():
        if _PROGRAM in one.get("error", "") and "No such file" in one["error"]:
            raise NotReady(
                f"{_PROGRAM} is not there: the cluster was made by an older toolkit", "toolkit up", name
            )


def _container_words(session: Session, name: str) -> str:
    """How the host's container stands where it does not simply run."""
    place = container_name(session.inventory.cluster, session.inventory.role(name))
    ask = command("docker", "inspect", "--format", "{{json .State}}", place)
    result = session.runners[name].run(ask, _STATE_SECONDS)
    if not result.ok:
        return "" if result.status == TIMED_OUT else "it has no container"
    try:
        state = json.loads(result.stdout)
    except ValueError:
        return ""
    if state.get("Paused"):
        return f"its container {place} is paused (on {name}: docker unpause {place})"
    if state.get("Running"):
        return ""
    words = f"its container {place} has ended with exit code {state.get('ExitCode')}"
    words += ", killed for want of memory" if state.get("OOMKilled") else ""
    return f"{words}: {state['Error']}" if state.get("Error") else words


def _evidence(session: Session, job: JobStatus, said: Mapping[str, Mapping[str, Any]]) -> Evidence:
    about: Mapping[str, Any] = next((one["job"] for one in said.values() if one.get("job")), {})
    rows = about.get("hosts") or ()
    addresses = {str(row["address"]): str(row["name"]) for row in rows}
    slots = [(str(row["name"]), int(row["slots"])) for row in rows]
    slots = slots or [(name, len(taken)) for name, taken in job.hosts]
    hosts: list[HostSeen] = []
    for name, one in said.items():
        hosts.append(parse_host(name, one, addresses, str(one.get("container") or "")))
    placed = tuple(name for name, count in slots for _ in range(count))
    return Evidence(job.id, job.state, job.reason, placed, tuple(hosts))


def _lines(job: JobStatus, said: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the ranks and the launcher have said of late."""
    texts = [job.reason]
    for one in said.values():
        texts += [str(one.get("output") or ""), *(str(rank.get("tail", "")) for rank in one.get("ranks", ()))]
    return [line for text in texts for line in text.splitlines()]


def _known(lines: list[str]) -> tuple[Known, ...]:
    """The errors of the catalogue that stand in the output."""
    try:
        match: Callable[[Iterable[str]], Iterable[Any]] = importlib.import_module(_KNOWN).match
    except ModuleNotFoundError:
        return ()
    return tuple(Known(one.name, one.what, one.fix) for one in match(lines))


def bundle_files(answer: Answer, report: str, result: Mapping[str, Any]) -> dict[str, bytes]:
    """Return what a report should have with it, by name; everything in it has been masked.

    Args:
        report: what people were shown.
        result: the same as JSON has it.
    """
    files = {
        "report.txt": report.encode(),
        "why.json": (json.dumps(result, indent=2) + "\n").encode(),
        "version.txt": f"toolkit {__version__}\n".encode(),
    }
    for name, one in answer.said.items():
        plain = {key: value for key, value in one.items() if key not in ("output", "ras", "lease")}
        plain["ranks"] = [
            {key: value for key, value in rank.items() if key not in ("tail", "dumps")}
            for rank in one.get("ranks", ())
        ]
        files[f"hosts/{name}.json"] = (json.dumps(plain, indent=1) + "\n").encode()
        for key, place in (("output", "output.log"), ("ras", "nccl-ras.txt"), ("lease", "lease.log")):
            if one.get(key):
                files[f"hosts/{name}/{place}"] = str(one[key]).encode()
        for rank in one.get("ranks", ()):
            files[f"hosts/{name}/rank-{rank['rank']}.log"] = str(rank.get("tail", "")).encode()
            for dump, data in (rank.get("dumps") or {}).items():
                with suppress(ValueError):
                    files[f"hosts/{name}/{dump.replace('/', '_')}"] = base64.b64decode(data)
    return files
