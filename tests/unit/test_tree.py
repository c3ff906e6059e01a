"""What of a folder travels: git's own word for it, and what the stream holds."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from toolkit.effects.tree import list_files, tar_stream, total_bytes
from toolkit.errors import ToolkitError

GIT = shutil.which("git")


def put(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def by_git(folder: Path) -> list[str]:
    """The files that git would take, with no settings of the person's."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}
    if not (folder / ".git").exists():
        subprocess.run(["git", "init", "-q"], cwd=folder, env=env, check=True)
    ask = ["git", "ls-files", "-z", "-co", "--exclude-standard"]
    out = subprocess.run(ask, cwd=folder, env=env, check=True, capture_output=True, text=True).stdout
    return sorted(out.split("\0")[:-1])


RULES = [
    "*.log",
    "!keep.log",
    "build",
    "build/",
    "/out",
    "out/*",
    "!out/keep",
    "**/cache",
    "data/**",
    "!data/**/",
    "!data/**/*.csv",
    "*.tmp\n!a/*.tmp",
    "a/b",
    "a/**/z.txt",
    "*\n!*/\n!*.py",
    "[ab].txt",
    "x?.py",
    "#comment",
    "\\#sharp",
    "trailing ",
    "sp\\ ",
    "!",
    "",
    "dir/sub/",
    "*/sub/",
    "doc/*.txt",
    "\\!bang",
    "a**b",
    "**.py",
    "a/**",
    "**/sub/*.txt",
    "[!a-b].txt",
    "[^a].txt",
    "[]a].txt",
    "[a",
    "[a-]*",
    "[\\a].txt",
    "*\\",
    "\\a.txt",
    "esc\\\\ ",
    "sub/",
    "!sub/",
    "/*\n!/data",
    "/*\n!/data/\n/data/*\n!/data/sub",
    "foo/../a.txt",
    "./a.txt",
    "//a.txt",
    "a//b",
    "é.py",
]
NAMES = ["a", "b", "build", "out", "cache", "data", "sub", "dir", "keep", "doc"]
LEAVES = [
    *("a.txt", "b.txt", "c.txt", "z.txt", "run.log", "keep.log", "x1.py", "main.py", "t.tmp", "t.csv"),
    *("keep", "build", "out", "cache", "#sharp", "!bang", "trailing", "sp ", "a b.txt", "é.py"),
]


@pytest.mark.skipif(not GIT, reason="there is no git on this machine")
@pytest.mark.parametrize("seed", range(40))
def test_the_same_files_as_git(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        folder = tmp_path.joinpath(*chance.choices(NAMES, k=chance.randrange(4)))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / chance.choice(LEAVES)).write_text("x")
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            continue  # the same name was a file before, or a folder
    folders = [tmp_path, *(p for p in sorted(tmp_path.rglob("*")) if p.is_dir())]
    for folder in [tmp_path, *chance.sample(folders, k=min(3, len(folders)))]:
        lines = chance.sample(RULES, k=chance.randrange(1, 5))
        (folder / ".gitignore").write_text(chance.choice(["\n", "\r\n"]).join(lines) + "\n")
    assert list(list_files(tmp_path)) == by_git(tmp_path)


@pytest.mark.parametrize("rules", ["!.git/\n!.venv/\n!__pycache__/\n!.lab/\n!runs/\n", "*\n!*/\n!*.py\n", ""])
def test_what_is_no_program_never_travels(tmp_path: Path, rules: str) -> None:
    put(tmp_path, "main.py", "lib/util.py")
    put(
        tmp_path,
        ".git/hook.py",
        ".venv/x.py",
        "lib/__pycache__/y.py",
        ".lab/z.py",
        "runs/w.py",
        "lib/.venv/v.py",
    )
    (tmp_path / ".gitignore").write_text(rules)
    (tmp_path / "lib" / ".gitignore").write_text("!.venv/\n")
    assert [name for name in list_files(tmp_path) if name.endswith(".py")] == ["lib/util.py", "main.py"]


def test_our_own_ignore_file_counts_after_gits(tmp_path: Path) -> None:
    put(tmp_path, "a.bin", "b.bin", "model.pt", "main.py")
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / ".toolkitignore").write_text("*.pt\n!b.bin\n")
    assert list_files(tmp_path) == (".gitignore", ".toolkitignore", "b.bin", "main.py")


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"\xff\n"])
def test_ignore_files_as_editors_write_them(tmp_path: Path, head: bytes) -> None:
    put(tmp_path, "a.log", "main.py")
    (tmp_path / ".gitignore").write_bytes(head + b"*.log\r\n")
    assert list_files(tmp_path) == (".gitignore", "main.py")


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ToolkitError, match="is not a folder"):
        list_files(tmp_path / "absent")


def unpacked(stream: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        return {m.name: m for m in tar.getmembers()}


def test_the_stream_holds_texts_first_then_the_code(tmp_path: Path) -> None:
    put(tmp_path, "train.py", "lib/é.py", text="print(1)\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "link").symlink_to("train.py")
    (tmp_path / "linked").symlink_to("lib")
    (tmp_path / "dangling").symlink_to("/no/where")
    os.mkfifo(tmp_path / "pipe")
    paths = list_files(tmp_path)
    assert paths == ("dangling", "lib/é.py", "link", "linked", "run.sh", "train.py")
    stream = b"".join(tar_stream(tmp_path, paths, {"job.json": "{}", "record.json": "é"}))
    found = unpacked(stream)
    assert list(found) == ["job.json", "record.json", "code", "logs", *(f"code/{p}" for p in paths)]
    # The job file may hold secrets.
    assert found["job.json"].mode == found["record.json"].mode == 0o600
    assert found["code/run.sh"].mode & 0o111
    assert (found["code/link"].issym(), found["code/link"].linkname) == (True, "train.py")
    assert found["code/linked"].issym()
    with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
        member = tar.extractfile("code/lib/é.py")
        assert member is not None and member.read() == b"print(1)\n"
    assert total_bytes(tmp_path, paths) >= 2 * len("print(1)\n")


def test_the_real_tar_unpacks_it(tmp_path: Path) -> None:
    put(tmp_path, "src/a b/train.py", f"src/{'deep/' * 30}x.py")
    source, target = tmp_path / "src", tmp_path / "there"
    target.mkdir()
    stream = b"".join(tar_stream(source, list_files(source), {"job.json": "{}"}))
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", str(target)], input=stream, check=True)
    assert list_files(target / "code") == list_files(source)


def test_without_code_the_stream_holds_the_texts(tmp_path: Path) -> None:
    assert list(unpacked(b"".join(tar_stream(None, (), {"job.json": "{}"})))) == ["job.json", "code", "logs"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    put(tmp_path, "a.py", "b.py")
    with pytest.raises(ToolkitError, match=r"cannot read the code to send.*gone\.py"):
        b"".join(tar_stream(tmp_path, ("a.py", "gone.py", "b.py"), {}))
    if os.getuid():  # root reads everything
        (tmp_path / "b.py").chmod(0)
        with pytest.raises(ToolkitError, match="Permission denied"):
            b"".join(tar_stream(tmp_path, ("b.py",), {}))


def test_a_receiver_that_stops_is_no_error(tmp_path: Path) -> None:
    put(tmp_path, "big.bin", text="x" * 1_000_000)
    stream = tar_stream(tmp_path, ("big.bin",), {})
    next(stream)
    stream.close()
