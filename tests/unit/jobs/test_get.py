"""Bringing results: what is found, what is here already, what must not be, how it ends in the middle."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit import cluster_world as world
from tests.unit.code_here import HOST, Code, ContainerHere
from tests.unit.conftest import Run
from toolkit.api.cluster import Cluster
from toolkit.api.connection import Connection
from toolkit.api.job import ClusterJob
from toolkit.cluster.session import Session
from toolkit.container import send_files
from toolkit.container.code.packs import load, save
from toolkit.core.command import Result, quoted
from toolkit.core.local_writer import Destination, LocalWriter
from toolkit.core.remote_files import Missing, RemoteFile
from toolkit.core.runner import ContainerRunner
from toolkit.errors import ToolkitError
from toolkit.jobs import get
from toolkit.jobs.code import list_files
from toolkit.jobs.get import (
    FileStream,
    Found,
    Got,
    NoFolder,
    NoSuchFile,
    Skipped,
    _no_such_file,
    bring,
    check_local,
    find_files,
    with_earlier_jobs,
)
from toolkit.jobs.records import known_jobs
from toolkit.jobs.status import JobStatus
from toolkit.protocol import decode


class Place:
    """A job with results, and a folder here to bring them to."""

    def __init__(self, folder: Path) -> None:
        self.code = Code(folder)
        self.code.put(train="x", results__readme="came with the code")
        self.job, _ = self.code.send(self.code.step(job="one"))
        self.into = folder / "into"
        self.into.mkdir()

    def write(self, name: str, text: str = "r") -> Path:
        path = self.job / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def container(self, host: str) -> ContainerRunner:
        return ContainerRunner(self.code.host, f"{HOST}-container")

    def find(self, *patterns: str, job: str = "one") -> Found:
        return find_files(cast(Session, self), HOST, job, patterns, Destination(self.into))

    def get(self, *patterns: str, keep_modes: bool = False) -> Got:
        return bring(cast(Session, self), self.find(*patterns), lambda done, total: None, keep_modes)

    def here(self) -> list[str]:
        return sorted(
            str(p.relative_to(self.into)) for p in self.into.rglob("*") if p.is_symlink() or p.is_file()
        )


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    # The kernel's clock for files goes in steps.
    sent = made.job / ".sent"
    while made.write("tick").stat().st_ctime_ns <= sent.stat().st_mtime_ns:
        pass
    (made.job / "code" / "tick").unlink()
    return made


def test_a_folder_comes_without_what_came_with_the_code(place: Place) -> None:
    one = place.write("results/a/model.pt", "m" * 100_000)
    os.utime(one, ns=(5, 1_234_567_890_123_456_789))
    one.chmod(0o755)
    place.write("results/log", "")
    place.write("results/__pycache__/x")
    (place.job / "code" / "results" / "last").symlink_to("a/model.pt")
    (place.job / "code" / "results" / "deep").symlink_to("a")
    assert place.get("results", keep_modes=True) == Got(HOST, str(place.into), 4, 100_000, 0)
    assert place.here() == ["results/a/model.pt", "results/deep", "results/last", "results/log"]
    model = place.into / "results" / "a" / "model.pt"
    assert model.read_text() == "m" * 100_000
    assert model.stat().st_mtime_ns == 1_234_567_890_123_456_789 and model.stat().st_mode & 0o777 == 0o755
    assert str((place.into / "results" / "last").readlink()) == "a/model.pt"
    again = place.find("results")
    assert (again.new, again.there) == ((), 4)
    one.write_text("n")
    assert [coming.name for coming in place.find("results").differs] == ["results/a/model.pt"]


def test_a_file_of_a_far_future_is_downloaded(place: Place) -> None:
    """Its time in nanoseconds does not fit in 64 bits."""
    os.utime(place.write("out/x"), (0, 10_413_792_000))
    place.get("out")
    assert (place.here(), place.find("out").there) == (["out/x"], 1)


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (("*.pt",), ["a.pt", "b[1].pt"]),
        (("b[1].pt",), ["b[1].pt"]),
        (("**/*.pt",), ["a.pt", "b[1].pt", "out/c.pt"]),
        (("out/*.pt", "a.pt", "./out/../a.pt"), ["a.pt", "out/c.pt"]),
        (("o*",), ["out/c.pt", "out/x/y"]),
        ((".",), ["a.pt", "b[1].pt", "out/c.pt", "out/x/y"]),
        (("train",), ["train"]),
        (("results/readme",), ["results/readme"]),
        (("link",), ["link"]),
    ],
)
def test_patterns(place: Place, patterns: tuple[str, ...], names: list[str]) -> None:
    for name in ("a.pt", "b[1].pt", "out/c.pt", "out/x/y"):
        place.write(name, name)
    if "link" in names:
        (place.job / "code" / "link").symlink_to("out/c.pt")
    place.get(*patterns)
    assert place.here() == names
    if "link" in names:
        assert not (place.into / "link").is_symlink()  # one that is named stands for what it leads to


@pytest.mark.parametrize(
    "pattern",
    [
        *("**/*.pt", "ckpt/**", "**", "*/**", "**/step*/**", "**/**/m*.pt"),
        *("ckpt/*/model.pt", "ckpt/*/*.pt", "*/*/model.pt", "ckpt/[dls]*/**", "c*/*/*"),
    ],
)
def test_links_below_a_pattern_are_not_followed(place: Place, tmp_path: Path, pattern: str) -> None:
    place.write("ckpt/step-9/model.pt")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "model.pt").touch()
    for name, target in (("last", "step-9"), ("data", tmp_path / "data")):
        (place.job / "code" / "ckpt" / name).symlink_to(target)
    files = {one.name for one in place.find(pattern).new if one.link is None}
    assert files == {"ckpt/step-9/model.pt"}


def test_a_link_that_is_named_before_a_pattern_is_followed(place: Place) -> None:
    place.write("ckpt/step-9/model.pt")
    (place.job / "code" / "ckpt" / "last").symlink_to("step-9")
    for pattern in ("ckpt/last/**", "ckpt/last/*", "*/last/m*"):
        assert [one.name for one in place.find(pattern).new] == ["ckpt/last/model.pt"]


def test_absolute_paths_and_those_above_the_working_directory(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("run1/best.pt", "run2/best.pt", "run2/other"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    place.get(f"{data}/*/best.pt", "../record.json")
    assert place.here() == ["record.json", "run1/best.pt", "run2/best.pt"]
    place.get(f"{data}/run2")
    assert "run2/other" in place.here()


def test_two_files_of_one_name_are_refused(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("run1/best.pt", "run2/best.pt", "run2/x/best.pt"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    place.write("best.pt")
    for first, second in (
        (f"{data}/run1/best.pt", f"{data}/run2/best.pt"),
        ("best.pt", f"{data}/run1/best.pt"),
        (f"{data}/run1/best.pt", f"{data}/run2/**"),
    ):
        with pytest.raises(ToolkitError) as caught:
            place.find("results/readme", first, second)
        assert caught.value.what == (
            f"no file was downloaded, because {first} and {second} match different files that toolkit would "
            f"write to {place.into}/best.pt"
        )
        get, into = f"toolkit get --job one --host {HOST} -o", place.into
        assert caught.value.fix == f"{get} {into}/1 {first} && {get} {into}/2 {quoted(second)}"
    (place.job / "code" / "last.pt").symlink_to("best.pt")
    found = place.find("last.pt", "*.pt", str(place.job / "code" / "best.pt"))
    assert sorted(one.name for one in found.new) == ["best.pt", "last.pt"]


def test_a_collision_of_names_that_were_not_requested(place: Place) -> None:
    lying(place, {"collides": "out", "patterns": ["out", "; reboot"]})
    with pytest.raises(ToolkitError, match="a pattern that was not requested"):
        place.find("out")


def test_results_are_found_although_the_clock_was_set_back(place: Place) -> None:
    sent = place.job / ".sent"
    (place.job / "code" / "results" / "link").symlink_to("readme")
    save(str(sent), {**load(str(sent)), "results/link": "readme"})
    later = sent.stat().st_mtime_ns + 3600 * 10**9
    os.utime(sent, ns=(later, later))
    with pytest.raises(NoSuchFile, match="wrote no file"):
        place.find("results")
    place.write("results/model.pt")
    (place.job / "code" / "results" / "last").symlink_to("model.pt")
    assert [one.name for one in place.find("results").new] == ["results/last", "results/model.pt"]
    place.write("results/readme", "changed by the job")
    assert len(place.find("results").new) == 3


@pytest.mark.parametrize("pattern", [".", "*"])
def test_a_file_that_vanishes_while_it_is_listed(
    place: Place, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch, pattern: str
) -> None:
    """A running job renames its temporary checkpoints."""
    for name in ("a.pt", "b.tmp"):
        place.write(name)
    lstat = os.lstat

    def vanishing(path: str) -> os.stat_result:
        if path.endswith("b.tmp"):
            Path(path).unlink()
        return lstat(path)

    monkeypatch.setattr(os, "lstat", vanishing)
    assert send_files.list_files(str(place.job / "code"), [pattern]) == 0
    sys.stdout.flush()
    listed = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert [file["name"] for file in listed] == ["a.pt"]


def test_file_names_that_are_not_text(place: Place) -> None:
    for name in (b"\xff", b"line\nbreak", b"a b"):
        Path(os.fsdecode(os.fsencode(place.job / "code" / "odd") + name)).write_bytes(name)
    place.get("odd*")
    found = {os.fsencode(p.name): p.read_bytes() for p in place.into.iterdir()}
    assert found == {b"odd\xff": b"\xff", b"oddline\nbreak": b"line\nbreak", b"odda b": b"a b"}


def test_file_names_are_utf8_whatever_locale_the_image_has(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    words = place.code.host.words
    monkeypatch.setattr(
        place.code.host, "words", lambda command: ran.append(command.line()) or words(command)
    )
    place.write("c.pt")
    place.get("c.pt")
    asked = [line for line in ran if "send_files" in line]
    assert len(asked) == 2 and all(" -X utf8 " in line for line in asked)


def test_what_is_not_there_is_said_with_what_is(place: Place) -> None:
    place.write("out/c.pt")
    with pytest.raises(
        NoSuchFile, match=r"has no file \*\.ckpt; the working directory of the job contains: out, results"
    ):
        place.find("*.ckpt")
    with pytest.raises(NoSuchFile, match=r"job one has no file out/x/y; out contains: c\.pt") as found:
        place.find("out", "out/x/y")
    assert found.value.fix.startswith(f"toolkit exec {HOST} -- ls /")
    with pytest.raises(NoSuchFile, match="job one wrote no file that matches results") as found:
        place.find("results")
    assert found.value.fix == "toolkit get --job one FILE"
    with pytest.raises(NoFolder, match="the host has no folder of job two"):
        place.find("out", job="two")


def test_a_folder_in_the_fix_is_quoted() -> None:
    missing = Missing("b", False, "/code/a; reboot", "a; reboot", (), 0)
    assert _no_such_file([missing], "gpu1", "one").fix == "toolkit exec gpu1 -- ls '/code/a; reboot'"


def test_local_files_that_differ_are_kept(place: Place) -> None:
    place.write("a", "theirs")
    place.write("b", "theirs")
    (place.into / "a").write_text("mine")
    found = place.find("a", "b")
    with pytest.raises(ToolkitError, match=r"would replace 1 local file: .*/a\n") as error:
        check_local([found], replace=False)
    assert "--force" in error.value.fix
    place.get("a", "b")  # what --force does
    assert (place.into / "a").read_text() == "theirs"
    (place.into / "b").unlink()
    (place.into / "b").mkdir()
    with pytest.raises(ToolkitError, match="b is a folder, so toolkit cannot write a file"):
        place.get("b")
    assert place.here() == ["a"]


class Meeting(Session):
    """A session with one host, whose container is the folder of a place."""

    def __init__(self, place: Place) -> None:
        super().__init__(world.inventory())
        self.facts = {HOST: world.facts_when_up()[HOST]}
        self.place = place

    def container(self, host: str, user: str = "") -> ContainerRunner:
        return self.place.container(host)


@pytest.fixture
def project(place: Place, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the code of the job the working directory; every command meets the same host."""
    place.write("out/model.pt")
    place.write("../status.json", '{"state": "succeeded", "exit_code": 0}')
    (place.code.source / "hosts.yaml").write_text(world.HOSTS)
    monkeypatch.setattr(Connection, "connect", lambda self, *names, **options: Meeting(place))
    monkeypatch.chdir(place.code.source)
    return place.code.source


