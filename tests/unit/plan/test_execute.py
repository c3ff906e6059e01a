"""Plans carried out for real, with this machine in the part of the hosts."""

from __future__ import annotations

import gzip
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import toolkit.plan.execute
from tests.unit import cluster_world as world
from tests.unit.hosts_here import HostHere, Interrupting, execute, hosts, tree
from toolkit.api.executors import EXECUTORS
from toolkit.cluster.session import Session
from toolkit.core.command import Command, Kind, Ref, Result, command, script
from toolkit.core.engines import ENGINE_FAILED
from toolkit.core.report import FailureCause, Report
from toolkit.errors import Unreachable
from toolkit.plan import steps as kinds
from toolkit.plan.context import Advance, Context, Verdict
from toolkit.plan.execute import Event, PhaseStarted, PlanInterrupted, StepEnded, StepStarted
from toolkit.plan.show import report_text
from toolkit.plan.steps import Failure, File, Folder, Phase, Plan, Run, Stamp, Step, Upload, WaitFor

YES, NO = command("true"), command("false")


def plan(*phases: tuple[Step, ...]) -> Plan:
    return Plan("p", tuple(Phase(f"phase{n}", steps) for n, steps in enumerate(phases)))


def alone(step: Step) -> Report:
    return execute(plan((step,)), hosts(step.host))


def touch(path: Path, host: str = "a", **more: object) -> Run:
    made = Run(
        host, f"make {path.name}", command("touch", str(path)), unless=command("test", "-e", str(path))
    )
    return replace(made, **more)  # type: ignore[arg-type]


def saving(host: str, name: str, printed: str, kind: Kind = Kind.CONTAINER_ID) -> Run:
    """Return a step that saves what it prints."""
    return Run(host, "key", YES, reads=command("printf", "%s", printed), saves=name, kind=kind)


def statuses(report: Report) -> list[str]:
    return [outcome.status for outcome in report.outcomes]


def test_every_kind_of_step_has_an_executor() -> None:
    assert set(EXECUTORS) == set(kinds.Step.__args__)


def test_a_plan_runs_with_the_executors_that_it_is_given() -> None:
    step = Run("a", "count", YES)
    seen: list[object] = []

    def count(step: Run, context: Context, advance: Advance) -> Verdict:
        seen.append(step)
        return Verdict("ok", "counted")

    runner = HostHere("a")
    (outcome,) = toolkit.plan.execute.execute(plan((step,)), {"a": runner}, {Run: count}).outcomes
    assert (outcome.detail, seen, runner.ran) == ("counted", [step], [])
    session = Session(world.inventory(), executors={Run: count})
    session.facts, session.runners = {"a": world.facts("a")}, {"a": runner}  # type: ignore[dict-item]
    session.execute(plan((step,)))
    assert seen == [step, step]


def test_a_step_whose_unless_holds_is_skipped(tmp_path: Path) -> None:
    step = touch(tmp_path / "x")
    first, second = alone(step), alone(step)
    assert (statuses(first), first.changes) == (["ok"], 1)
    assert (statuses(second), second.changes, second.ok) == (["skipped"], 0, True)


def test_what_a_step_reads_is_there_whether_it_ran_or_not(tmp_path: Path) -> None:
    path = tmp_path / "key pair"
    step = Run(
        "a",
        "make a key",
        script('echo noise; printf "  secret\\n" >"$1"', str(path)),
        unless=command("test", "-s", str(path)),
        reads=command("cat", str(path)),
        saves="key",
    )
    for status in ("ok", "skipped"):
        (outcome,) = alone(step).outcomes
        assert (outcome.status, outcome.output) == (status, "secret")


def test_a_value_that_the_command_prints_is_not_read_again(tmp_path: Path) -> None:
    path, reads = tmp_path / "id", tmp_path / "reads"
    step = Run(
        "a",
        "start",
        script('echo value | tee "$1"', str(path)),
        unless=command("test", "-s", str(path)),
        reads=script('echo x >>"$2"; cat "$1"', str(path), str(reads)),
        prints=True,
        saves="id",
    )
    for status, count in (("ok", 0), ("skipped", 1)):
        (outcome,) = alone(step).outcomes
        assert (outcome.status, outcome.output) == (status, "value")
        assert (len(reads.read_text()) if reads.exists() else 0) == 2 * count
    failed = replace(step, command=script("echo value; exit 3"), unless=None)
    assert statuses(alone(failed)) == ["failed"] and reads.read_text() == "x\n"


