"""Output for users: plans, outcomes, reports, tables."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tests.unit.each import for_each
from toolkit.core.code import CodeTree, Entry
from toolkit.core.command import Ref, command, script
from toolkit.core.printable import table
from toolkit.core.report import Outcome, Report
from toolkit.plan.show import outcome_line, report_text, step_lines
from toolkit.plan.steps import (
    Fetch,
    File,
    PullImage,
    RemoveData,
    Run,
    SendCode,
    SendData,
    SendImage,
    StartDaemons,
    StartJob,
    Step,
    Upload,
    WaitFor,
)
from toolkit.protocol.shards import Content

OK = Outcome("files", "write", "gpu1", "ok", 0.24, "2 of 9 files")
SKIPPED = Outcome("keys", "make the key", "gpu1", "skipped", 0.1)
FAILED = Outcome("files", "write", "gpu2", "failed", 3.0, "no space left", "docker system df")
NOT_RUN = Outcome("keys", "make the key", "gpu2", "not run")

CODE = CodeTree((Entry("a", "f", 0, 7, 0, ""),))


@pytest.mark.parametrize(
    ("outcome", "line"),
    [
        (OK, "    done  gpu1: write (2 of 9 files)  0.2 s"),
        (SKIPPED, "   as is  gpu1: make the key  0.1 s"),
        (FAILED, "  FAILED  gpu2: write  3.0 s\n          no space left\n          fix: docker system df"),
        (NOT_RUN, " not run  gpu2: make the key  0.0 s"),
    ],
)
def test_one_line_for_one_outcome(outcome: Outcome, line: str) -> None:
    assert outcome_line(outcome) == line
    assert outcome_line(outcome, brief=True) == line.partition("\n")[0]


def test_a_report_without_failures_is_one_line() -> None:
    changed = Report("up demo", (OK, SKIPPED), 4.25)
    assert report_text(changed) == "up demo: 1 change (2 steps on 1 host, 4.2 s)\n"
    assert (
        report_text(Report("up demo", (SKIPPED,), 1))
        == "up demo: nothing to change (1 step on 1 host, 1.0 s)\n"
    )
    at_once = Report("up demo", (SKIPPED,), 0.04)
    assert report_text(at_once) == "up demo: nothing to change (1 step on 1 host)\n"


def test_a_report_with_a_failure_has_a_line_for_every_host() -> None:
    third = Outcome("keys", "make the key", "gpu3", "not run")
    report = Report("up demo", (OK, FAILED, SKIPPED, NOT_RUN, third), 5)
    assert report_text(report) == (
        "up demo: failed on 1 of 3 hosts (5.0 s)\n"
        "  gpu1: ok (1 change)\n"
        "  gpu2: FAILED at write: no space left\n"
        "      fix: docker system df\n"
        "  gpu3: stopped before make the key\n"
    )


def test_bytes_that_were_sent_are_summed_up() -> None:
    amounts = (("bytes", 1_500_000), ("from_here", 1_500_000), ("layers", 1))
    rows = [replace(OK, host=host, amounts=amounts) for host in "ab"]
    report = Report("image send", (*rows, OK), 2.0)
    assert ", 2.0 s, 3.0 MB sent)" in report_text(report)
    assert report.as_json()["outcomes"][0]["amounts"] == dict(amounts)
    rows[1] = replace(OK, host="b", amounts=(("bytes", 1_500_000), ("from_here", 0)))
    assert ", 2.0 s, 1.5 MB sent, 1.5 MB from host to host)" in report_text(replace(report, outcomes=rows))
    assert "amounts" not in report.as_json()["outcomes"][2] and "sent" not in report_text(Report("up", (OK,)))


def test_an_interrupted_report() -> None:
    text = report_text(Report("up demo", (OK, NOT_RUN)))
    assert "gpu1: ok (1 change)" in text and "gpu2: stopped before make the key" in text


LINES: list[tuple[Step, list[str]]] = [
    (
        Run("a", "t", command("touch", "a b"), unless=command("test", "-e", "x")),
        ["unless: test -e x", "touch 'a b'"],
    ),
    (Run("a", "t", script("echo  $1\n", "it's")), ["""sh -c 'echo $1' 'it'"'"'s'"""]),
    (Run("a", "t", command("use", Ref("b", "key", "b="))), ["use b=<key of b>"]),
    (Upload("a", "t", (File("/x", ("secret",), 0o600),)), ["/x (mode 600, 2bb80d537b1d)"]),
    (
        WaitFor("a", "t", command("true"), command("true"), command("true"), 30),
        ["until: true (at most 30 s)"],
    ),
    (
        SendImage("a", "t", "x:1", "0123"),
        ["send the missing layers of x:1 to `docker load` (content digest 0123)"],
    ),
    (
        SendCode("a", "t", "c", "/jobs/1", "/src", CODE, "s3cret"),
        ["send 1 file, 7 bytes from /src to /jobs/1/code"],
    ),
    (SendCode("a", "t", "c", "/jobs/1", "", CodeTree(), "s3cret"), ["send no files to /jobs/1/code"]),
    (PullImage("a", "t", "x:1"), ["docker pull x:1"]),
    (
        SendData("a", "t", "/set", Content("0" * 32, 1, 2_000, ()), "/scratch", "/account", "x:1", "1:1"),
        ["send the missing data of /set (1 file, 2.0 kB, digest 000000000000) to /scratch"],
    ),
    (
        RemoveData("a", "t", "/scratch", "/account", "x:1", "1:1"),
        ["remove the files that toolkit wrote to /scratch, except files that changed later"],
    ),
    (Fetch("a", "t", ("c",), "runs/demo"), ["download to runs/demo"]),
    (StartJob("a", "t", "main", "1-job", "s3cret"), ["start the supervisor of job 1-job in main"]),
    (
        StartDaemons("a", "t", "main", "1-job", (("b", "worker"),), ("s3cret",)),
        ["start supervisors of job 1-job in worker on b when the launcher requests daemons"],
    ),
]


@for_each(("step", "lines"), LINES)
def test_every_kind_of_step_has_its_lines(step: Step, lines: list[str]) -> None:
    assert step_lines(step) == lines


def test_no_kind_of_step_is_left_out() -> None:
    assert {type(step) for step, _ in LINES} == set(get_args(Step))


def test_a_long_script_is_cut_and_its_arguments_are_not() -> None:
    (line,) = step_lines(Run("a", "t", script("x" * 500, "arg")))
    assert line.endswith("…' arg") and len(line) < 130


def test_tables_line_up() -> None:
    assert table(("host", "n"), [("a", "10"), ("longer", "2")]) == "host    n\na       10\nlonger  2\n"
    assert table(("host",), []) == "host\n"


def test_a_report_that_was_cut_off_blames_nobody() -> None:
    rows = (Outcome("p", "one", "gpu1", "ok"), Outcome("p", "two", "gpu1", "not run"))
    text = report_text(Report("up demo", rows, 1.0))
    assert text.startswith("up demo: not finished (1.0 s)") and "gpu1: stopped before two" in text


def test_a_step_without_targets_is_reported_with_the_reason() -> None:
    lost = Outcome(
        "login",
        "test the SSH login from the main container to every worker container",
        "gpu1",
        "not run",
        0.0,
        "an earlier step failed on gpu2",
    )
    rows = (Outcome("sshd", "sshd listens", "gpu2", "failed", 0.0, "died", "look"), lost)
    assert outcome_line(lost).startswith(
        " not run  gpu1: test the SSH login from the main container to every worker container (an "
        "earlier step failed on"
    )
    text = report_text(Report("up demo", rows, 1.0))
    assert (
        "  gpu1: not done: test the SSH login from the main container to every worker container: "
        "an earlier step failed on gpu2\n" in text
    )


def test_equal_ends_of_many_hosts_are_one_line() -> None:
    def failed(host: str) -> Outcome:
        fix = f"on {host}: sudo systemctl start docker"
        return Outcome("start", "start container", host, "failed", 0.1, "no engine", fix)

    hosts = [f"gpu{number}" for number in range(1, 65)]
    rows = [failed(host) if host != "gpu9" else replace(OK, host=host) for host in hosts]
    assert report_text(Report("up demo", tuple(rows), 1.0)) == (
        "up demo: failed on 63 of 64 hosts (1.0 s)\n"
        "  gpu[1-8,10-64]: FAILED at start container: no engine\n"
        "      fix: on gpu[1-8,10-64]: sudo systemctl start docker\n"
        "  gpu9: ok (1 change)\n"
    )
