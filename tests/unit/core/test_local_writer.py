"""Files from elsewhere: only below their folder, complete or not at all, and nothing left beside them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.core.files import write_page
from toolkit.core.local_writer import (
    BlockedPath,
    Destination,
    LocalWriter,
    UnsafeName,
    destination,
    split_name,
)
from toolkit.errors import BadInput, ToolkitError


def put(writer: LocalWriter, name: str, data: bytes = b"x") -> None:
    file = writer.create(name)
    file.write(data)
    file.commit()


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["", "/etc/x", "..", "../x", "a/../x", "a//b", ".", "a/.", "a\0b", "a/"])
def test_names_that_lead_elsewhere(into: Path, name: str) -> None:
    with pytest.raises(UnsafeName) as caught, LocalWriter(Destination(into), "gpu1") as writer:
        put(writer, name)
    assert caught.value.host == "gpu1" and below(into.parent) == []


def test_a_file_has_its_name_only_when_it_is_complete(into: Path) -> None:
    with LocalWriter(Destination(into)) as writer:
        file = writer.create("a/b")
        file.write(b"one")
        assert not (into / "a").exists()
        file.commit(mtime=5)
        assert ((into / "a/b").read_bytes(), (into / "a/b").stat().st_mtime_ns) == (b"one", 5)
        writer.create("a/half").write(b"two")
    assert below(into.parent) == ["into/a/b"]
    assert entries(into) == ["a"], "no staging folder stays"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_nothing_half_stays_after_an_error(into: Path, error: type[BaseException]) -> None:
    with pytest.raises(error), LocalWriter(Destination(into)) as writer:
        put(writer, "a")
        writer.create("b").write(b"x")
        raise error
    assert entries(into) == ["a"]


def test_no_link_of_the_destination_is_followed(into: Path) -> None:
    outside = into.parent / "outside"
    outside.mkdir()
    (outside / "x").write_text("precious")
    (into / "out").symlink_to(outside)
    (into / "here").symlink_to(".")
    (into / "x").symlink_to(outside / "x")
    whole = Destination(into)
    for place, name in ((whole, "out/x"), (whole, "here/y"), (whole.folder("out"), "x")):
        with pytest.raises(BlockedPath, match=r"is a symbolic link"), LocalWriter(place) as writer:
            put(writer, name)
    with LocalWriter(Destination(into)) as writer:
        put(writer, "x", b"new")  # the last component is replaced
    assert (into / "x").read_text() == "new" and not (into / "x").is_symlink()
    assert below(outside) == ["x"] and (outside / "x").read_text() == "precious"
    # The folder that the user named may be reached through a link.
    with LocalWriter(Destination(into / "out")) as writer:
        put(writer, "y")
    assert below(outside) == ["x", "y"]


def test_files_and_folders_in_the_way(into: Path) -> None:
    (into / "folder").mkdir()
    (into / "file").write_text("mine")
    with LocalWriter(Destination(into)) as writer:
        with pytest.raises(ToolkitError, match="folder is a folder, so toolkit cannot write a file"):
            put(writer, "folder")
        with pytest.raises(BlockedPath, match="file is a file, so toolkit cannot create a folder"):
            put(writer, "file/x")
        with pytest.raises(FileExistsError):
            writer.create("file").commit(replace=False)
        writer.create("new").commit(replace=False)
    assert below(into) == ["file", "new"] and (into / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("l", "a/f", ""),
        ("a/l", "f", ""),
        ("a/l", "../b", ""),
        ("new/l", "../a/../a/./f", ""),
        ("a/deep/l", "..", ""),
        ("l", "/etc/passwd", "points outside"),
        ("l", ".", "points outside"),
        ("l", "a/..", "points outside"),
        ("l", "..", "points outside"),
        ("a/l", "../../into/a", "points outside"),
        ("l", "nothing", "points to no file"),
        ("l", "nothing/../a", "points to no file"),
        ("l", "a/f/..", "points to no file"),
        ("l", "a/f/.", "points to no file"),
        ("l", "pipe", "points to no file"),
        ("l", "old", "through another link, old"),
        ("l", "old/../..", "through another link, old"),
        ("l", "a/up/x", "through another link, a/up"),
    ],
)
def test_links_lead_to_what_is_in_the_folder(into: Path, name: str, target: str, reason: str) -> None:
    for folder in ("a/deep", "b"):
        (into / folder).mkdir(parents=True)
    (into / "a" / "f").write_text("x")
    (into / "old").symlink_to("a")
    (into / "a" / "up").symlink_to("..")
    os.mkfifo(into / "pipe")
    with LocalWriter(Destination(into)) as writer:
        why = writer.link(name, target)
    assert reason in why and bool(reason) == bool(why)
    assert (into / name).is_symlink() == (not reason)
    assert not reason or not (into / "new").exists()
    assert not [entry for entry in entries(into) if entry.startswith(".")]


def test_a_link_is_judged_below_the_whole_destination(tmp_path: Path) -> None:
    with LocalWriter(Destination(tmp_path, ("job", "gpu1"))) as writer:
        put(writer, "a")
        assert writer.link("l", "../../secret") == "the link points outside the folder"
        assert writer.link("l", "a") == ""
    assert below(tmp_path) == ["job/gpu1/a", "job/gpu1/l"]


def test_no_mode_lets_a_file_run_or_change_its_user(into: Path) -> None:
    for keep, wanted in ((False, 0o644), (True, 0o755)):
        with LocalWriter(Destination(into), keep_modes=keep) as writer:
            writer.create("x").commit(0o7777)
        assert (into / "x").stat().st_mode & 0o7777 == wanted & ~_umask()


def _umask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def test_limits_of_size_and_number(into: Path) -> None:
    five, one = LocalWriter(Destination(into), "gpu1", size=5), LocalWriter(Destination(into), files=1)
    with pytest.raises(ToolkitError, match="sent more bytes than announced") as caught, five:
        put(five, "a", b"xxx")
        put(five, "b", b"xxx")
    assert caught.value.host == "gpu1" and entries(into) == ["a"]
    with pytest.raises(ToolkitError, match="sent more files than announced"), one:
        put(one, "a")
        put(one, "c")
    assert entries(into) == ["a"]


def test_the_free_space_is_a_limit(into: Path, free_bytes: Callable[[int], None]) -> None:
    free_bytes(100)
    with pytest.raises(ToolkitError, match="than fit into"), LocalWriter(Destination(into)) as writer:
        put(writer, "a", b"x" * 95)
        put(writer, "b")
    assert entries(into) == ["a"]


def test_only_below_runs_no_link_is_followed() -> None:
    assert (
        destination("runs/demo") == destination(Path("./runs/demo")) == Destination(Path("runs"), ("demo",))
    )
    assert destination("runs/../x") == Destination(Path("runs/../x"))
    assert destination("/data/runs") == Destination(Path("/data/runs"))
    assert destination("runs").folder("a", "b").path == Path("runs/a/b")


def test_names_are_split() -> None:
    assert split_name("a/b c/\udcff") == ("a", "b c", "\udcff")


def test_a_page_with_the_id_of_a_job_replaces_a_link(into: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(into)
    Path("mine").write_text("precious")
    Path("report-x.html").symlink_to("mine")
    assert write_page("report-x.html", "page") == Path("report-x.html")
    write_page("report-x.html", "another")
    assert (Path("report-x.html").read_text(), Path("mine").read_text()) == ("another", "precious")
    Path("report-y.html").mkdir()
    with pytest.raises(BadInput, match="is a folder, so toolkit"):
        write_page("report-y.html", "page")
    assert entries(into) == ["mine", "report-x.html", "report-y.html"]