def test_a_failure_of_the_engine_is_tried_once_more(tmp_path: Path) -> None:
    def step(fails: int) -> Run:
        text = 'echo x >>"$1"; [ $(wc -l <"$1") -gt "$2" ] || { echo "runc: reset by peer" >&2; exit 125; }'
        action = script(text, str(tmp_path / f"tries-{fails}"), str(fails))
        return Run("a", "start", action, again=ENGINE_FAILED)

    (first,) = alone(step(1)).outcomes
    assert (
        first.status == "ok"
        and "the second attempt succeeded after the first attempt failed: runc: reset" in first.detail
    )
    (second,) = alone(step(2)).outcomes
    assert second.status == "failed" and (tmp_path / "tries-2").read_text() == "x\nx\n"
    (other,) = alone(replace(step(9), again=(7,))).outcomes
    assert other.status == "failed" and (tmp_path / "tries-9").read_text() == "x\n"


def test_no_word_makes_a_step_run_twice(tmp_path: Path) -> None:
    tries = tmp_path / "tries"
    text = 'echo x >>"$1"; echo "OCI runtime exec failed: ttrpc: closed: text file busy"; exit 1'
    for again in ((), ENGINE_FAILED):
        (outcome,) = alone(Run("a", "t", script(text, str(tries)), again=again)).outcomes
        assert outcome.status == "failed" and tries.read_text() == "x\n"
        tries.unlink()


def test_a_read_that_fails_fails_the_step(tmp_path: Path) -> None:
    report = alone(Run("a", "t", command("true"), reads=command("cat", str(tmp_path / "absent")), saves="x"))
    assert statuses(report) == ["failed"]
    assert "absent" in report.outcomes[0].detail


def test_standard_input_reaches_the_command_and_not_the_check(tmp_path: Path) -> None:
    out = tmp_path / "out"
    greedy = script("cat >/dev/null; false")
    put = Command(("sh", "-c", 'cat >"$1"', "sh", str(out)), b"fed\n")
    assert statuses(alone(Run("a", "t", put, unless=greedy, reads=YES))) == ["ok"]
    assert out.read_bytes() == b"fed\n"


def test_a_failure_says_what_the_command_said() -> None:
    step = Run("a", "start it", script("echo one; echo two >&2; exit 3"), fix="look there")
    (outcome,) = alone(step).outcomes
    assert (outcome.status, outcome.detail, outcome.fix) == ("failed", "one | two", "look there")
    (silent,) = alone(Run("a", "t", command("false"))).outcomes
    assert "exited with status 1 and printed nothing" in silent.detail
    (missing,) = alone(Run("a", "t", command("/no/such/program"))).outcomes
    assert missing.status == "failed" and "/no/such/program" in missing.detail


def test_success_is_a_status_and_not_an_output() -> None:
    assert statuses(alone(Run("a", "t", script("echo ERROR: failed >&2")))) == ["ok"]


def test_a_command_that_is_late_is_a_failure() -> None:
    (outcome,) = alone(Run("a", "t", command("sleep", "5"), timeout=0.1)).outcomes
    assert outcome.status == "failed" and "did not finish within" in outcome.detail


@pytest.mark.parametrize("status", [213, 214, 215])
def test_our_own_statuses_come_from_our_own_scripts_alone(status: int) -> None:
    """A program may end with any number: only a check that holds makes a step skipped."""
    end = script(f"exit {status}")
    for step in (Run("a", "t", end), Run("a", "t", end, unless=NO), Run("a", "t", end, reads=YES)):
        assert statuses(alone(step)) == ["failed"]


# Upload


def upload(folder: Path, *, text: str = "one\n", host: str = "a") -> Upload:
    return Upload(
        host,
        "write",
        (
            File(str(folder / "plain file"), (text,)),
            File(str(folder / "in_place"), (text,), 0o644, in_place=True),
            File(str(folder / "program's"), ("#!/bin/sh\n",), 0o755),
            File(str(folder / "empty"), ()),
        ),
    )