@pytest.mark.parametrize("all_hosts", [False, True])
def test_what_was_downloaded_is_not_sent_with_the_next_job(project: Path, run: Run, all_hosts: bool) -> None:
    before = list_files(project)
    status, _, err = run("get", "out", *(["--all-hosts"] if all_hosts else []))
    folder = Path("runs", "one", *([HOST] if all_hosts else []))
    assert (project / folder / "out" / "model.pt").is_file(), err
    assert f"of job one to {folder}\n" in err and status == 0
    assert list_files(project) == before


def test_the_default_folder_from_python_is_that_of_the_command(project: Path) -> None:
    before = list_files(project)
    got = ClusterJob(Cluster(world.inventory())).get("out")
    assert got.into == "runs/one" and (project / "runs/one/out/model.pt").is_file()
    assert list_files(project) == before


def test_a_sub_folder_that_was_the_working_directory_keeps_its_downloads(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "lib").mkdir()
    before = list_files(project)
    monkeypatch.chdir(project / "lib")
    assert run("get", "out", "--hosts", "../hosts.yaml")[0] == 0
    assert (project / "lib/runs/one/out/model.pt").is_file()
    assert list_files(project) == before and list_files(project / "lib") == ()


def test_a_folder_that_is_named_takes_the_files(project: Path, run: Run) -> None:
    assert run("get", "out", "-o", ".")[0] == 0
    assert ClusterJob(Cluster(world.inventory())).get("out", into="back").files == 1
    assert {"out/model.pt", "back/out/model.pt"} <= set(list_files(project))
    assert not (project / "runs").exists()


