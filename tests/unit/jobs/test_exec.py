"""`transport: exec`: no sshd, no key, and a job of which each host has a part."""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit import cluster_world as world
from tests.unit.container_world import JOB, PATIENCE_S, World, host_entry, python, rank_env, wait_for
from tests.unit.each import for_each
from toolkit.api.connection import Connection
from toolkit.cli.common import connection_of
from toolkit.cluster import session as api
from toolkit.cluster.containers import cluster_container
from toolkit.cluster.layout import Observed, make_layout
from toolkit.container.job import exec_mode
from toolkit.container.job import stop as stop_program
from toolkit.core.code import CodeTree
from toolkit.core.command import TIMED_OUT, Command, Result
from toolkit.core.finding import Finding
from toolkit.core.report import Report
from toolkit.core.runner import Sink
from toolkit.errors import BadInput, NotReady, ToolkitError, Unreachable
from toolkit.jobs import control as jobs
from toolkit.jobs import exec_mode as exec_jobs
from toolkit.jobs import logs, records
from toolkit.jobs.exec_mode import Parts, all_parts
from toolkit.jobs.executors import start_daemons
from toolkit.jobs.launcher import Start, without_ssh
from toolkit.jobs.logs import Excerpt, follow
from toolkit.jobs.plan import plan_job
from toolkit.jobs.request import Request, check_request
from toolkit.jobs.status import shifted, together
from toolkit.lifecycle.renderings import ssh_files
from toolkit.lifecycle.up import plan_up
from toolkit.plan.steps import Run, SendCode, StartDaemons, StartJob, Upload
from toolkit.protocol.decode import decode
from toolkit.protocol.jobs import JobRow, Record, SessionAnswer, Status

TEXT = f"{world.HOSTS}{world.EXEC}"


# The hosts file and the plan


def test_a_launcher_of_auto_that_needs_ssh_is_replaced() -> None:
    assert world.inventory(TEXT).launcher == world.inventory().launcher == "auto"
    assert world.inventory(f"{TEXT}launcher: torchrun\n").launcher == "torchrun"
    auto = Start("horovodrun", ("python", "a.py"), why="a.py imports horovod")
    assert without_ssh(auto).launcher == "mpirun"
    assert without_ssh(replace(auto, why="")).launcher == "horovodrun", "a person has named it"


def test_settings_that_need_ssh_are_refused_with_a_fix() -> None:
    with pytest.raises(BadInput) as caught:
        world.inventory(f"{TEXT}launcher: horovodrun\nworker_port: 2222\nspares: [cpu3]\n")
    said = {problem.path: problem.message for problem in caught.value.problems}
    assert said.keys() == {"launcher", "worker_port", "spares"}
    assert "write mpirun" in said["launcher"]
    with pytest.raises(BadInput) as caught:
        check_request(world.inventory(TEXT), Request(("true",), launcher="ray", max_restarts=2))
    assert [problem.path for problem in caught.value.problems] == ["--launcher", "--max-restarts"]


def test_up_makes_no_key_and_nothing_listens() -> None:
    place = world.layout(TEXT)
    plan = plan_up(place, world.INSIDE)
    assert [phase.title for phase in plan.phases] == ["image", "files", "containers", "record"]
    written = {file.path for step in plan.steps if isinstance(step, Upload) for file in step.files}
    assert not [path for path in written if "ssh" in path or "key" in path or "known_hosts" in path]
    for host in place.places:
        container = cluster_container(place, host)
        assert container.argv == ("sleep", "infinity") and not container.cap_add
        assert "toolkit.port" not in dict(container.labels)
        assert not [mount for mount in container.mounts if "ssh" in mount.target]
    with pytest.raises(BadInput, match="no SSH configuration"):
        ssh_files(place)


def test_what_another_transport_has_left_is_removed() -> None:
    plan = plan_up(world.layout(TEXT), world.INSIDE)
    make = [
        step for step in plan.steps if isinstance(step, Run) and step.title == "create the state directories"
    ]
    for step in make:
        removed = str(step.command.argv).partition("'--'")[0]
        for name in (
            "id_ed25519'",
            "ssh_host_ed25519_key'",
            "authorized_keys'",
            "known_hosts'",
            "sshd_config'",
        ):
            assert name in removed, (step.host, name)


def test_a_busy_port_is_nobody_s_business() -> None:
    said = {
        name: replace(facts, listening=(("0.0.0.0", 12345),)) for name, facts in world.cluster_facts().items()
    }
    assert make_layout(world.inventory(TEXT), Observed(said)).port == 0


def test_a_main_without_ranks_has_no_part_of_what_starts_elsewhere() -> None:
    hosts = world.job().hosts[1:]
    up = make_layout(world.inventory(TEXT), Observed(world.facts_when_up()))
    for launcher, places in (("torchrun", ["gpu2", "cpu3"]), ("mpirun", ["gpu1", "gpu2", "cpu3"])):
        plan = plan_job(up, replace(world.job(launcher, hosts), transport="exec"), "", CodeTree())
        assert [step.host for step in plan.steps if isinstance(step, SendCode)] == places


