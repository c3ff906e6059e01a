"""All steps are asked at once; what is answered holds until something has changed."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

import toolkit.plan.execute
from tests.unit.hosts_here import HostHere, execute, hosts
from toolkit.core.command import Command, Kind, Ref, Result, command, script
from toolkit.core.report import Report
from toolkit.errors import Unreachable
from toolkit.plan.execute import to_do
from toolkit.plan.show import to_do_text
from toolkit.plan.steps import File, Phase, Plan, Run, Stamp, Step, Upload, WaitFor


def plan(*phases: tuple[Step, ...]) -> Plan:
    return Plan("p", tuple(Phase(f"phase{n}", steps) for n, steps in enumerate(phases)))


def prechecked(one: Plan, runners: dict[str, HostHere]) -> Report:
    return execute(one, runners, precheck=True)


def statuses(report: Report) -> list[str]:
    return [outcome.status for outcome in report.outcomes]


def key_of(host: str, folder: Path) -> Run:
    path = str(folder / f"key of {host}")
    make = script('printf "%s\n" "$2" >"$1"', path, host * 64)
    there = command("test", "-s", path)
    return Run(
        host, "key", make, unless=there, reads=command("cat", path), saves="key", kind=Kind.CONTAINER_ID
    )


def cluster(folder: Path) -> Plan:
    """Keys on two hosts, what is made of both, something to wait for, something to prove."""
    keys = tuple(key_of(host, folder) for host in ("a", "b"))
    both = tuple(Ref(host, "key", f"{host}=", "\n") for host in ("a", "b"))
    files = tuple(
        Upload(host, "known", (File(str(folder / f"known to {host}"), both, 0o644),)) for host in ("a", "b")
    )
    ready = WaitFor(
        "b", "ready", command("test", "-s", str(folder / "known to b")), command("true"), command("true")
    )
    proof = Run("a", "prove", command("true"), unless=Stamp(str(folder / "proved"), both))
    return plan(keys, files, (ready,), (proof,))


def test_a_second_run_asks_each_host_once(tmp_path: Path) -> None:
    one = cluster(tmp_path)
    assert statuses(prechecked(one, hosts("a", "b"))) == ["ok", "ok", "ok", "ok", "skipped", "ok"]
    again = hosts("a", "b")
    report = prechecked(one, again)
    assert (statuses(report), report.changes) == (["skipped"] * 6, 0)
    assert [len(host.ran) for host in again.values()] == [1, 1]
    # The same is found where each step asks on its own, and saved for those that come later.
    apart = execute(one, hosts("a", "b"))
    assert [(o.status, o.output) for o in apart.outcomes] == [(o.status, o.output) for o in report.outcomes]
    assert report.outcomes[0].output == "a" * 64


@pytest.mark.parametrize("lost", ["key of a", "key of b", "known to a", "known to b", "proved"])
def test_what_is_missing_is_made_again_and_what_follows_from_it(lost: str, tmp_path: Path) -> None:
    one = cluster(tmp_path)
    prechecked(one, hosts("a", "b"))
    (tmp_path / lost).unlink()
    report = prechecked(one, hosts("a", "b"))
    assert report.ok and report.changes == 1
    assert statuses(prechecked(one, hosts("a", "b"))) == ["skipped"] * 6


def test_from_the_first_change_on_each_step_asks_on_its_own(tmp_path: Path) -> None:
    """A step removes a file that the precheck of a later step has found."""
    for name in ("there", "gone"):
        (tmp_path / name).touch()
    (tmp_path / "gone").unlink()
    take = script('rm "$1" && touch "$2"', str(tmp_path / "there"), str(tmp_path / "gone"))
    first = Run("a", "take away", take, unless=command("test", "-e", str(tmp_path / "gone")))
    later = Run(
        "b",
        "bring back",
        command("touch", str(tmp_path / "there")),
        unless=command("test", "-e", str(tmp_path / "there")),
    )
    assert statuses(prechecked(plan((first,), (later,)), hosts("a", "b"))) == ["ok", "ok"]
    assert (tmp_path / "there").exists()


def test_answers_are_forgotten_when_a_step_has_taken_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a slow step, another program removes a file that the precheck of a later step has found."""
    monkeypatch.setattr(toolkit.plan.execute, "STALE_S", 0.1)
    (tmp_path / "there").touch()
    key = key_of("a", tmp_path)
    look = script('sleep 0.3; rm "$1"', str(tmp_path / "there"), Ref("a", "key"))
    slow = Run("a", "look for long", command("false"), unless=look)
    there = command("test", "-e", str(tmp_path / "there"))
    later = Run("b", "bring back", command("touch", str(tmp_path / "there")), unless=there)
    execute(plan((key,)), hosts("a"))
    report = prechecked(plan((key,), (slow,), (later,)), hosts("a", "b"))
    assert statuses(report) == ["skipped", "skipped", "ok"] and (tmp_path / "there").exists()


