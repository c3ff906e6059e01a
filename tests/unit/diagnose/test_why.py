"""`toolkit why` against hosts on paper: whom it asks, what it makes of silence, what it keeps."""

from __future__ import annotations

import json
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.cluster_world import inventory
from tests.unit.conftest import Run
from tests.unit.each import for_each
from toolkit.api.job import ClusterJob
from toolkit.cluster.session import Session
from toolkit.container.logs.log import last_lines, last_useful
from toolkit.core.command import Command, Result
from toolkit.diagnose.known_errors import end_text, known_errors
from toolkit.diagnose.show import why_json, why_text
from toolkit.diagnose.why import InspectedHost, _kept, ask_why, bundle_files
from toolkit.errors import NotReady, ToolkitError
from toolkit.jobs.status import JobStatus
from toolkit.protocol.evidence import Inspected, InspectedNow, Kept

# The output of ranks on NVIDIA H200, with torch 2.11 and NCCL 2.28.9.
RECORDED = Path(__file__).parents[1] / "known_lines"
JOB = "20261120-211300-digits-a1b2"
NAMES = ("gpu1", "gpu2", "cpu3")
FILE = """\
cluster: demo
image: toolkit:cpu
main: gpu1
env: {HF_TOKEN: tok-abcdef}
hosts:
  gpu1: {address: 10.77.0.2}
  gpu2: {address: 10.77.0.3}
  cpu3: {address: 10.77.0.4}
"""
ABOUT = {
    "id": JOB,
    "hosts": [{"name": name, "address": f"10.77.0.{n}", "slots": 1} for n, name in enumerate(NAMES, 2)],
}


def rank(number: int, text: str, call: str = "futex") -> dict[str, Any]:
    frame = {"name": "main", "file": "/code/train.py", "line": 3 + number, "text": text}
    thread = {"first": True, "frames": [frame]}
    one = {
        "pid": 50 + number,
        "parent": 1,
        "name": "python",
        "state": "S",
        "call": call,
        "threads_seen": [thread],
    }
    return {
        "rank": number,
        "age": 4.0,
        "lines": ["step 3"],
        "tail": "step 3\n",
        "exit_code": None,
        "processes": [one],
    }


class Host:
    """Both the runner of a host and of its container."""

    def __init__(self, name: str, said: Any, state: dict[str, Any], rows: list[Any]) -> None:
        self.name, self.said, self.state, self.rows = name, said, state, rows
        self.asked: list[str] = []
        self.is_older = False

    def run(self, asked: Command, timeout: float | None = None) -> Result:
        words = [str(token) for token in asked.argv]
        self.asked.append(" ".join(words))
        if words[0] == "docker":
            return Result(0, json.dumps(self.state), "", 0.0)
        if words[0] == "sh":
            return Result(66 if self.is_older else 0, "", "", 0.0)
        if words[1] == "-":
            return Result(0, json.dumps(self.rows), "", 0.0)
        if isinstance(self.said, Exception):
            raise self.said
        if isinstance(self.said, str):
            return Result(2, "", self.said, 0.0)
        return Result(0, "[noise\n" + json.dumps(self.said), "", 0.0)


class Paper:
    """A session with these hosts."""

    def __init__(self, state: str = "running", **said: Any) -> None:
        self.inventory = inventory(FILE)
        self.errors: dict[str, ToolkitError] = {}
        self.started: dict[str, tuple[str, ...]] = {}
        self.facts = dict.fromkeys(NAMES)
        record = {"command": ["train.py", "--api-key=abc"], "hosts": ABOUT["hosts"]}
        reason = "stopped by SIGTERM" if state == "stopped" else ""
        status = {"state": state, "started": 1.0, "reason": reason}
        self.rows = rows = [{"id": JOB, "alive": True, "status": status, "record": record}]
        running = {"Running": True}
        self.runners = {name: Host(name, said.get(name, {}), running, rows) for name in NAMES}

    def fail(self, rank: int) -> None:
        """Record the job as failed because of a rank."""
        self.rows[0]["status"] |= {"state": "failed", "cause": {"rank": rank}}

    def require_some(self) -> None: ...

    def container(self, name: str) -> Host:
        if name in self.errors:
            raise self.errors[name]
        return self.runners[name]

    @property
    def main(self) -> Host:
        return self.container("gpu1")


