"""Bringing results: what is found, what is here already, what must not be, how it ends in the middle."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit import cluster_world as world
from tests.unit.code_here import HOST, Code, ContainerHere
from tests.unit.conftest import Run
from toolkit.api import Session
from toolkit.cluster import Cluster
from toolkit.cluster_connection import Connection
from toolkit.cluster_job import ClusterJob
from toolkit.effects.landing import Coming, Landing, safe_target, standing
from toolkit.effects.runner import ContainerRunner
from toolkit.effects.tree import list_files
from toolkit.errors import ToolkitError
from toolkit.get import Found, Got, NoFolder, NoSuchFile, bring, find_files, refuse_overwriting


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
        return find_files(cast(Session, self), HOST, job, patterns, self.into)

    def get(self, *patterns: str) -> Got:
        return bring(cast(Session, self), self.find(*patterns), lambda done, total: None)

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
    assert place.get("results") == Got(HOST, str(place.into), 4, 100_000, 0)
    assert place.here() == ["results/a/model.pt", "results/deep", "results/last", "results/log"]
    model = place.into / "results" / "a" / "model.pt"
    assert model.read_text() == "m" * 100_000
    assert model.stat().st_mtime_ns == 1_234_567_890_123_456_789 and model.stat().st_mode & 0o777 == 0o755
    assert str((place.into / "results" / "last").readlink()) == "a/model.pt"
    again = place.find("results")
    assert (again.new, again.there) == ((), 4)
    one.write_text("n")
    assert [coming.name for coming in place.find("results").differs] == ["results/a/model.pt"]


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


def test_absolute_paths_and_those_above_the_working_directory(place: Place, tmp_path: Path) -> None:
    data = tmp_path / "data"
    for name in ("run1/best.pt", "run2/best.pt", "run2/other"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text(name)
    place.get(f"{data}/*/best.pt", "../record.json")
    assert place.here() == ["record.json", "run1/best.pt", "run2/best.pt"]
    place.get(f"{data}/run2")
    assert "run2/other" in place.here()


def test_names_that_are_no_text(place: Place) -> None:
    for name in (b"\xff", b"line\nbreak", b"a b"):
        Path(os.fsdecode(os.fsencode(place.job / "code" / "odd") + name)).write_bytes(name)
    place.get("odd*")
    found = {os.fsencode(p.name): p.read_bytes() for p in place.into.iterdir()}
    assert found == {b"odd\xff": b"\xff", b"oddline\nbreak": b"line\nbreak", b"odda b": b"a b"}


def test_what_is_not_there_is_said_with_what_is(place: Place) -> None:
    place.write("out/c.pt")
    with pytest.raises(NoSuchFile, match=r"job one has no \*\.ckpt; in the job's folder: out, results"):
        place.find("*.ckpt")
    with pytest.raises(NoSuchFile, match=r"job one has no out/x/y; in out: c\.pt") as found:
        place.find("out", "out/x/y")
    assert found.value.fix.startswith(f"toolkit exec {HOST} -- ls /")
    with pytest.raises(NoSuchFile, match="job one has written nothing to results"):
        place.find("results")
    with pytest.raises(NoFolder, match="there is no folder of job two"):
        place.find("out", job="two")


def test_local_files_that_differ_are_kept(place: Place) -> None:
    place.write("a", "theirs")
    place.write("b", "theirs")
    (place.into / "a").write_text("mine")
    found = place.find("a", "b")
    with pytest.raises(ToolkitError, match=r"these differ .* nothing was brought: .*/a\n") as error:
        refuse_overwriting([found])
    assert "--force" in error.value.fix
    place.get("a", "b")  # what --force does
    assert (place.into / "a").read_text() == "theirs"
    (place.into / "b").unlink()
    (place.into / "b").mkdir()
    with pytest.raises(ToolkitError, match="b is a folder here and a file there"):
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
    assert f"of one in {folder}\n" in err and status == 0
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


def coming(name: str, link: str | None = None) -> Coming:
    return Coming("/x", name, link=link)


@pytest.mark.parametrize(
    ("one", "safe"),
    [
        (coming("a/b"), True),
        (coming("../a"), False),
        (coming("a/../../b"), False),
        (coming("/etc/passwd"), False),
        (coming(""), False),
        (coming("out/x"), False),
        (coming("a/l", "b"), True),
        (coming("a/l", "../b"), True),
        (coming("a/l", "../../b"), False),
        (coming("l", "/etc"), False),
        (coming("out/l", "x"), False),
    ],
)
def test_nothing_lands_outside_of_the_folder(tmp_path: Path, one: Coming, safe: bool) -> None:
    into = tmp_path / "into"
    into.mkdir()
    (into / "out").symlink_to(tmp_path)
    assert (safe_target(into, one) is not None) == safe


def test_links_out_of_the_folder_are_left_out(place: Place) -> None:
    place.write("out/a")
    (place.job / "code" / "out" / "data").symlink_to("/data")
    found = place.find("out")
    assert [one.name for one in found.outside] == ["out/data"] and [one.name for one in found.new] == [
        "out/a"
    ]


class Breaking(ContainerHere):
    """The connection breaks after so many bytes of files."""

    most = 150_000

    def stream(self, command: Any, sink: Any, source: Any = None) -> Any:
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
    assert place.here() == ["out/a"]
    place.code.host = whole
    assert place.find("out").there == 1
    assert place.get("out").files == 2
    assert place.here() == ["out/a", "out/b", "out/c"]


@pytest.mark.parametrize("pieces", [1, 2, 7, 1000])
def test_the_stream_may_come_in_any_pieces(tmp_path: Path, pieces: int) -> None:
    text = (
        b'{"size": 3, "mtime": 7}\nabc{"refused": "no"}\n{"size": 0, "mtime": 8}\n{"size": 1, "mtime": 9}\n\n'
    )
    files = [(coming(name), tmp_path / name) for name in "wxyz"]
    landing = Landing(files, lambda done: None)
    for at in range(0, len(text), pieces):
        landing(text[at : at + pieces])
    assert landing.whole and landing.refused == [(files[1][0], "no")]
    found = {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in tmp_path.iterdir()}
    assert found == {"w": (b"abc", 7), "y": (b"", 8), "z": (b"\n", 9)}


def test_standing(tmp_path: Path) -> None:
    file = tmp_path / "a"
    one = Coming("/x", "a", 1, 5_000_000_000)
    assert standing(file, one) == "new"
    file.write_text("x")
    os.utime(file, ns=(1, 5_000_000_000))
    assert standing(file, one) == "there"
    os.utime(file, ns=(1, 6_000_000_000))
    assert standing(file, one) == "differs"
    assert standing(file / "below", one) == "differs"