def test_who_is_started_where() -> None:
    plans = world.plans()
    flat = [step for step in plans["run-exec-torchrun"].steps if isinstance(step, StartJob)]
    assert [step.host for step in flat] == ["gpu1", "gpu2", "cpu3"]
    assert not [step for step in plans["run-exec-torchrun"].steps if isinstance(step, StartDaemons)]
    by_mpi = plans["run-exec"].steps
    assert [step.host for step in by_mpi if isinstance(step, StartJob)] == ["gpu1"]
    (daemons,) = [step for step in by_mpi if isinstance(step, StartDaemons)]
    worker = "toolkit-demo-worker"
    assert daemons.host == "gpu1" and daemons.others == (("gpu2", worker), ("cpu3", worker))


def test_each_supervisor_gets_the_variables_of_its_own_host_alone() -> None:
    plans = world.plans()
    own = {"gpu1": {}, "gpu2": {"gpu2": {"OMP_NUM_THREADS": "4"}}, "cpu3": {}}
    flat = [step for step in plans["run-exec-torchrun"].steps if isinstance(step, StartJob)]
    assert {step.host: json.loads(step.variables)["hosts"] for step in flat} == own
    by_mpi = plans["run-exec"].steps
    (start,) = [step for step in by_mpi if isinstance(step, StartJob)]
    (daemons,) = [step for step in by_mpi if isinstance(step, StartDaemons)]
    texts = {start.host: start.variables, **dict(zip(dict(daemons.others), daemons.variables, strict=True))}
    assert {host: json.loads(text)["hosts"] for host, text in texts.items()} == own
    assert all("s3cret" in text for text in texts.values()) and "s3cret" not in repr(plans)