def said(host: str, number: int, text: str, call: str = "futex", **more: Any) -> dict[str, Any]:
    return {"host": host, "job": ABOUT, "ranks": [rank(number, text, call)], "py_spy": True, **more}


def hang() -> Paper:
    return Paper(
        gpu1=said("gpu1", 0, "dist.all_reduce(x)", output="tok-abcdef in the output\n"),
        gpu2=said("gpu2", 1, "time.sleep(9)", "clock_nanosleep"),
        cpu3=said("cpu3", 2, "dist.all_reduce(x)"),
    )


def ask(paper: Paper, word: str = "") -> Any:
    return ask_why(cast(Session, paper), word)


def test_every_host_is_queried_once_and_the_right_rank_is_named() -> None:
    paper = hang()
    answer = ask(paper)
    assert answer.verdict.ranks == (1,) and answer.verdict.hosts == ("gpu2",)
    for host in paper.runners.values():
        assert sum("diagnose.inspect_ranks" in line and JOB in line for line in host.asked) == 1
    found = (answer.job, answer.evidence, answer.verdict, answer.known)
    text, result = why_text(*found), why_json(*found)
    assert text.splitlines()[0].startswith(f"{JOB}: rank 1 on gpu2 sleeps at train.py:4")
    assert "2     cpu3  S" in text and "4.0 s" in text and "step 3" in text
    assert [row["doing"]["kind"] for row in result["ranks"]] == ["collective", "sleep", "collective"]
    files = bundle_files(answer, text, result)
    assert {"report.txt", "why.json", "version.txt", "hosts/gpu2.json", "hosts/gpu2/rank-1.log"} <= set(files)
    assert b"tok-abcdef" not in b"".join(files.values()) and b"api-key=abc" not in b"".join(files.values())
    assert files["hosts/gpu1/output.log"] == b"*** in the output\n"
    assert answer.job.command == ("train.py", "--api-key=***")