def test_an_error_names_at_most_three_earlier_jobs() -> None:
    known = [JobStatus(f"job{n}", "succeeded", 0, float(n), n + 1.0, "") for n in range(7)]
    error = with_earlier_jobs(NoSuchFile("job job6 has no file x", ""), known, "job6", ["x"])
    assert error.what.endswith("earlier jobs: job5, job4, job3 and 3 more")


def test_a_file_that_the_newest_job_lacks_can_be_of_an_earlier_job(
    place: Place, project: Path, run: Run
) -> None:
    status, _, err = run("get", "model.pt")
    assert status == 1 and "earlier jobs" not in err
    job, _ = place.code.send(place.code.step(job="two"))
    (job / "status.json").write_text('{"state": "succeeded", "exit_code": 0, "started": 9.0}')
    status, _, err = run("get", "out", "--host", HOST)
    assert status == 1 and "; job two is the newest job; earlier jobs: one\n" in err
    assert f"fix: toolkit get --job one --host {HOST} out  # or with the id of another job" in err
    with pytest.raises(NoSuchFile, match="two is the newest job"):
        ClusterJob(Cluster(world.inventory())).get("out")
    status, _, err = run("get", "out", "--job", "two")
    assert status == 1 and "earlier jobs" not in err


def test_links_out_of_the_folder_are_left_out(place: Place) -> None:
    place.write("out/a")
    (place.job / "code" / "out" / "data").symlink_to("/data")
    (place.job / "code" / "out" / "gone").symlink_to("b")
    found = place.find("out")
    assert [one.name for one in found.skipped] == ["out/data"]
    assert [one.name for one in found.new] == ["out/a", "out/gone"]
    got = place.get("out")
    assert (got.files, place.here()) == (1, ["out/a"])
    assert got.skipped == (
        Skipped("out/data", "the link points outside the folder"),
        Skipped("out/gone", "the link points to no file in the folder"),
    )