def test_files_are_written_with_content_and_mode_only_once(tmp_path: Path) -> None:
    begun = int(time.time())
    assert statuses(alone(upload(tmp_path))) == ["ok"]
    first = tree(tmp_path)
    # Python recognizes a changed module by its time.
    assert all(path.stat().st_mtime >= begun for path in tmp_path.iterdir())
    assert {name: (f[0], f[1]) for name, f in first.items()} == {
        "plain file": (b"one\n", 0o600),
        "in_place": (b"one\n", 0o644),
        "program's": (b"#!/bin/sh\n", 0o755),
        "empty": (b"", 0o600),
    }
    assert statuses(alone(upload(tmp_path))) == ["skipped"]
    assert tree(tmp_path) == first


def test_only_what_changed_is_written(tmp_path: Path) -> None:
    alone(upload(tmp_path))
    before = tree(tmp_path)
    report = alone(upload(tmp_path, text="two\n"))
    after = tree(tmp_path)
    assert report.outcomes[0].detail == "wrote 2 of 4 files"
    assert [n for n in after if after[n] != before[n]] == ["in_place", "plain file"]
    assert after["in_place"][0] == after["plain file"][0] == b"two\n"
    # A file that is bind-mounted alone keeps its inode, any other is replaced in one move.
    assert after["in_place"][2] == before["in_place"][2]
    assert after["plain file"][2] != before["plain file"][2]


def test_the_programs_of_all_hosts_are_compressed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress, sizes = gzip.compress, []

    def counted(data: bytes, *level: int, mtime: int) -> bytes:
        sizes.append(len(data))
        return compress(data, *level, mtime=mtime)

    monkeypatch.setattr(gzip, "compress", counted)
    text = f"{tmp_path}\n" * 10_000
    for host in ("a", "b", "c"):
        (tmp_path / host / "inside").mkdir(parents=True)
        own = File(f"{tmp_path}/{host}/name", (host,))
        shared = Folder(f"{tmp_path}/{host}/inside", (File("run.py", (text,)),))
        assert statuses(alone(Upload(host, "files", (own,), (shared,)))) == ["ok"]
        assert (tmp_path / host / "inside/run.py").read_text() == text
        assert (tmp_path / host / "name").read_text() == host
    assert sum(size > len(text) for size in sizes) == 1


def test_a_mode_that_is_wrong_is_put_right(tmp_path: Path) -> None:
    alone(upload(tmp_path))
    (tmp_path / "plain file").chmod(0o644)
    assert alone(upload(tmp_path)).outcomes[0].detail == "wrote 1 of 4 files"
    assert (tmp_path / "plain file").stat().st_mode & 0o777 == 0o600


def test_contents_stand_on_no_command_line(tmp_path: Path) -> None:
    runner = HostHere("a")
    execute(plan((upload(tmp_path, text="hush-hush"),)), {"a": runner})
    assert runner.ran
    assert not any("hush" in str(token) for c in runner.ran for token in c.argv)


def test_a_file_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (outcome,) = alone(upload(tmp_path / "no such folder")).outcomes
    assert outcome.status == "failed" and "no such folder" in outcome.detail