def test_another_call_replaces_the_bundle_but_not_the_bundle_of_the_running_job(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text(FILE)
    answer = ask(hang())
    monkeypatch.setattr(ClusterJob, "why", lambda self: answer)
    for state in ("running", "running", "stopped", "stopped"):
        answer = replace(answer, job=replace(answer.job, state=state))
        status, out, err = run("why")
        assert (status, err) == (0, "")
        name = out.splitlines()[-1].removeprefix("bundle for a bug report: ")
        with tarfile.open(tmp_path / name) as tar:
            report = tar.extractfile(f"{name.removesuffix('.tar.gz')}/why.json")
            assert report is not None and json.load(report)["state"] == state
    expected = {f"why-{JOB}.tar.gz", f"why-{JOB}-stopped.tar.gz"}
    assert {path.name for path in tmp_path.glob("why-*")} == expected


def test_a_job_that_succeeded_has_a_bundle_only_on_request(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text(FILE)
    answer = ask(hang())
    answer = replace(answer, job=replace(answer.job, state="succeeded"))
    monkeypatch.setattr(ClusterJob, "why", lambda self: answer)
    status, out, _ = run("why")
    assert status == 0 and "bundle" not in out
    assert json.loads(run("why", "--json")[1])["bundle"] is None
    assert not list(tmp_path.glob("*.tar.gz"))
    assert run("why", "--save", "good.tar.gz")[0] == 0 and (tmp_path / "good.tar.gz").exists()


def test_a_bundle_that_cannot_be_written_is_part_of_the_one_json_document(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hosts.yaml").write_text(FILE)
    answer = ask(hang())
    monkeypatch.setattr(ClusterJob, "why", lambda self: answer)
    status, out, _ = run("why", "--json", "--save", "hosts.yaml/bundle.tar.gz")
    found = json.loads(out)
    assert (found["job"], found["bundle"]) == (JOB, None)
    assert status == found["error"]["exit_code"] != 0


def test_a_host_that_fails_is_evidence() -> None:
    paper = hang()
    paper.errors["cpu3"] = ToolkitError("no answer on port 22", "", "cpu3")
    answer = ask(paper, "a1b2")
    assert (
        answer.verdict.kind == "host" and "cpu3 does not answer: no answer on port 22" in answer.verdict.what
    )
    paper = hang()
    paper.runners["gpu2"].said = ToolkitError("the connection was lost")
    paper.runners["gpu2"].state = {"Running": False, "ExitCode": 137, "OOMKilled": True}
    words = ask(paper).verdict.what
    assert (
        "the container toolkit-demo-worker exited with exit code 137 because the container ran out of memory"
        in words
    )
    paper.runners["gpu2"].state = {"Status": "created", "Running": False, "ExitCode": 0}
    assert "the container toolkit-demo-worker was created but never started" in ask(paper).verdict.what
    # The program's own words decide nothing: its data may lack a file as well.
    paper.runners["gpu2"].said = "inspect_ranks.py: No such file or directory"
    assert "gpu2 does not answer: inspect_ranks.py: No such file" in ask(paper).verdict.what
    paper.runners["gpu2"].is_older = True
    with pytest.raises(NotReady, match="an older version of toolkit created the cluster"):
        ask(paper)


def test_without_main_a_worker_knows_the_job() -> None:
    paper = hang()
    paper.errors["gpu1"] = ToolkitError("no answer on port 22", "", "gpu1")
    del paper.facts["gpu1"]
    answer = ask(paper)
    assert answer.job.id == JOB and answer.job.state == "unknown"
    assert answer.verdict.hosts == ("gpu1",) and answer.verdict.ranks == (0,)


def test_without_main_the_newest_job_of_the_workers_is_explained() -> None:
    """The last job did not use gpu2, so gpu2 reports an earlier one."""
    earlier, paper = "20261119-080000-old-a1b2", hang()
    paper.errors["gpu1"] = ToolkitError("no answer on port 22", "", "gpu1")
    del paper.facts["gpu1"]
    paper.runners["gpu2"].said["job"] = ABOUT | {"id": earlier}
    assert ask(paper).job.id == JOB
    with pytest.raises(NotReady, match=f"2 job ids end in a1b2: {earlier} and {JOB}"):
        ask(paper, "a1b2")
    del paper.runners["gpu2"].said["job"]
    assert ask(paper, "a1b2").job.id == JOB


def test_a_host_that_has_left_the_file_is_named() -> None:
    paper = hang()
    paper.inventory = inventory(FILE.replace("  cpu3: {address: 10.77.0.4}\n", ""))
    assert "cpu3 is no longer in hosts.yaml" in ask(paper).verdict.what


@for_each(("launcher", "is_asked"), [("torchrun", False), ("horovodrun", True)])
def test_main_is_asked_about_a_job_of_other_hosts_only_if_it_starts_their_ranks(
    launcher: str, is_asked: bool
) -> None:
    """With `transport: exec`, a host outside the job has no files of it."""
    nothing = f"gpu1 has no folder of job {JOB}"
    paper = Paper(
        gpu1=nothing,
        gpu2=said("gpu2", 0, "dist.all_reduce(x)"),
        cpu3=said("cpu3", 1, "time.sleep(9)", "nanosleep"),
    )
    paper.inventory = inventory(FILE.replace("main: gpu1", "main: gpu1\ntransport: exec"))
    (row,) = paper.rows
    row["record"] |= {"hosts": ABOUT["hosts"][1:], "launcher": launcher, "transport": "exec", "main": "gpu1"}
    row["now"] = 5.0
    if not is_asked:
        paper.runners["gpu1"].rows = []
    answer = ask(paper)
    assert any("diagnose.inspect_ranks" in words for words in paper.main.asked) == is_asked
    assert ("gpu1" in answer.verdict.what) == is_asked
    assert is_asked or answer.verdict.ranks == (1,)


def test_a_missing_job_raises_an_error() -> None:
    with pytest.raises(NotReady, match="there is no job nothing"):
        ask(hang(), "nothing")


def test_evidence_of_the_watchdog_explains_a_stopped_job() -> None:
    before = hang()
    kept = {"why": "no rank has printed for 300 s", "hosts": [host.said for host in before.runners.values()]}
    gone = [
        {"host": name, "job": ABOUT, "ranks": [{**rank(n, ""), "processes": [], "exit_code": 143}]}
        for n, name in enumerate(NAMES)
    ]
    paper = Paper("stopped", gpu1=gone[0] | {"kept": kept}, gpu2=gone[1], cpu3=gone[2])
    answer = ask(paper)
    assert answer.verdict.ranks == (1,) and answer.stalled == "no rank has printed for 300 s"
    assert answer.verdict.what.startswith("the job was stopped: stopped by SIGTERM")
    assert (
        "; before the job ended (no rank has printed for 300 s): rank 1 on gpu2 sleeps" in answer.verdict.what
    )
    for one in gone:
        one["ranks"][0]["tail"] = "step 3\nWatchdog caught collective operation timeout\n"
    paper = Paper("stopped", gpu1=gone[0] | {"kept": kept}, gpu2=gone[1], cpu3=gone[2])
    assert ask(paper).verdict.ranks == (1,), "the errors of the end do not end the stall"
    paper = Paper("stopped", gpu1=gone[0] | {"kept": kept | {"over": True}}, gpu2=gone[1], cpu3=gone[2])
    assert ask(paper).stalled == "", "it went on after that stall"


def test_evidence_of_the_watchdog_has_the_hosts_of_its_time() -> None:
    """The restart on two hosts failed before a rank started, so the job has the hosts of the restart."""
    before = hang()
    reports = [host.said for host in before.runners.values()]
    kept = {"why": "silence", "slots": {name: [0] for name in NAMES}, "hosts": reports}
    gone = {"host": "gpu1", "job": ABOUT, "ranks": []}
    paper = Paper("failed", gpu1=gone | {"kept": kept})
    paper.rows[0]["status"] |= {"hosts": {"gpu1": [0], "cpu3": [0]}, "cause": {"rank": 2}}
    answer = ask(paper)
    assert (answer.evidence.placed, answer.verdict.hosts) == (NAMES, ("gpu2",))


def test_an_elastic_job_is_where_it_continues() -> None:
    paper = Paper(
        gpu1=said("gpu1", 0, "dist.all_reduce(x)"), cpu3=said("cpu3", 1, "time.sleep(9)", "nanosleep")
    )
    paper.rows[0]["status"]["hosts"] = {"gpu1": [0], "cpu3": [0]}
    answer = ask(paper)
    assert (answer.verdict.kind, answer.verdict.hosts) == ("sleep", ("cpu3",))
    assert not paper.runners["gpu2"].asked


def test_an_elastic_launcher_can_number_ranks_in_another_order() -> None:
    paper = Paper(
        gpu1=said("gpu1", 2, "dist.all_reduce(x)"),
        gpu2=said("gpu2", 0, "time.sleep(9)", "nanosleep"),
        cpu3=said("cpu3", 1, "dist.all_reduce(x)"),
    )
    # What an earlier start of the rank has left.
    paper.runners["gpu1"].said["ranks"].append(rank(0, "") | {"processes": [], "exit_code": None})
    answer = ask(paper)
    assert (answer.verdict.ranks, answer.verdict.hosts) == ((0,), ("gpu2",))
    paper = Paper("failed", gpu1={"host": "gpu1", "job": ABOUT}, gpu2=said("gpu2", 0, ""))
    paper.runners["gpu2"].said["ranks"][0] |= {"processes": [], "exit_code": 1, "lines": ["KeyError: 1"]}
    paper.fail(0)
    assert "the exception of rank 0 is: KeyError: 1" in ask(paper).verdict.what


def test_the_newest_start_of_a_rank_counts() -> None:
    """An elastic launcher has started rank 0 first on gpu1, and then on cpu3."""
    old = rank(0, "") | {"processes": [], "exit_code": 1, "lines": ["OldError: old"], "started": 100.0}
    new = old | {"lines": ["KeyError: 1"], "started": 200.0}
    paper = Paper(
        "failed",
        gpu1={"host": "gpu1", "job": ABOUT, "ranks": [old]},
        cpu3={"host": "cpu3", "job": ABOUT, "ranks": [new]},
    )
    paper.fail(0)
    answer = ask(paper)
    assert answer.verdict.hosts == ("cpu3",)
    assert "the exception of rank 0 is: KeyError: 1" in answer.verdict.what
    # Something killed the rank on cpu3.
    paper = Paper(
        gpu1=said("gpu1", 1, "dist.all_reduce(x)"),
        gpu2=said("gpu2", 2, "dist.all_reduce(x)"),
        cpu3={"host": "cpu3", "job": ABOUT, "ranks": [new | {"exit_code": None}]},
    )
    paper.runners["gpu1"].said["ranks"].append(old)
    answer = ask(paper)
    assert (answer.verdict.kind, answer.verdict.hosts) == ("gone", ("cpu3",))


def test_a_rank_that_the_job_no_longer_has_is_no_error() -> None:
    paper = Paper("failed", gpu1={"host": "gpu1", "job": ABOUT})
    paper.fail(3)
    assert ask(paper).verdict.what.startswith("the job failed")


def test_evidence_of_one_watchdog_covers_only_its_host() -> None:
    """Main's covers all hosts; with a part of the job on each host, each covers its own host."""

    def said(*hosts: str, of: str, **more: Any) -> InspectedHost:
        kept = Kept(tuple(Inspected(name) for name in hosts), why=of, **more)
        return InspectedHost(InspectedNow(of, kept=kept))

    told = {"gpu1": said("gpu1", of="gpu1"), "gpu2": said("gpu2", "gpu1", "cpu3", of="gpu2")}
    for names, hosts in ((["gpu1"], ["gpu1"]), (["gpu1", "gpu2"], ["gpu1", "gpu2"])):
        kept = _kept(told, names)
        assert kept is not None and [host.host for host in kept.hosts] == hosts
    assert _kept({"gpu2": told["gpu2"]}, ["gpu1"]) is None
    # A stall of the job is a stall of all its hosts.
    assert _kept(told, ["gpu1", "gpu2", "cpu3"]) is None
    assert _kept(told | {"gpu1": said("gpu1", of="gpu1", over=True)}, ["gpu1", "gpu2"]) is None
    assert _kept(told | {"gpu1": said("gpu1", of="gpu1", at=900.0)}, ["gpu1", "gpu2"]) is None
    assert _kept(told | {"gpu1": said("gpu1", of="gpu1", at=60.0)}, ["gpu1", "gpu2"]) is not None


@for_each(
    ("state", "code", "printed", "lasted"),
    [
        ("stopped", 143, "", True),
        ("stopped", 143, "step 4\n", False),
        ("stopped", 1, "Traceback (most recent call last):\nRuntimeError: Connection closed by peer\n", True),
        ("stopped", 1, "step 4\nRuntimeError: gloo/pair.cc: Connection closed by peer\n", False),
        ("failed", 134, "", True),
        ("failed", 3, "", False),
        ("failed", 1, "step 4\nValueError: bad\n", False),
        ("failed", 1, "RuntimeError: gloo/pair.cc: Timed out waiting 1800000ms for recv\n", True),
        ("failed", 134, "Watchdog caught collective operation timeout\n", True),
    ],
)
def test_a_stall_explains_the_end_only_if_it_lasted(
    state: str, code: int, printed: str, lasted: bool
) -> None:
    """Ranks that print less often than --stall-after leave evidence of a stall at any time."""
    kept: dict[str, Any] = {"why": "silence", "hosts": [h.said for h in hang().runners.values()]}
    reports: dict[str, Any] = {
        name: {"host": name, "job": ABOUT, "ranks": [rank(n, "") | {"processes": [], "exit_code": 143}]}
        for n, name in enumerate(NAMES)
    }
    tail = "step 3\n" + printed
    reports["gpu1"]["ranks"][0] |= {"exit_code": code, "tail": tail, "lines": tail.splitlines()}
    reports["gpu1"]["kept"] = kept
    paper = Paper(state, **reports)
    if state == "failed":
        paper.fail(0)
    answer = ask(paper)
    assert (answer.stalled, answer.verdict.hosts == ("gpu2",)) == (
        ("silence", True) if lasted else ("", False)
    )
    # The end of the log of a rank that has printed much.
    more = "".join(f"step {number}\n" for number in range(4000))
    for said in kept["hosts"]:
        said["ranks"][0]["tail"] = more[-16384:]
    for report in reports.values():
        report["ranks"][0]["tail"] = more[-16384:]
    reports["gpu1"]["ranks"][0]["tail"] = (more + printed)[-16384:]
    assert bool(ask(paper).stalled) == lasted


def test_known_errors_come_with_their_fixes() -> None:
    paper = hang()
    assert ask(paper).known == ()
    paper.runners["gpu2"].said["ranks"][0]["tail"] = "gpu2: NCCL WARN no socket interface found\n"
    answer = ask(paper)
    text = why_text(answer.job, answer.evidence, answer.verdict, answer.known)
    (known,) = answer.known
    assert known.name == "nccl-no-interface"
    assert f"\nknown error nccl-no-interface: {known.what}\n  fix: {known.fix}\n" in text
    told = why_json(answer.job, answer.evidence, answer.verdict, answer.known)["known"]
    assert told == [{"name": known.name, "what": known.what, "fix": known.fix}]


@for_each(
    ("last", "names"),
    [
        ("KeyError: 'b'", ["nccl-no-interface"]),
        ("RuntimeError: gloo/pair.cc: Connection closed by peer", ["nccl-no-interface", "gloo-peer-gone"]),
    ],
)
def test_an_exception_hides_the_known_errors_that_follow_from_it(last: str, names: list[str]) -> None:
    paper = hang()
    paper.fail(1)
    (failed,) = paper.runners["gpu2"].said["ranks"]
    lines = ["NCCL WARN no socket interface found", last, "terminate called without an active exception"]
    failed |= {"exit_code": 134, "lines": lines, "tail": "\n".join(lines)}
    paper.runners["gpu1"].said["output"] = "torch.distributed.elastic.ChildFailedError:\n"
    paper.runners["cpu3"].said["ranks"][0]["tail"] = "gloo/pair.cc: Connection closed by peer\n"
    answer = ask(paper)
    assert [known.name for known in answer.known] == names
    assert f"the exception of rank 1 is: {last}" in answer.verdict.what


@for_each(
    ("name", "code", "cause", "known"),
    [
        ("assert", 134, "torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda-assert"),
        (
            "illegal",
            1,
            "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
            "cuda-illegal-access",
        ),
        (
            "timeout",
            134,
            "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE, "
            "NumelIn=1048576, NumelOut=1048576, Timeout(ms)=12000) ran for 12048 milliseconds before "
            "timing out.",
            "nccl-watchdog",
        ),
    ],
)
def test_run_and_why_name_the_same_cause_before_a_backtrace(
    name: str, code: int, cause: str, known: str
) -> None:
    path = RECORDED / f"rank_{name}.txt"
    job = JobStatus(JOB, "failed", code, 0.0, 2.0, "x", last_lines=tuple(last_lines(path)))
    fix = next(error.fix for error in known_errors() if error.name == known)
    assert end_text(job).endswith(f"exit code {code}: x: {cause}\n  fix: {fix}\n")
    paper = hang()
    paper.fail(1)
    (failed,) = paper.runners["gpu2"].said["ranks"]
    tail = path.read_text()
    failed |= {"exit_code": code, "lines": last_useful(tail), "tail": tail}
    paper.runners["gpu1"].said["ranks"][0]["tail"] = (RECORDED / "rank_peer.txt").read_text()
    paper.runners["gpu1"].said["output"] = "torch.distributed.elastic.ChildFailedError:\n"
    answer = ask(paper)
    assert f"the exception of rank 1 is: {cause}" in answer.verdict.what
    assert [error.name for error in answer.known] == [known]


def test_a_warning_of_pytorch_is_not_the_last_line_of_a_failed_rank() -> None:
    paper = hang()
    paper.fail(1)
    lines = ["bad input", (RECORDED / "rank_illegal.txt").read_text().splitlines()[-1]]
    paper.runners["gpu2"].said["ranks"][0] |= {"exit_code": 1, "lines": lines}
    assert ask(paper).verdict.what.endswith("the last line of rank 1 is: bad input")


def test_known_errors_of_the_rank_that_failed_first_come_first() -> None:
    """Without an exception, the errors that follow from other errors are listed, after the others."""
    paper = hang()
    paper.fail(1)
    paper.runners["gpu2"].said["ranks"][0] |= {"exit_code": 1, "lines": ["x"], "tail": "x\n"}
    peer = (RECORDED / "rank_peer.txt").read_text()
    paper.runners["gpu1"].said["ranks"][0]["tail"] = peer
    paper.runners["gpu1"].said["output"] = "torch.distributed.elastic.ChildFailedError:\n"
    assert [error.name for error in ask(paper).known] == ["torchrun-child", "nccl-peer-gone"]
    failed = paper.runners["gpu2"].said["ranks"][0]
    failed["tail"] = peer
    assert [error.name for error in ask(paper).known] == ["nccl-peer-gone", "torchrun-child"]
    paper.runners["gpu1"].said["ranks"][0]["tail"] = "OSError: [Errno 28] No space left on device\n"
    assert [error.name for error in ask(paper).known] == ["disk-full", "nccl-peer-gone", "torchrun-child"]
    failed["tail"] += "NCCL WARN no socket interface found\n"
    assert [error.name for error in ask(paper).known][:2] == ["nccl-no-interface", "disk-full"]
    failed["lines"] = ["KeyError: 1"]
    assert [error.name for error in ask(paper).known] == ["nccl-no-interface", "disk-full"]


def test_the_table_lists_missing_evidence() -> None:
    paper = hang()
    paper.runners["gpu2"].said |= {"py_spy": False, "oom_kills": 2}
    gpu = {"index": "0", "uuid": "GPU-0", "busy": "100", "watts": "71.3", "mib": "1024"}
    paper.runners["gpu1"].said["gpus"] = [gpu]
    paper.runners["cpu3"].said["gpu_error"] = "no answer within 5 s"
    paper.runners["cpu3"].said["ranks"][0]["processes"][0] |= {
        "threads_seen": [],
        "no_stack": "Permission denied",
    }
    answer = ask(paper)
    text = why_text(answer.job, answer.evidence, answer.verdict, answer.known)
    assert "gpu1: GPU 0: 100 % busy, 71.3 W, 1024 MiB" in text
    assert "nvidia-smi on cpu3 failed: no answer within 5 s" in text
    assert "cannot read stacks on gpu2: the image has no py-spy" in text
    assert "cannot read the stack of process 52 on cpu3: Permission denied" in text
    assert "the kernel of gpu2 killed 2 processes of the container, because the container or the host" in text
    for rank in paper.runners["gpu2"].said["ranks"]:
        rank["processes"] = []
    answer = ask(paper)
    assert "has no py-spy" not in why_text(answer.job, answer.evidence, answer.verdict, answer.known)


def test_the_page_names_every_kind_of_verdict() -> None:
    from toolkit.diagnose import verdict

    page = (Path(__file__).resolve().parents[3] / "docs" / "how-to" / "debug-a-hanging-job.md").read_text()
    for kind in (*verdict.FIXES, "runs", "unclear", "end"):
        assert f"`{kind}`" in page, kind