class Breaking(ContainerHere):
    """The connection breaks after N bytes of files."""

    most = 150_000

    def stream(self, command: Any, sink: Any, source: Any = None, silence: float | None = None) -> Any:
        left = self.most

        def cut(data: bytes) -> None:
            nonlocal left
            sink(data[:left])
            left -= len(data)
            if left <= 0:
                raise ToolkitError("the connection was lost")

        return super().stream(command, cut, source)


def test_a_break_in_the_middle_leaves_whole_files_only(place: Place) -> None:
    for name in ("a", "b", "c"):
        place.write(f"out/{name}", name * 100_000)
    whole = place.code.host
    place.code.host = Breaking(place.code.root)
    with pytest.raises(ToolkitError, match="the connection was lost"):
        place.get("out")
    assert place.here() == ["out/a"] and [path.name for path in place.into.iterdir()] == ["out"]
    place.code.host = whole
    assert place.find("out").there == 1
    assert place.get("out").files == 2
    assert place.here() == ["out/a", "out/b", "out/c"]


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_the_stream_may_come_in_any_pieces(tmp_path: Path, pieces: int) -> None:
    text = (
        b'{"size": 3, "mtime": 7}\nabc{"refused": "no"}\n{"size": 0, "mtime": 8}\n{"size": 1, "mtime": 9}\n\n'
    )
    files = [RemoteFile("/x", name, 3) for name in "wxyz"]
    with LocalWriter(Destination(tmp_path)) as writer:
        stream = FileStream(writer, lambda done: None, files)
        for at in range(0, len(text), pieces):
            stream(text[at : at + pieces])
    assert stream.complete and stream.refused == [(files[1], "no")]
    found = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    assert found == {"w": (b"abc", 7), "y": (b"", 8), "z": (b"\n", 9)}