class Talk:
    """A container session that answers in this order, and records its messages."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers, self.told = list(answers), list[Any]()

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    def receive(self, about: str, seconds: float | None = None) -> SessionAnswer:
        return decode(SessionAnswer, self.answers.pop(0))


def test_a_host_gets_variables_with_its_daemon_alone() -> None:
    step = StartDaemons("gpu1", "start", "main", JOB, (("gpu2", "w"), ("gpu3", "w")), ("of 2", "of 3"))
    talks = {"gpu2": Talk({"started": JOB}), "gpu3": Talk()}
    # The launcher has ended before it wanted anything of gpu3.
    talks["gpu1"] = Talk({"host": "gpu2", "command": "orted"}, {"done": True})
    container_sessions = SimpleNamespace(open=lambda runner, container: talks[runner])
    context: Any = SimpleNamespace(
        container_sessions=container_sessions, runners={name: name for name in talks}
    )
    assert start_daemons(step, context, lambda done, total: None).detail == "started 1 of 2 daemons"
    start = {"do": "start", "job": JOB, "daemon": "orted", "variables": "of 2"}
    assert (talks["gpu2"].told, talks["gpu3"].told) == ([start], [])
    assert talks["gpu1"].told == [{"do": "asks", "job": JOB, "hosts": ["gpu2", "gpu3"]}, {"error": ""}]


# One status of several


def part(state: str, code: int | None = None, **more: Any) -> Status:
    about = {"state": state, "exit_code": code, "started": 5.0, "ended": 9.0, "reason": state, "unswept": []}
    ended = {"ended": None} if code is None else {}
    return decode(Status, {**about, "restarts": [], "cause": {}, **ended, **more})


ENDED_BY_OTHERS = {"rank": 0, "exit_code": 143, "ended": 7.9}
RANK = {"rank": 3, "exit_code": 7, "ended": 8.0, "last": ["boom"]}


@for_each(
    ("parts", "state", "code", "reason"),
    [
        ([part("succeeded", 0), part("succeeded", 0)], "succeeded", 0, "succeeded"),
        ([part("succeeded", 0), part("running")], "running", None, ""),
        ([part("starting"), part("starting")], "starting", None, ""),
        ([part("starting"), part("running")], "running", None, ""),
        ([part("failed", 7), part("running")], "running", None, ""),
        # The client that follows has stopped the others.
        ([part("stopped", 143), part("failed", 7)], "failed", 7, "failed"),
        ([part("stopped", 130), part("succeeded", 0)], "stopped", 130, "stopped"),
        ([part("timeout", 124), part("stopped", 143)], "timeout", 124, "timeout"),
        ([part("lost"), part("succeeded", 0)], "lost", None, "lost"),
        # A rank explains more than a launcher that has lost it, even when that was quicker.
        ([part("failed", 1, ended=7.0), part("failed", 7, cause=RANK)], "failed", 7, "failed"),
        # Ranks that a launcher has ended, as it had lost one, say nothing of why.
        (
            [
                part("failed", 7, cause=RANK),
                part("failed", 143, cause={**RANK, "exit_code": 143, "ended": 7.9}),
            ],
            *("failed", 7, "failed"),
        ),
        # What fails after a person has asked for the end has failed of that.
        ([part("stopped", 130, asked=7.0), part("failed", 7, cause=RANK)], "stopped", 130, "stopped"),
        ([part("stopped", 130, asked=8.5), part("failed", 7, cause=RANK)], "failed", 7, "failed"),
        # A host that is gone comes before ranks that have lost it.
        ([part("failed", 7, cause=RANK), part("failed", 69, cause={"ended": 0.0})], "failed", 69, "failed"),
    ],
)
def test_the_states_of_the_hosts_determine_the_state_of_a_job(
    parts: list[Status], state: str, code: int | None, reason: str
) -> None:
    for order in (parts, parts[::-1]):
        merged = together({f"gpu{number}": one for number, one in enumerate(order)})
        assert (merged.state, merged.exit_code, merged.reason) == (state, code, reason)


def test_moments_are_held_against_each_other_by_one_clock() -> None:
    # gpu2's clock is a minute ahead: by its own the rank there failed last, and in truth it failed first.
    ahead = part("failed", 7, ended=69.0, started=65.0, cause={**RANK, "ended": 67.0})
    here = part("failed", 1, cause={**RANK, "exit_code": 1, "ended": 7.5})
    assert together({"gpu1": here, "gpu2": ahead}).exit_code == 1
    merged = together({"gpu1": here, "gpu2": shifted(ahead, -60.0)})
    assert (merged.exit_code, merged.started, merged.ended) == (7, 5.0, 9.0)


def test_times_and_leftovers_are_those_of_all() -> None:
    merged = together(
        {
            "gpu1": part("succeeded", 0, started=4.0, ended=8.0),
            "gpu2": part("succeeded", 0, ended=11.0, unswept=["gpu2"]),
        }
    )
    assert (merged.started, merged.ended, merged.unswept) == (4.0, 11.0, ("gpu2",))


class Met:
    """The part of a session that decides which hosts are queried."""

    def __init__(self) -> None:
        self.inventory = world.inventory(TEXT)
        self.errors = dict[str, Any]()
        self.facts: dict[str, Any] = dict.fromkeys(self.inventory.names)
        self.started = dict[str, tuple[str, ...]]()


def test_a_limit_that_is_over_ends_no_part_of_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class Cut:
        """A part whose connection the limit has closed before anything came."""

        def __init__(self, session: Any, host: str, job: str, lines: Any, words: Any, told: Any, until: Any):
            self.told, self.host = told, host

        def start(self) -> None:
            self.told.put((self.host, Unreachable("the connection to the host was closed", "", self.host)))

    ended: list[object] = []
    parts = Parts(JOB, Record(transport="exec"), {name: part("running", None) for name in ("gpu1", "gpu2")})
    monkeypatch.setattr(logs, "_parts", lambda session, job: parts)
    monkeypatch.setattr(logs, "_Part", Cut)
    monkeypatch.setattr(logs, "_is_its_own", lambda session, parts, host: True)
    monkeypatch.setattr(logs, "end_parts", lambda *given: (ended.append(given), {}))
    session: Any = Met()
    assert logs.follow_parts(session, JOB, None, Excerpt(), 0.0) is None
    assert ended == []


def row(state: str, code: int | None, alive: bool = False, **more: Any) -> JobRow:
    hosts = [host_entry(name="gpu1"), host_entry(name="gpu2")]
    record = {"owner": "alice", "launcher": "mpirun", "transport": "exec", "hosts": hosts, "command": ["a"]}
    return JobRow(JOB, alive, part(state, code, **more), decode(Record, record), time.time())


def test_a_job_of_many_parts_is_one_job_with_all_its_hosts() -> None:
    from toolkit.errors import Unreachable

    rows = {"gpu1": [row("succeeded", 0, hosts={"gpu1": [0]})], "gpu2": [row("running", None)], "cpu3": []}
    session: Any = Met()
    (parts,) = all_parts(session, lambda host: rows[host])
    assert parts.status.state == "lost", "the supervisor on gpu2 is gone"
    assert dict(parts.status.hosts) == {"gpu1": (0,), "gpu2": (0,)}
    assert parts.unended == ("gpu2",), "what it has left is still to be swept"
    rows["gpu2"] = [row("running", None, alive=True)]
    (parts,) = all_parts(session, lambda host: rows[host])
    assert (parts.status.state, parts.unended) == ("running", ("gpu2",))

    def ask(host: str) -> list[JobRow]:
        if host == "gpu2":
            raise Unreachable("gone", "", host)
        return rows[host]

    (parts,) = all_parts(session, ask)
    assert (parts.status.state, parts.status.exit_code) == ("unknown", None), (
        "nobody says that gpu2's is over"
    )
    assert parts.status.reason == "hosts of the job did not answer: gpu2" and parts.status.final
    rows["gpu1"] = [row("failed", 7, hosts={"gpu1": [0]})]
    (parts,) = all_parts(session, ask)
    assert (parts.status.state, parts.status.exit_code) == ("failed", 7), "whatever gpu2 says"
    with pytest.raises(Unreachable):
        all_parts(session, lambda host: ask("gpu2"))
    # Only those that were met at all are asked.
    session.facts = {"gpu1": None}
    (parts,) = all_parts(session, ask)
    assert isinstance(parts, Parts) and parts.statuses.keys() == {"gpu1"}


def test_a_late_answer_moves_the_times_of_no_other_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank on gpu1 failed first, and gpu2 answers 5 s later than gpu1."""
    clock, heard = [100.0], threading.Event()

    def now() -> float:
        heard.set()
        return clock[0]

    def ask(host: str) -> list[JobRow]:
        first = host == "gpu1"
        if not first:
            heard.wait(PATIENCE_S)
            clock[0] = 105.0
        cause = {**RANK, "exit_code": 7 if first else 1, "ended": 97.0 if first else 98.0}
        ended = part("failed", cause["exit_code"], cause=cause)
        return [replace(row("failed", 7), status=ended, now=clock[0])]

    monkeypatch.setattr(exec_jobs, "time", SimpleNamespace(time=now))
    session: Any = Met()
    session.facts = dict.fromkeys(("gpu1", "gpu2"))
    (parts,) = all_parts(session, ask)
    assert parts.status.exit_code == 7