def test_an_archive_that_is_cut_short_changes_nothing(tmp_path: Path) -> None:
    """The connection is lost during the upload: existing files are unchanged, and no other file is left."""
    alone(upload(tmp_path))
    before = tree(tmp_path)

    class Cut(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            whole = command.stdin
            return super().run(replace(command, stdin=whole and whole[: len(whole) // 2]), timeout)

    (outcome,) = execute(plan((upload(tmp_path, text="two\n"),)), {"a": Cut("a")}).outcomes
    assert outcome.status == "failed"
    assert tree(tmp_path) == before


def test_a_file_that_nobody_may_read_is_written_anew(tmp_path: Path) -> None:
    alone(upload(tmp_path))
    (tmp_path / "plain file").unlink()
    (tmp_path / "plain file").symlink_to("/nowhere")
    assert alone(upload(tmp_path)).outcomes[0].detail == "wrote 1 of 4 files"
    assert (tmp_path / "plain file").read_text() == "one\n"


def test_a_file_of_pieces_names_earlier_outputs(tmp_path: Path) -> None:
    path = tmp_path / "known_hosts"
    keys = tuple(saving(h, "host", h * 64) for h in "ab")
    broken = replace(saving("c", "host", "c" * 64), command=command("false"))
    pieces = ("# keys\n", *(Ref(h, "host", f"{h} ", "\n") for h in ("a", "b", "c")))
    write = Upload("a", "trust", (File(str(path), pieces),))
    use = Run("b", "use", script('printf "%s|" "$@" >"$0"', Ref("a", "host", "a="), Ref("c", "host", "c=")))
    use = replace(
        use,
        command=Command(
            ("sh", "-c", 'printf "%s|" "$@" >"$0"', str(tmp_path / "argv"), *use.command.argv[4:])
        ),
    )
    report = execute(plan((*keys, broken), (write, use)), hosts("a", "b", "c"))
    # The failed host corrupts no other host's file: its line is left out.
    assert path.read_text() == f"# keys\na {'a' * 64}\nb {'b' * 64}\n"
    assert (tmp_path / "argv").read_text() == f"a={'a' * 64}|"
    assert statuses(report) == ["ok", "ok", "failed", "ok", "ok"]


def keys(tmp_path: Path, broken: str, unless: Stamp | None = None) -> Plan:
    """Keys on two hosts, of which some fail, then a step on a third host that uses both keys."""
    made = [
        replace(saving(h, "key", h * 64), command=command("false" if h in broken else "true")) for h in "bc"
    ]
    uses = script('touch "$0"; echo "$@" >>"$0"', Ref("b", "key"), Ref("c", "key"))
    uses = Command((*uses.argv[:3], str(tmp_path / "used"), *uses.argv[4:]))
    return plan(tuple(made), (Run("a", "use both keys", uses, unless=unless),), (touch(tmp_path / "after"),))


def test_a_step_of_which_all_targets_failed_is_not_done(tmp_path: Path) -> None:
    heard: list[Event] = []
    report = execute(keys(tmp_path, "bc"), hosts("a", "b", "c"), heard.append)
    assert [(o.host, o.status) for o in report.outcomes] == [
        ("b", "failed"),
        ("c", "failed"),
        ("a", "not run"),
        ("a", "ok"),
    ]
    assert report.outcomes[2].detail == "an earlier step failed on b, c"
    assert not (tmp_path / "used").exists() and report.outcomes[2] in [
        event.outcome for event in heard if isinstance(event, StepEnded)
    ]


def test_a_step_of_which_some_targets_failed_names_them(tmp_path: Path) -> None:
    outcome = execute(keys(tmp_path, "c"), hosts("a", "b", "c")).outcomes[2]
    what = "toolkit left out hosts on which an earlier step failed: c"
    assert (outcome.status, outcome.detail) == ("ok", what)
    assert (tmp_path / "used").read_text() == "b" * 64 + "\n"


@pytest.mark.parametrize("precheck", [False, True])
@pytest.mark.parametrize(
    ("broken", "stamped", "status"),
    [("", "bc", "skipped"), ("c", "bc", "ok"), ("c", "b", "skipped"), ("bc", "", "not run")],
)
def test_a_stamp_is_no_proof_for_targets_that_failed(
    tmp_path: Path, broken: str, stamped: str, status: str, precheck: bool
) -> None:
    stamp = Stamp(str(tmp_path / "stamp"), (Ref("b", "key"), Ref("c", "key")))
    (tmp_path / "stamp").write_text("".join(host * 64 for host in stamped))
    outcome = execute(keys(tmp_path, broken, stamp), hosts("a", "b", "c"), precheck=precheck).outcomes[2]
    assert outcome.status == status and all(host in outcome.detail for host in broken)


# Types of what is saved

KEY = world.public_key("a")


@pytest.mark.parametrize("precheck", [False, True])
@pytest.mark.parametrize(
    ("kind", "printed"),
    [
        (Kind.PUBLIC_KEY, f"{KEY}\nb,[10.0.0.2]:12345 {world.public_key('c')}"),
        (Kind.PUBLIC_KEY, ""),
        (Kind.CONTAINER_ID, "a" * 63),
        (Kind.ADDRESS, "10.0.0.1 b"),
    ],
)
def test_a_value_of_another_type_fails_its_host_alone(
    tmp_path: Path, kind: Kind, printed: str, precheck: bool
) -> None:
    bad = replace(saving("a", "host", printed, kind), unless=YES)
    good = saving("b", "host", world.public_key("b"), Kind.PUBLIC_KEY)
    lines = tuple(Ref(h, "host", f"{h} ", "\n") for h in "ab")
    write = tuple(Upload(h, "trust", (File(str(tmp_path / h), lines),)) for h in "ab")
    report = execute(plan((bad, good), write), hosts("a", "b"), precheck=precheck)
    assert [(o.host, o.status) for o in report.outcomes] == [
        *(("a", "failed"), ("b", "ok"), ("a", "not run"), ("b", "ok")),
    ]  # fmt: skip
    assert report.outcomes[0].detail.startswith(
        f"the host returned an invalid value: expected {kind.value}, found "
    )
    assert "\n" not in report.outcomes[0].detail
    assert (tmp_path / "b").read_text() == f"b {world.public_key('b')}\n"


def test_text_for_the_report_is_no_value_for_later_steps(tmp_path: Path) -> None:
    report_only = saving("a", "rows", "one\ntwo", Kind.REPORT)
    write = Upload("a", "write", (File(str(tmp_path / "x"), ("x", Ref("a", "rows"))),))
    report = execute(plan((report_only,), (write,)), hosts("a"))
    assert report.outcomes[0].output == "one\ntwo" and (tmp_path / "x").read_text() == "x"


# WaitFor


def wait(ready: Command, alive: Command, deadline: float = 5) -> WaitFor:
    return WaitFor("a", "wait", ready, alive, script("echo first; echo last words"), deadline, "look at it")


def test_what_is_ready_already_is_skipped() -> None:
    assert statuses(alone(wait(YES, NO))) == ["skipped"]


def test_what_becomes_ready_was_waited_for(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    threading.Timer(0.2, flag.touch).start()
    assert statuses(alone(wait(command("test", "-e", str(flag)), YES))) == ["ok"]


def test_what_dies_ends_the_wait_at_once_with_its_last_words() -> None:
    start = time.monotonic()
    (outcome,) = alone(wait(NO, NO, deadline=600)).outcomes
    assert time.monotonic() - start < 300
    assert (outcome.status, outcome.fix) == ("failed", "look at it")
    assert outcome.detail == "the container exited: first | last words"


def test_what_is_late_is_given_up() -> None:
    (outcome,) = alone(wait(NO, YES, deadline=0)).outcomes
    assert outcome.status == "failed"
    assert outcome.detail == "the container was not ready after 0 s; last output: first | last words"


# Several hosts


def test_a_host_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = Run("a", "bad", command("false"))
    report = execute(
        plan(
            (bad, touch(tmp_path / "a1"), touch(tmp_path / "b1", "b")),
            (touch(tmp_path / "a2"), touch(tmp_path / "b2", "b")),
        ),
        hosts("a", "b"),
    )
    assert [(o.host, o.status) for o in report.outcomes] == [
        ("a", "failed"),
        ("a", "not run"),
        ("b", "ok"),
        ("a", "not run"),
        ("b", "ok"),
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b1", "b2"]
    assert not report.ok
    assert [o.host for o in report.failures] == ["a"]


def test_steps_of_a_host_that_did_not_answer_are_not_run(tmp_path: Path) -> None:
    report = execute(plan((touch(tmp_path / "a"), touch(tmp_path / "b", "b"))), hosts("a"))
    assert [(o.host, o.status) for o in report.outcomes] == [("a", "ok"), ("b", "not run")]
    assert not report.ok


def test_a_connection_that_breaks_is_an_outcome_of_its_host(tmp_path: Path) -> None:
    class Gone(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            raise Unreachable("the connection was lost", "again", self.name)

    runners = {**hosts("b"), "a": Gone("a")}
    report = execute(plan((touch(tmp_path / "a"), touch(tmp_path / "b", "b"))), runners)
    assert [(o.host, o.status, o.detail) for o in report.outcomes] == [
        ("a", "failed", "the connection was lost"),
        ("b", "ok", ""),
    ]


def test_hosts_of_a_phase_run_at_once_and_phases_one_after_another(tmp_path: Path) -> None:
    """Each waits for the other's file: one after the other they would wait in vain."""

    def meet(host: str, other: str) -> Run:
        text = 'touch "$1"; n=0; until [ -e "$2" ]; do n=$((n+1)); [ $n -gt 300 ] && exit 1; sleep 0.01; done'
        return Run(host, "meet", script(text, str(tmp_path / host), str(tmp_path / other)))

    after = Run("a", "after", command("test", "-e", str(tmp_path / "b")))
    report = execute(plan((meet("a", "b"), meet("b", "a")), (after,)), hosts("a", "b"))
    assert statuses(report) == ["ok", "ok", "ok"]


def test_equal_steps_have_outcomes_of_their_own() -> None:
    same = Run("a", "same", command("true"))
    assert statuses(execute(plan((same, same), (same,)), hosts("a"))) == ["ok", "ok", "ok"]


def test_events_tell_the_story_in_order(tmp_path: Path) -> None:
    seen: list[Event] = []
    execute(
        plan((touch(tmp_path / "x"), Run("a", "bad", NO), Run("a", "never", YES))), hosts("a"), seen.append
    )
    told = [
        (type(e).__name__, getattr(e, "step", "") or getattr(getattr(e, "outcome", e), "step", ""))
        for e in seen
    ]
    assert told == [
        (PhaseStarted.__name__, ""),
        (StepStarted.__name__, "make x"),
        (StepEnded.__name__, "make x"),
        (StepStarted.__name__, "bad"),
        (StepEnded.__name__, "bad"),
    ]


def test_a_fault_of_ours_is_no_outcome() -> None:
    class Faulty(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        execute(plan((Run("a", "t", YES),)), {"a": Faulty("a")})


def test_ctrl_c_leaves_a_report(tmp_path: Path) -> None:
    closed: list[bool] = []
    runners = {"a": Interrupting("a", "press"), **hosts("b")}
    subject = plan(
        (touch(tmp_path / "a1"), touch(tmp_path / "b1", "b")),
        (Run("a", "press", command("echo", "press")),),
        (touch(tmp_path / "b2", "b"),),
    )
    with pytest.raises(PlanInterrupted) as caught:
        execute(subject, runners, close=lambda: closed.append(True))
    assert statuses(caught.value.report) == ["ok", "ok", "not run", "not run"]
    assert caught.value.exit_code == 130
    assert closed == [True]
    assert not (tmp_path / "b2").exists()


class Cut(HostHere):
    """A host whose connection breaks in a step: at once, or when this side closes it."""

    def __init__(self, name: str, at_once: bool = False) -> None:
        super().__init__(name)
        self.at_once = at_once
        self.busy, self.closed = threading.Event(), threading.Event()

    def run(self, command: Command, timeout: float | None = None) -> Result:
        self.busy.set()
        assert self.at_once or self.closed.wait(30)
        raise Unreachable("the connection was lost", "wait for the host", self.name)


class Pressing(HostHere):
    """A host at which the person presses Ctrl-C once another one is in its step."""

    def __init__(self, name: str, other: Cut) -> None:
        super().__init__(name)
        self.other = other

    def run(self, command: Command, timeout: float | None = None) -> Result:
        assert self.other.busy.wait(30)
        raise KeyboardInterrupt


@pytest.mark.parametrize("at_once", [False, True])
def test_what_an_interrupt_cuts_off_is_no_lost_connection(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the connection breaks first, as a tunnel in the same terminal does that Ctrl-C ends."""
    monkeypatch.setattr(toolkit.plan.execute, "_INTERRUPT_S", 30.0, raising=False)
    cut = Cut("b", at_once)

    def close() -> None:
        cut.closed.set()
        for thread in threading.enumerate():  # until each has said what came of its step
            if thread.name.startswith("host"):
                thread.join(30)

    said: list[Event] = []
    subject = plan((Run("a", "press", YES), Run("b", "work", YES), Run("b", "later", YES)))
    with pytest.raises(PlanInterrupted) as caught:
        execute(subject, {"a": Pressing("a", cut), "b": cut}, said.append, close)
    report = caught.value.report
    assert statuses(report) == ["not run"] * 3 and not report.failures and not report.ok
    assert [o.cause for o in report.outcomes] == [*[FailureCause.INTERRUPTED] * 2, FailureCause.OTHER]
    assert not [event for event in said if isinstance(event, StepEnded)]
    text = report_text(report)
    assert "b: interrupted at work" in text and "lost" not in text and "not finished" in text


def test_ctrl_c_does_not_wait_for_an_object_that_steps_share() -> None:
    """An engine can need minutes to export an image, and the interpreter waits for the threads of hosts."""
    begun, end, closed = threading.Event(), threading.Event(), threading.Event()
    made: list[int] = []

    def make() -> SimpleNamespace:
        made.append(1)
        begun.set()
        assert end.wait(30)
        return SimpleNamespace(close=closed.set)

    def work(step: Run, context: Context, advance: Advance) -> Verdict:
        if step.host == "a":
            assert begun.wait(30)
            raise KeyboardInterrupt
        context.share("image", make)
        return Verdict("ok")

    subject = plan((Run("a", "press", YES), Run("b", "send", YES), Run("c", "send", YES)))
    try:
        with pytest.raises(PlanInterrupted):
            toolkit.plan.execute.execute(subject, hosts("a", "b", "c"), {Run: work})
        left = [thread for thread in threading.enumerate() if thread.name.startswith("host")]
        for thread in left:
            thread.join(10)
        assert not any(thread.is_alive() for thread in left)
    finally:
        end.set()
    assert closed.wait(30), "an object that is made afterwards is closed"
    assert made == [1], "no other step makes it once more"


def test_a_second_ctrl_c_while_connections_close_leaves_the_report() -> None:
    pressed = [KeyboardInterrupt(), KeyboardInterrupt()]
    closed: list[bool] = []

    def close() -> None:
        if pressed:
            raise pressed.pop()
        closed.append(True)

    with pytest.raises(PlanInterrupted) as caught:
        execute(plan((Run("a", "press", command("press")),)), {"a": Interrupting("a", "press")}, close=close)
    assert closed == [True], "what was cut short is done again"
    assert [o.cause for o in caught.value.report.outcomes] == [FailureCause.INTERRUPTED]


def test_a_connection_that_is_lost_without_an_interrupt_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit.plan.execute, "_INTERRUPT_S", 0.0, raising=False)
    (outcome,) = execute(plan((Run("b", "work", YES),)), {"b": Cut("b", at_once=True)}).outcomes
    assert (outcome.status, outcome.detail, outcome.fix) == (
        "failed",
        "the connection was lost",
        "wait for the host",
    )


def test_a_failure_that_is_known_is_told_in_our_words() -> None:
    known = (Failure("no such thing", "not this one", ""), Failure(r"code \d+", "it is broken", "mend it"))
    step = Run("a", "start", script("echo 'engine: code 42' >&2; exit 3"), failures=known, fix="look")
    (outcome,) = execute(Plan("p", (Phase("q", (step,)),)), hosts("a")).outcomes
    assert outcome.detail == "it is broken (engine: code 42)" and outcome.fix == "mend it"
    (outcome,) = execute(Plan("p", (Phase("q", (replace(step, failures=known[:1]),)),)), hosts("a")).outcomes
    assert outcome.detail == "engine: code 42" and outcome.fix == "look"


def test_a_disk_that_was_full_is_that_of_the_files(tmp_path: Path) -> None:
    """The partial files are removed, so no disk is full any more when the host is queried."""

    class Full(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            if command.stdin:
                return Result(2, "", "tar: 0/one: Cannot write: No space left on device", 0.1)
            if "DockerRootDir" in command.line():
                state = "disk 64 4 60 8% /state|files 9 1 8 9% /state"
                engine = "disk 90000 5 80000 1% /images|files 9 1 8 9% /images"
                printed = f"room|{tmp_path}/plain file|{state}\nroom|/var/lib/docker|{engine}\n"
                return Result(0, printed, "", 0.1)
            return super().run(command, timeout)

    (outcome,) = execute(plan((upload(tmp_path),)), {"a": Full("a")}).outcomes
    assert outcome.detail.startswith("the disk was full (now 61 kB free of 66 kB on /state): tar: ")
    assert "free space on /state" in outcome.fix


def test_a_path_inside_a_layer_names_no_disk_of_the_host() -> None:
    """Docker names the path in the archive that it unpacks; only the engine's folder was full."""

    class Full(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            if "DockerRootDir" in command.line():
                layer = "disk 90000000 5 80000000 1% /|files 9 1 8 9% /"
                engine = "disk 900 5 800 1% /images|files 9 1 8 9% /images"
                printed = f"room|/blobs/sha256/19|{layer}\nroom|/images|{engine}\n"
                return Result(0, printed, "", 0.1)
            return Result(1, "", "write /blobs/sha256/19: no space left on device", 0.1)

    step = Run("a", "load", script("docker load"))
    (outcome,) = execute(Plan("p", (Phase("q", (step,)),)), {"a": Full("a")}).outcomes
    assert "on /images): write /blobs/sha256/19" in outcome.detail and "free space on /images" in outcome.fix