def test_state(tmp_path: Path) -> None:
    file = tmp_path / "a"
    one = RemoteFile("/x", "a", 1, 5_000_000_000)

    def state(wanted: RemoteFile = one) -> str:
        with LocalWriter(Destination(tmp_path)) as writer:
            return writer.state(wanted)

    assert state() == "new"
    file.write_text("x")
    os.utime(file, ns=(1, 5_000_000_000))
    assert state() == "there"
    os.utime(file, ns=(1, 6_000_000_000))
    assert state() == "differs"
    assert state(RemoteFile("/x", "a/below", 1, 5_000_000_000)) == "differs"
    assert state(RemoteFile("/x", "a", link="b")) == "differs"
    (tmp_path / "l").symlink_to("a")
    assert state(RemoteFile("/x", "l", link="a")) == "there"
    assert state(RemoteFile("/x", "l", 1, 6_000_000_000)) == "differs"


def test_no_file_can_be_executed_unless_modes_are_kept(place: Place) -> None:
    for name, mode in (("tool", 0o6755), ("plain", 0o640)):
        place.write(f"out/{name}").chmod(mode)
    place.get("out")
    out = place.into / "out"
    assert [(out / name).stat().st_mode & 0o7777 for name in ("tool", "plain")] == [0o644, 0o640]
    (out / "tool").unlink()
    place.get("out", keep_modes=True)
    assert (out / "tool").stat().st_mode & 0o7777 == 0o755


class Lying(ContainerHere):
    """A host whose send_files answers with these lines."""

    listed: Sequence[Mapping[str, Any]] = ()
    sent = b""

    def run(self, command: Any, timeout: float | None = None) -> Result:
        return Result(0, self.answer().decode())

    def answer(self) -> bytes:
        return b"@@begun@@\n" + "".join(f"{json.dumps(line)}\n" for line in self.listed).encode()

    def stream(self, command: Any, sink: Any, source: Any = None, silence: float | None = None) -> Result:
        assert silence, "a host that sends nothing would keep `get` waiting"
        if source is not None:
            sink(self.sent)
            return Result(0)
        data = self.answer()
        for at in range(0, len(data), 100):
            sink(data[at : at + 100])
        return Result(0)


def lying(place: Place, *listed: Mapping[str, Any], sent: bytes = b"") -> Place:
    host = Lying(place.code.root)
    host.listed, host.sent = listed, sent
    place.code.host = host
    return place


def a_file(name: str, size: int = 2, **more: Any) -> dict[str, Any]:
    return {"path": f"/x/{name}", "name": name, "size": size, "mtime": 1, "mode": 0o755, "inode": 1, **more}


def a_link(name: str, target: str) -> dict[str, Any]:
    return {"path": f"/x/{name}", "name": name, "link": target}