# Hosts that report on a job in which they take no part


def reported(
    state: str,
    *hosts: str,
    code: int | None = None,
    launcher: str = "mpirun",
    transport: str = "exec",
    job: str = JOB,
) -> JobRow:
    """A row by whose record these hosts take part in the job."""
    entries = [host_entry(name=host) for host in hosts]
    record = {"owner": "alice", "launcher": launcher, "transport": transport, "hosts": entries}
    return JobRow(job, code is None, part(state, code), decode(Record, record), time.time())


class Reporting:
    """A session whose hosts report these jobs; the part on each host succeeds once it is followed."""

    def __init__(self, **rows: JobRow) -> None:
        self.inventory = world.inventory(TEXT)
        self.rows = rows
        self.facts = {n: f for n, f in world.facts_when_up().items() if n in self.inventory.names}
        self.runners: dict[str, Any] = {
            name: SimpleNamespace(name=name, run=lambda ask, seconds, host=name: self._run(host, ask))
            for name in self.facts
        }
        self.errors = dict[str, ToolkitError]()
        self.closed = False
        self.warned = list[Finding]()
        self.followed, self.ended = list[str](), list[str]()
        self.ends = dict[str, Status]()
        self.container_sessions = SimpleNamespace(
            leave=lambda but="": None,
            ask=lambda host, *about: SimpleNamespace(jobs=self._listed(host)),
        )
        self.started = dict[str, tuple[str, ...]]()

    def _listed(self, host: str) -> tuple[JobRow, ...]:
        return (self.rows[host],) if host in self.rows else ()

    def warn_once(self, finding: Finding) -> None:
        self.warned.append(finding)

    def require_own(self) -> None:
        pass

    def require_some(self) -> None:
        pass

    def container(self, host: str) -> Any:
        if host in self.errors:
            raise self.errors[host]
        return SimpleNamespace(
            name=host,
            run=lambda ask, seconds: self._run(host, ask),
            stream=lambda ask, sink, silence=None: self._stream(host, ask, sink),
        )

    def _run(self, host: str, ask: Command) -> Result:
        return Result(0, json.dumps([plain(one) for one in self._listed(host)]))

    def _stream(self, host: str, ask: Command, sink: Sink) -> Result:
        if "job.stop" in ask.argv:
            self.ended.append(host)
            sink(b"\n\n")  # signs of life while the job ends
            sink(json.dumps(plain(part("stopped", 143))).encode())
            return Result(0)
        self.followed.append(host)
        ended = self.ends.get(host, part("succeeded", 0))
        return Result(0, "", json.dumps({"status": plain(ended), "now": time.time()}))


def plain(value: Any) -> Any:
    """A value of toolkit.protocol as JSON has it."""
    return json.loads(json.dumps(asdict(value)))


def silent(session: Reporting, *hosts: str) -> None:
    for host in hosts:
        session.errors[host] = Unreachable(f"{host} does not answer", "", host)
        del session.facts[host]


def follow_job(session: Any) -> Any:
    return follow(session, JOB, lambda data: None)


FORGED = reported("failed", "gpu1", "gpu2", "cpu3", code=9)


def test_no_host_that_was_not_started_on_can_end_a_job() -> None:
    torchrun = reported("running", "gpu2", launcher="torchrun")
    forged = reported("failed", "gpu2", "cpu3", code=9, launcher="torchrun")
    session: Any = Reporting(gpu2=torchrun, cpu3=forged, gpu1=forged)
    session.started, session.ends = {JOB: ("gpu2",)}, {"cpu3": part("failed", 9, cause=RANK)}
    ended = follow_job(session)
    assert (ended.state, ended.exit_code, dict(ended.hosts)) == ("succeeded", 0, {"gpu2": (0,)})
    assert (session.followed, session.ended) == (["gpu2"], [])
    assert {(one.host, one.subject) for one in session.warned} == {("gpu1", JOB), ("cpu3", JOB)}