def test_a_step_that_asks_by_earlier_outputs_asks_on_its_own(tmp_path: Path) -> None:
    key = key_of("a", tmp_path)
    asked = script('[ "$1" = "k=$2" ]', Ref("a", "key", before="k="), "a" * 64)
    use = Run("a", "use", command("false"), unless=asked)
    execute(plan((key,)), hosts("a"))
    assert statuses(prechecked(plan((key,), (use,)), hosts("a"))) == ["skipped", "skipped"]


def test_a_host_that_gives_no_answer_is_asked_step_by_step(tmp_path: Path) -> None:
    class Hangs(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            if not self.ran:
                self.ran.append(command)
                return Result(124, "", "the command did not finish within 60 s", 60.0)
            return super().run(command, timeout)

    class Lost(HostHere):
        def run(self, command: Command, timeout: float | None = None) -> Result:
            raise Unreachable("the connection was lost", "", self.name)

    one = cluster(tmp_path)
    execute(one, hosts("a", "b"))
    assert statuses(prechecked(one, {"a": Hangs("a"), "b": HostHere("b")})) == ["skipped"] * 6
    report = prechecked(one, {"a": HostHere("a"), "b": Lost("b")})
    assert [o.host for o in report.failures] == ["b"]
    assert report.failures[0].detail == "the connection was lost"


def test_what_the_facts_say_is_not_asked(tmp_path: Path) -> None:
    known = replace(key_of("a", tmp_path), known="f" * 64)
    ready = WaitFor("a", "ready", command("false"), command("true"), command("true"), known=True)
    after = Upload("a", "write", (File(str(tmp_path / "file"), (Ref("a", "key"),)),))
    (tmp_path / "file").write_text("f" * 64)
    (tmp_path / "file").chmod(0o600)
    there = hosts("a")
    assert statuses(prechecked(plan((known,), (ready,), (after,)), there)) == ["skipped"] * 3
    assert len(there["a"].ran) == 1


def test_files_that_the_facts_list_are_not_asked_for(tmp_path: Path) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    for file in (same, other):
        file.write_text("text")
        file.chmod(0o600)
    sum_ = hashlib.sha256(b"text").hexdigest()
    write = Upload("a", "write", (File(str(same), ("text",)),), known=f"0\n{sum_}\n600")
    there = hosts("a")
    assert statuses(prechecked(plan((write,)), there)) == ["skipped"] and there["a"].ran == []
    changed = replace(write, files=(*write.files, File(str(other), ("new",))))
    assert statuses(prechecked(plan((changed,)), hosts("a"))) == ["ok"] and other.read_text() == "new"


def test_no_query_precedes_the_files_of_a_host_that_has_none(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write = Upload("a", "write", (File(str(file), ("new",)),), known="")
    there = hosts("a")
    assert statuses(execute(plan((write,)), there)) == ["ok"] and file.read_text() == "new"
    assert len(there["a"].ran) == 1
    # Old facts, or a file that was written meanwhile.
    assert statuses(execute(plan((write,)), hosts("a"), recent=False)) == ["skipped"]
    file.write_text("old")
    assert statuses(execute(plan((write,)), hosts("a"))) == ["ok"] and file.read_text() == "new"


def test_old_facts_are_asked_for_again(tmp_path: Path) -> None:
    """The plan was made, and its user came back later."""
    gone = tmp_path / "gone"
    known = Run("a", "make", command("touch", str(gone)), unless=command("test", "-e", str(gone)), known="")
    for precheck in (True, False):
        there = hosts("a")
        assert statuses(execute(plan((known,)), there, precheck=precheck, recent=True)) == ["skipped"]
        assert not gone.exists() and there["a"].ran == []
    assert statuses(execute(plan((known,)), hosts("a"), precheck=True, recent=False)) == ["ok"]
    assert gone.exists()


def test_what_the_facts_say_counts_for_a_whole_plan_alone(tmp_path: Path) -> None:
    """Facts are older than the first change: after it, each step asks."""
    change = Run("a", "change", command("true"))
    known = replace(key_of("a", tmp_path), known="f" * 64)
    report = prechecked(plan((change,), (known,)), hosts("a"))
    assert [(o.status, o.output) for o in report.outcomes] == [("ok", ""), ("ok", "a" * 64)]
    assert statuses(execute(plan((known,)), hosts("a"))) == ["skipped"]


def test_noise_of_a_question_is_no_answer(tmp_path: Path) -> None:
    """Outputs that look like sections, that end without a line, that are empty."""
    loud = "\n0123456789abcdef 1 0\n\n0123456789abcdef end 0\n"
    steps = [
        Run(
            "a",
            "t",
            command("touch", str(tmp_path / n)),
            unless=script("echo x; exit 3"),
            reads=script("echo"),
        )
        for n in "12"
    ]
    quiet = Run("a", "q", command("false"), unless=command("true"), reads=script("printf x"), saves="x")
    noisy = Run("a", "n", command("false"), unless=script('printf %s "$1"', loud))
    report = prechecked(plan((noisy,), tuple(steps), (quiet,)), hosts("a"))
    assert statuses(report) == ["skipped", "ok", "ok", "skipped"]


def test_what_is_to_be_done_is_told_and_nothing_is_done(tmp_path: Path) -> None:
    one, runners = cluster(tmp_path), hosts("a", "b")
    assert to_do(one, runners) == one.steps
    assert list(tmp_path.iterdir()) == []
    prechecked(one, runners)
    assert to_do(one, runners) == ()
    (tmp_path / "known to b").unlink()
    left = to_do(one, runners)
    assert [(step.host, step.title) for step in left] == [("b", "known"), ("b", "ready")]
    assert to_do_text(one, left) == "p: 2 of 6 steps would run now:\n  b: known\n  b: ready"
    assert to_do_text(one, ()) == "p: no step would run now (6 steps)"
    assert not (tmp_path / "known to b").exists()


# Stamps


def stamped(folder: Path, ends: str = "true", says: tuple[str | Ref, ...] = ("one\n", "two\n")) -> Run:
    act = script(f'echo x >>"$1"; {ends}', str(folder / "tries"))
    return Run("a", "prove", act, unless=Stamp(str(folder / "stamp's"), says))


def test_a_stamp_is_written_when_the_command_has_succeeded(tmp_path: Path) -> None:
    step = stamped(tmp_path)
    assert statuses(execute(plan((step,)), hosts("a"))) == ["ok"]
    assert (tmp_path / "stamp's").read_text() == "one\ntwo\n"
    assert (tmp_path / "stamp's").stat().st_mode & 0o777 == 0o600
    assert statuses(execute(plan((step,)), hosts("a"))) == ["skipped"]
    other = stamped(tmp_path, says=("one\n", "other\n"))
    assert statuses(execute(plan((other,)), hosts("a"))) == ["ok"]
    assert (tmp_path / "tries").read_text() == "x\nx\n"


def test_a_command_that_fails_leaves_no_stamp(tmp_path: Path) -> None:
    for _ in range(2):
        assert statuses(execute(plan((stamped(tmp_path, "exit 3"),)), hosts("a"))) == ["failed"]
    assert not (tmp_path / "stamp's").exists() and (tmp_path / "tries").read_text() == "x\nx\n"


def test_a_stamp_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "stamp's").mkdir()
    assert statuses(execute(plan((stamped(tmp_path),)), hosts("a"))) == ["failed"]