@pytest.mark.parametrize("name", [".git/hooks/pre-commit", "sitecustomize.py", "../out/x", "/out", "output"])
def test_a_file_that_was_not_requested_does_not_come(place: Place, name: str) -> None:
    lying(place, a_file("out/x"), a_file(name), sent=b'{"size": 2, "mtime": 1}\nhi' * 2)
    with pytest.raises(ToolkitError, match="the host listed a file that toolkit did not request") as caught:
        place.get("out")
    assert caught.value.host == HOST and place.here() == []


def test_links_that_lead_out_over_each_other(place: Place) -> None:
    outside = place.into.parent / "precious"
    outside.write_text("precious")
    links = (a_link("d", "."), a_link("e", "d/.."), a_link("s", "sub"), a_link("t", "s/../.."))
    lying(place, a_file("sub/x"), *links, sent=b'{"size": 2, "mtime": 1}\nhi')
    got = place.get(".")
    assert place.here() == ["s", "sub/x"] and len(got.skipped) == 3
    # A second answer counts on the links of the first one.
    lying(place, a_file("s/precious"), sent=b'{"size": 2, "mtime": 1}\nhi')
    found = place.find(".")
    with pytest.raises(ToolkitError, match=r"into/s is a symbolic link, and toolkit follows no links below"):
        check_local([found], replace=True)
    with pytest.raises(ToolkitError, match="symbolic link"):
        place.get(".")
    assert outside.read_text() == "precious" and place.here() == ["s", "sub/x"]


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b'{"size": -1, "mtime": 1}\n', "size"),
        (b'{"size": 30, "mtime": 1}\n', "larger than the listed"),
        (b'{"size": 2, "mtime": 1e300}\n', "mtime"),
        (b'{"size": 2}\n', "mtime: is missing"),
        (b"[" * 3000 + b"\n", "(nested too deeply|not JSON)"),  # Python 3.14 permits deeper nesting
        (b"x" * 70_000, "has 65537 bytes, but the limit is 65536"),
    ],
)
def test_what_a_host_sends_is_checked(place: Place, sent: bytes, field: str) -> None:
    lying(place, a_file("out"), sent=sent)
    with pytest.raises(ToolkitError, match=f"invalid reply about result files: .*{field}") as caught:
        place.get("out")
    assert caught.value.host == HOST and place.here() == []


def test_no_bytes_come_after_the_last_file(place: Place) -> None:
    lying(place, a_file("out"), sent=b'{"size": 2, "mtime": 1}\nhi{"size": 2, "mtime": 1}\nhi')
    with pytest.raises(ToolkitError, match="sent more files than the 1 that toolkit requested"):
        place.get("out")
    assert place.here() == ["out"]


def test_a_log_that_grows_comes_as_long_as_it_was_listed(place: Place) -> None:
    log, other = place.write("out/log", "one\n"), place.write("out/other", "one\n")
    found = place.find("out")
    with log.open("a") as file:
        file.write("two\n")
    other.rename(other.with_name("moved"))
    place.write("out/other", "another, longer")
    with pytest.raises(ToolkitError, match="replaced by a larger file"):
        bring(cast(Session, place), found, lambda done, total: None)
    assert (place.into / "out" / "log").read_text() == "one\n" and place.here() == ["out/log"]


def test_a_name_that_this_machine_cannot_have(place: Place) -> None:
    (place.into / "out").mkdir()
    lying(place, a_file("out/" + "x" * 300))
    with pytest.raises(ToolkitError, match=r"cannot read .*: File name too long") as caught:
        place.find("out")
    assert caught.value.host == HOST