def test_output_that_a_broken_connection_has_lost_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the lines that were asked for at first, and with lines of several ranks collapsed as before."""
    asked = list[tuple[str, ...]]()
    now = itertools.count(100.0, 4.0)

    def stream(ask: Command, sink: Any) -> Result:
        asked.append(tuple(map(str, ask.argv)))
        if len(asked) == 1:
            sink(b"step 1\nst")
            raise Unreachable("the connection broke", "", "gpu2")
        sink(b"step 1\nstep 2\n")
        ended = {"status": plain(part("succeeded", 0)), "now": time.time()}
        return Result(0, "", json.dumps(ended))

    session: Any = Reporting(gpu2=reported("running", "gpu2", launcher="torchrun"))
    session.started = {JOB: ("gpu2",)}
    session.container = lambda host: SimpleNamespace(name=host, run=session_run(session, host), stream=stream)
    session.reconnect = lambda host: None
    monkeypatch.setattr(logs, "_PAUSES", (0.0,))
    monkeypatch.setattr(logs.time, "monotonic", lambda: next(now))
    seen = list[bytes]()
    follow(session, JOB, seen.append, Excerpt(tail=50, fold=True))
    assert b"".join(seen) == (
        b"step 1\nst\n[toolkit] the connection to gpu2 is restored; the last lines can appear twice\n"
        b"step 1\nstep 2\n"
    )
    first, second = (words[words.index(JOB) + 1 :] for words in asked)
    assert first == ("--tail", "50", "--fold", "--status")
    assert second == ("--ago", "5.0", "--fold", "--status")


def session_run(session: Any, host: str) -> Any:
    return lambda ask, seconds: session._run(host, ask)


def test_a_start_keeps_the_hosts_of_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    place = make_layout(world.inventory(TEXT), Observed(world.facts_when_up()))
    job = replace(world.job("torchrun", world.job().hosts[1:]), transport="exec")
    plan = plan_job(place, job, "", CodeTree())
    # Later sessions of the same Cluster know it, too: `run` returns before the job has ended.
    monkeypatch.setattr(api.Session, "open", lambda inventory, *more: api.Session(inventory))
    monkeypatch.setattr(api.Session, "execute", lambda *given: Report("run", ()))
    monkeypatch.setattr(jobs, "remember_job", lambda *about: None)
    warned = list[Finding]()
    cluster = Connection(world.inventory(TEXT), warn=warned.append)
    first = cluster.connect()
    monkeypatch.setattr(first.container_sessions, "notify", lambda *about: None)
    jobs.start(first, plan, lambda event: None)
    later = cluster.connect()
    assert later.started == {job.id: ("gpu2", "cpu3")}
    finding = Finding("jobs", "warning", "it is ignored", "", "gpu1", JOB)
    for _ in range(2):
        later.warn_once(finding)
    assert warned == [finding]


def test_a_command_prints_what_a_session_warns_of(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding("jobs", "warning", "the report is ignored", "remove cpu3", "cpu3", JOB)
    connection_of(world.inventory(TEXT), False).warn(finding)
    assert capsys.readouterr().err == f"warning: cpu3: {JOB}: the report is ignored\n  fix: remove cpu3\n"


def test_main_s_record_lists_the_hosts_that_count() -> None:
    running = reported("running", "gpu1", "gpu2")
    for forged in (FORGED, reported("failed", "cpu3", code=9), reported("failed", "gpu1", "gpu2", code=9)):
        session: Any = Reporting(gpu1=running, gpu2=running, cpu3=forged)
        assert (before := records.job_status(session, JOB)).state == "running"
        assert dict(before.hosts).keys() == {"gpu1", "gpu2"}
        session.ends = {"cpu3": part("failed", 9, cause=RANK)}
        ended = follow_job(session)
        assert (ended.state, ended.exit_code) == ("succeeded", 0)
        assert (sorted(session.followed), session.ended) == (["gpu1", "gpu2"], [])
        assert {one.host for one in session.warned} == {"cpu3"}
        jobs.stop(session, JOB)
        assert set(session.ended) == {"gpu1", "gpu2"}


def test_a_host_of_the_job_still_ends_the_others() -> None:
    running = reported("running", "gpu1", "gpu2")
    over = threading.Event()

    class Waiting(Reporting):
        def _stream(self, host: str, ask: Command, sink: Sink) -> Result:
            assert host == "gpu2" or "job.stop" in ask.argv or over.wait(PATIENCE_S)
            said = super()._stream(host, ask, sink)
            if self.ended:
                over.set()
            return said

    session: Any = Waiting(gpu1=running, gpu2=running)
    session.ends = {"gpu1": part("stopped", 143), "gpu2": part("failed", 7, cause=RANK)}
    assert (follow_job(session).exit_code, session.ended, session.warned) == (7, ["gpu1"], [])


def test_without_main_the_hosts_of_a_job_confirm_each_other() -> None:
    running = reported("running", "gpu2", "cpu3", launcher="torchrun")
    session: Any = Reporting(gpu2=running, cpu3=running)
    assert follow_job(session).state == "succeeded" and sorted(session.followed) == ["cpu3", "gpu2"]
    running = reported("running", "gpu1", "gpu2")
    # A record without the host that has it counts for nothing, whatever else it lists.
    session = Reporting(gpu2=running, cpu3=reported("failed", "gpu1", "gpu2", code=9))
    silent(session, "gpu1")
    ended = follow_job(session)
    assert (ended.state, ended.reason) == ("unknown", "hosts of the job did not answer: gpu1")
    assert (session.followed, session.ended) == (["gpu2"], [])


def test_a_stop_waits_as_long_as_its_program_is_alive() -> None:
    """Only the program on the host knows the grace that an earlier `stop` gave."""
    limits = []

    class Host:
        def stream(self, ask: Command, sink: Sink, silence: float) -> Result:
            limits.append(silence)
            return Result(TIMED_OUT, "", f"the command printed nothing for {silence:g} s")

    session: Any = SimpleNamespace(container=lambda host: Host())
    _, errors = exec_jobs.end_parts(session, JOB, ("gpu1",))
    what = f"cannot stop job {JOB}: the command printed nothing for 120 s"
    assert limits == [120] and errors["gpu1"].what == what


@pytest.mark.parametrize(("flags", "seconds"), [((), 1380.0), (("--grace", "1000.0"), 2180.0)])
def test_signs_of_life_do_not_keep_a_stop_waiting_without_end(
    monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], seconds: float
) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(exec_jobs, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))

    class Host:
        def stream(self, ask: Command, sink: Sink, silence: float) -> Result:
            while clock.now < 100_000:
                clock.now += 5.0
                sink(b"\n")
            return Result(0, "{}")

    session: Any = SimpleNamespace(container=lambda host: Host())
    _, errors = exec_jobs.end_parts(session, JOB, ("gpu1",), flags)
    assert (
        errors["gpu1"].what
        == f"cannot stop job {JOB}: the stop program on gpu1 still runs after {seconds:.0f} s"
    )
    assert errors["gpu1"].host == "gpu1" and clock.now == seconds + 5.0


def test_a_stop_program_prints_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    printed = threading.Semaphore(0)
    monkeypatch.setattr(stop_program, "SIGN_S", 0.001)
    monkeypatch.setattr(stop_program, "os", SimpleNamespace(write=lambda *_: printed.release()))
    with stop_program.signs_of_life():
        assert all(printed.acquire(timeout=PATIENCE_S) for _ in range(3))


def test_no_part_ends_as_records_contradict_each_other() -> None:
    for forged in (FORGED, reported("failed", "cpu3", code=9)):
        session: Any = Reporting(gpu2=reported("running", "gpu1", "gpu2"), cpu3=forged)
        silent(session, "gpu1")
        words = "gpu2 and cpu3 have different records of the job"
        found = records.job_status(session, JOB)
        assert (found.state, found.reason) == ("running", words)
        assert dict(found.hosts) == {"gpu2": (0,), "cpu3": (0,)}
        with pytest.raises(NotReady, match=f"cannot follow {JOB}: {words}"):
            follow_job(session)
        assert (session.followed, session.ended) == ([], [])
        session.rows["gpu2"] = reported("succeeded", "gpu1", "gpu2", code=0)
        found = records.job_status(session, JOB)
        assert (found.state, found.exit_code, found.reason) == ("unknown", None, words)
        # A person who ends the job means it wherever it may run.
        session.rows["gpu2"] = reported("running", "gpu1", "gpu2")
        jobs.stop(session, JOB)
        assert set(session.ended) == {"gpu2"}


def test_a_job_that_only_others_are_said_to_have_is_none() -> None:
    session: Any = Reporting(cpu3=reported("running", "gpu1", "gpu2", launcher="torchrun"))
    assert records.known_jobs(session) == [] and records.running_jobs(session) == [JOB]


def test_main_without_ranks_takes_part_in_what_it_starts() -> None:
    session: Any = Reporting(gpu1=reported("running", "gpu2"), gpu2=reported("running", "gpu2"))
    (parts,) = records.job_parts(session)
    assert parts.statuses.keys() == {"gpu1", "gpu2"} and parts.confirmed and not session.warned


def test_main_alone_reports_on_a_job_that_was_started_over_ssh() -> None:
    old = reported("running", "gpu1", "gpu2", transport="ssh")
    session: Any = Reporting(gpu1=old, gpu2=reported("failed", "gpu1", "gpu2", code=9, transport="ssh"))
    (parts,) = records.job_parts(session)
    assert (parts.status.state, [*parts.statuses]) == ("running", ["gpu1"])
    assert parts.taken == {"gpu1": (0,), "gpu2": (0,)}


@for_each(
    ("rows", "taken"),
    [
        # mpirun has not started its daemon there yet.
        ({"gpu1": reported("starting", "gpu1", "gpu2")}, {"gpu1": (0,), "gpu2": (0,)}),
        ({"gpu1": reported("succeeded", "gpu1", "gpu2", code=0)}, {}),
        # Slots of hosts without a record of the job are not taken.
        ({"cpu3": reported("running", "gpu2", "cpu3", launcher="torchrun")}, {"cpu3": (0,)}),
        (
            {
                "gpu2": reported("succeeded", "gpu2", launcher="torchrun", code=0),
                "cpu3": reported("running", "gpu2", "cpu3", launcher="torchrun"),
            },
            {"cpu3": (0,)},
        ),
    ],
)
def test_a_host_takes_no_slots_of_others(rows: dict[str, JobRow], taken: dict[str, tuple[int, ...]]) -> None:
    session: Any = Reporting(**rows)
    assert {host: slots for one in records.taken_slots(session) for host, slots in one.slots.items()} == taken


# Inside


@pytest.fixture
def here(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def exec_job(here: World, **changes: Any) -> Path:
    """A job of three hosts, of which gpu1 is here."""
    hosts = [host_entry(), host_entry(name="gpu2"), host_entry(name="gpu3")]
    return here.job(transport="exec", main="gpu2", hosts=hosts, world_size=3, **changes)


def test_a_host_s_supervisor_sees_a_job_of_one_host(here: World) -> None:
    elsewhere = {"host": "gpu2", "argv": ["false"]}
    own = {"host": "gpu1", "argv": here.rank_argv(), "env": rank_env(0, 3)}
    folder = exec_job(here, launches=[elsewhere, own], command=python("print('here')"))
    code, _, error = here.call("job.supervisor", JOB)
    assert code == 0, error
    status = here.status()
    assert (status["state"], status["hosts"]) == ("succeeded", {"gpu1": [0]})
    assert b"here" in here.log()
    # The job file itself stays what it is on all hosts.
    assert len(json.loads((folder / "job.json").read_text())["hosts"]) == 3


def test_a_daemon_is_started_ended_and_swept_like_any_launch(here: World) -> None:
    folder = exec_job(here, launches=[{"host": "gpu2", "argv": ["mpirun"]}], stall_after=0.1)
    (folder / "daemon.json").write_text(json.dumps({"command": "echo up; sleep 60 & wait"}))
    supervisor = here.start("job.supervisor", JOB)
    wait_for(lambda: here.log() == b"[gpu1] up\n")
    assert here.call("job.stop", JOB)[0] == 0
    supervisor.communicate()
    status = here.status()
    assert (status["state"], status["exit_code"], status["unswept"]) == ("stopped", 143, [])
    assert b"nothing" not in here.log(), "its ranks are heard on main: nobody here calls them silent"
    assert here.call("job.orphans", JOB, "--list")[1] == b"[]\n"


def test_a_part_whose_peers_have_failed_ends_at_once_and_asks_no_launcher(here: World) -> None:
    own = python(
        "import signal, time; signal.signal(15, lambda *_: print('asked')); print('up', flush=True);"
        "time.sleep(60)"
    )
    exec_job(here, launches=[{"host": "gpu1", "argv": own}], grace=60.0)
    supervisor = here.start("job.supervisor", JOB)
    wait_for(lambda: here.log() == b"[gpu1] up\n")
    assert here.call("job.stop", "--failed", JOB)[0] == 0
    supervisor.communicate()
    assert (here.status()["state"], here.status()["exit_code"]) == ("stopped", 143)
    assert here.status()["reason"] == "stopped because the job failed on another host"
    # A launcher in the middle of its own end crashes with a trace when it is asked to end.
    assert b"asked" not in here.log()


def test_a_host_that_was_lost_is_what_the_others_write_down(here: World) -> None:
    exec_job(here, launches=[{"host": "gpu1", "argv": python("import time; time.sleep(60)")}])
    here.start("job.supervisor", JOB)
    wait_for(lambda: here.status()["state"] == "running")
    why = "gpu2 is lost: no answer"
    assert here.call("job.stop", "--failed", "--why", why, "--lost", "gpu2", JOB)[0] == 0
    status = here.status()
    assert (status["state"], status["exit_code"], status["reason"]) == (
        "failed",
        69,
        "gpu2 is lost: no answer",
    )
    assert status["lost_host"] == "gpu2"


def test_a_launcher_is_not_told_before_the_ranks_on_all_hosts_are_over(here: World) -> None:
    # Told of the end, it would kill those on other hosts in the middle of their grace.
    own = python(
        "import signal, time; signal.signal(15, lambda *_: print('asked', flush=True)); time.sleep(60)"
    )
    folder = exec_job(here, launches=[{"host": "gpu1", "argv": own}], grace=20.0)
    supervisor = here.start("job.supervisor", JOB)
    wait_for(lambda: here.status()["state"] == "running")
    said = json.loads(here.call("job.stop", "--ranks", JOB)[1])
    assert said["state"] == "running" and (folder / "ranks-ended").exists()
    time.sleep(0.3)
    assert b"asked" not in here.log() and supervisor.poll() is None
    process = here.start("job.stop", JOB, "--grace", "0.5")
    process.communicate(timeout=PATIENCE_S)
    assert b"asked" in here.log()
    assert (here.status()["state"], here.status()["exit_code"]) == ("stopped", 143)
    assert here.status()["asked"] <= here.status()["ended"]


def test_a_job_that_was_never_started_here_has_nothing_to_stop(here: World) -> None:
    folder = exec_job(here)
    assert here.call("job.stop", "--failed", JOB) == (0, b"{}\n", b"")
    assert not (folder / "status.json").exists()


def test_a_daemon_that_fails_says_whose_it_is(here: World) -> None:
    folder = exec_job(here, launches=[])
    (folder / "daemon.json").write_text(json.dumps({"command": "exit 3"}))
    here.call("job.supervisor", JOB)
    status = here.status()
    assert (status["state"], status["exit_code"]) == ("failed", 3)
    assert status["reason"] == "the daemon of mpirun on gpu1 exited with code 3"


def container_session(here: World) -> Any:
    import subprocess

    program = [sys.executable, "-S", "-E", str(here.root / "inside" / "run.py"), "session"]
    env = {**here.base_env(), "TOOLKIT_ROOT": str(here.root)}
    process = subprocess.Popen(program, stdin=-1, stdout=-1, env=env, text=True, bufsize=1)
    here.started.append(process)  # type: ignore[arg-type]
    return process


def test_what_a_launcher_asks_for_comes_to_the_command_and_its_answer_back(here: World) -> None:
    code = """
import subprocess, sys
asks = [subprocess.Popen([*sys.argv[1:], *words], stderr=subprocess.PIPE) for words in
        (["-x", "gpu2", "orted", "-mca", "a b"], ["gpu3", "orted"])]
for ask in asks:
    print(ask.wait(), ask.stderr.read().decode().strip(), flush=True)
"""
    agent = ("sh", str(here.root / "inside" / "kubexec.sh"))
    folder = exec_job(here, launches=[{"host": "gpu1", "argv": [*python(code), *agent]}])
    supervisor = here.start("job.supervisor", JOB)
    talk = container_session(here)
    talk.stdin.write(json.dumps({"do": "asks", "job": JOB, "hosts": ["gpu2", "gpu3"]}) + "\n")
    heard = {}
    for _ in ("gpu2", "gpu3"):
        said = json.loads(talk.stdout.readline())
        heard[said["host"]] = said["command"]
        talk.stdin.write(json.dumps({"error": "no room there" if said["host"] == "gpu3" else ""}) + "\n")
    assert heard == {"gpu2": "orted -mca a b", "gpu3": "orted"}
    assert json.loads(talk.stdout.readline()) == {"done": True}
    supervisor.communicate()
    first, second = here.log().decode().splitlines()[:2]
    assert first.strip() == "[gpu1] 0"
    assert second == "[gpu1] 255 [toolkit] cannot start orted on gpu3: no room there"
    assert (folder / "asks").stat().st_mode & 0o077 == 0


def test_nobody_waits_for_asks_of_a_launcher_that_is_gone(here: World) -> None:
    exec_job(here, launches=[{"host": "gpu1", "argv": ["false"]}])
    here.call("job.supervisor", JOB)
    talk = container_session(here)
    talk.stdin.write(json.dumps({"do": "asks", "job": JOB, "hosts": ["gpu2"]}) + "\n")
    assert json.loads(talk.stdout.readline()) == {"done": True}


def test_a_launcher_that_asks_for_nothing_is_not_waited_for_for_ever(here: World) -> None:
    folder = exec_job(here, launches=[{"host": "gpu1", "argv": python("import time; time.sleep(60)")}])
    here.start("job.supervisor", JOB)
    wait_for(lambda: here.status()["state"] == "running")
    with pytest.raises(TimeoutError, match="did not request a daemon on gpu2"):
        exec_mode.asked(folder, ["gpu2"], patience=0.05)
    assert not exec_mode.begun(folder, patience=0.05)
    (folder / "logs").mkdir(exist_ok=True)
    (folder / "logs" / "rank-0.run").write_text("{}")
    assert exec_mode.begun(folder, patience=0.05)
    here.call("job.stop", JOB, "--grace", "0")


def test_an_ask_that_nobody_hears_is_given_up(here: World) -> None:
    folder = exec_job(here)
    assert "probably because that command has exited" in exec_mode.ask(folder, "gpu2", "orted", patience=0.05)