def test_a_list_of_files_is_limited(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    lying(place, *(a_file(f"out/{number}") for number in range(20)))
    assert len(place.find("out").new) == 20
    monkeypatch.setattr(get, "_MOST_LISTED", 1 << 10)
    with pytest.raises(ToolkitError, match="the list of the job's files is larger than 0 MiB") as caught:
        place.find("out")
    assert caught.value.host == HOST


def test_find_files_refuses_a_repeated_name(place: Place) -> None:
    lying(place, a_file("out"), a_link("out", "x"))
    with pytest.raises(ToolkitError, match="a name that occurs twice"):
        place.find("out")


@pytest.mark.parametrize("job", ["../..", "/root", ".ssh", "a/b", "", 7, None])
def test_a_job_id_is_never_a_path(place: Place, job: object) -> None:
    session = Meeting(place)
    rows = [{"id": job, "alive": False, "status": {"state": "succeeded"}, "record": {}}]
    place.code.host = Lying(place.code.root)
    place.code.host.listed = [rows]  # type: ignore[list-item]
    with pytest.raises(ToolkitError, match="cannot read the job list") as caught:
        known_jobs(session)
    assert caught.value.host == HOST


def test_a_short_list_of_jobs_has_no_table_of_slots_that_fills_the_memory(place: Place) -> None:
    session = Meeting(place)
    hosts = [{"name": f"h{number}", "slots": 4096} for number in range(16)]
    rows = [
        {"id": f"j{number}", "alive": False, "status": {"state": "succeeded"}, "record": {"hosts": hosts}}
        for number in range(17)
    ]
    place.code.host = Lying(place.code.root)
    place.code.host.listed = [rows]  # type: ignore[list-item]
    with pytest.raises(ToolkitError, match="more than 1048576 slots") as caught:
        known_jobs(session)
    assert caught.value.host == HOST
    place.code.host.listed = [rows[:16]]  # type: ignore[list-item]
    assert len(known_jobs(session)) == 16


@pytest.mark.parametrize(("length", "items", "what"), [(1 << 21, 1 << 21, "bytes"), (1, 20, "items")])
def test_a_list_of_too_many_jobs_names_the_command_that_removes_some(
    place: Place, monkeypatch: pytest.MonkeyPatch, length: int, items: int, what: str
) -> None:
    place.code.host = Lying(place.code.root)
    status = {"state": "failed", "reason": "x" * length}
    rows = [{"id": f"j{number}", "alive": False, "status": status} for number in range(9)]
    place.code.host.listed = [rows]  # type: ignore[list-item]
    monkeypatch.setattr(decode, "_MOST_ITEMS", items)
    with pytest.raises(ToolkitError, match=f"cannot read the job list .*{what}") as caught:
        known_jobs(Meeting(place))
    assert caught.value.fix.startswith("toolkit gc --older-than 30  # ")


def test_saved_logs_stay_below_their_folder(project: Path, place: Place, run: Run) -> None:
    place.write("../logs/rank-0.log", "step 1\n")
    place.write("../output.log", "[gpu1 0] step 1\n")
    kept = project / "kept"
    status, _, err = run("logs", "one", "--save", "kept")
    assert status == 0, err
    assert (kept / "one" / HOST / "logs" / "rank-0.log").read_text() == "step 1\n"
    # A link that an earlier download left is not followed.
    moved = (kept / "one" / HOST).rename(project / "moved")
    (kept / "one" / HOST).symlink_to(moved)
    place.write("../logs/rank-0.log", "step 1\nstep 2\n")
    status, _, err = run("logs", "one", "--save", "kept")
    assert status == 1 and f"kept/one/{HOST} is a symbolic link" in err
    assert (moved / "logs" / "rank-0.log").read_text() == "step 1\n"


@pytest.mark.parametrize("left", [False, True])
def test_logs_of_hosts_that_are_not_ours(project: Path, place: Place, run: Run, left: bool) -> None:
    place.write("../logs/rank-0.log", "step 1\n")
    place.write("../output.log", "[gpu1 0] step 1\n")
    hosts, restarts = {HOST: [0], "../../x": [0]}, list[object]()
    if left:  # the job has restarted on the other host only
        del hosts["../../x"]
        restarts = [{"reason": "lost", "hosts": [HOST, "../../x"]}]
    status = {"state": "succeeded", "exit_code": 0, "hosts": hosts, "restarts": restarts}
    place.write("../status.json", json.dumps(status))
    code, _, err = run("logs", "one", "--save", "kept")
    assert code == 1 and "ran on '../../x', which is not in hosts.yaml" in err
    assert (project / "kept" / "one" / HOST / "logs" / "rank-0.log").is_file()
