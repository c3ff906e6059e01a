"""Snapshots of the code: both sides for real, edits, damage, two at once, kills at any moment."""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.code_here import Code, look
from tests.unit.container_world import INSIDE, copied_programs
from toolkit.container.code.packs import load
from toolkit.core.code import CodeTree, Entry
from toolkit.core.command import Command
from toolkit.errors import ToolkitError
from toolkit.remote.container_session import ContainerSession

Damage = Callable[[Path], None]


@pytest.fixture
def code(tmp_path: Path) -> Code:
    made = Code(tmp_path)
    made.put(train="print(1)", lib__a="a" * 3000, lib__b="b", lib__deep__c="")
    (made.source / "run").write_text("#!/bin/sh\n")
    (made.source / "run").chmod(0o755)
    (made.source / "link").symlink_to("lib/a")
    return made


def same(job: Path, code: Code) -> bool:
    there = look(job / "code")
    return there == look(code.source)


def test_a_jobs_folder(code: Code) -> None:
    job, verdict = code.send()
    assert same(job, code) and verdict.status == "ok"
    assert sorted(p.name for p in job.iterdir()) == [".sent", "code", "job.json", "logs", "record.json"]
    assert [(job / name).stat().st_mode & 0o777 for name in ("job.json", "record.json")] == [0o600] * 2
    assert ((job / "job.json").read_text(), (job / "record.json").read_text()) == ("{}", "{}")
    newest = max(path.lstat().st_ctime_ns for path in (job / "code").rglob("*"))
    assert newest <= (job / ".sent").stat().st_mtime_ns
    sent = load(str(job / ".sent"))
    about = (code.source / "train").stat()
    assert (sent["train"], sent["link"], len(sent)) == ([about.st_size, about.st_mtime_ns], "lib/a", 6)
    assert code.store.stat().st_mode & 0o777 == 0o700


def test_without_code_there_is_an_empty_folder(code: Code) -> None:
    step = code.step(CodeTree())
    step = type(step)(step.host, step.title, step.container, step.target, "", CodeTree(), "{}")
    job, verdict = code.send(step)
    assert look(job / "code") == {} and verdict.detail == ""


@pytest.mark.parametrize("spare", [True, False])
def test_nothing_changed_and_one_file_changed(code: Code, spare: bool) -> None:
    rest = {f"many{n}": f"{n}" * 50 for n in range(250)}
    code.put(**rest)

    def turn() -> tuple[Path, int, int]:
        code.settle()
        if not spare:
            for one in code.spares():
                shutil.rmtree(one)
        code.host.up = code.host.down = 0
        job, verdict = code.send()
        assert same(job, code)
        return job, code.host.up + code.host.down, dict(verdict.amounts)["content"]

    code.send()
    _, wire, content = turn()
    assert wire < 7000 and content == 0
    code.put(train="print(2)" * 100)
    _, wire, content = turn()
    assert wire < 8000 and content == 800
    os.utime(code.source / "lib" / "b", ns=(5, 5))
    (code.source / "run").chmod(0o644)
    assert turn()[2] == 0
    # What was here under another name does not travel again.
    (code.source / "lib").rename(code.source / "moved")
    assert turn()[2] == 0


def test_random_edits_always_arrive(code: Code) -> None:
    chance = random.Random(1)
    names = ["x", "y", "d/x", "d/y", "d/e/x", "d", "a b", "line\nbreak", "é"]
    for turn in range(25):
        for _ in range(chance.randrange(4)):
            path = code.source / chance.choice(names)
            if path.is_symlink() or path.is_file():
                path.unlink()
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                try:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    if chance.random() < 0.3:
                        path.symlink_to(chance.choice(names))
                    else:
                        path.write_text(chance.choice(["", "1", "2" * 100]))
                        path.chmod(chance.choice([0o644, 0o755, 0o400]))
                except (FileExistsError, NotADirectoryError):
                    continue
        for folder in sorted(code.source.rglob("*"), reverse=True):
            if folder.is_dir() and not folder.is_symlink() and not any(folder.iterdir()):
                folder.rmdir()  # empty folders do not travel
        if turn % 3:
            code.settle()
        job, _ = code.send()
        assert same(job, code)


def test_file_names_that_are_not_text(code: Code) -> None:
    (code.source / os.fsdecode(b"\xff\n\xfe")).write_bytes(b"odd")
    (code.source / "to").symlink_to(os.fsdecode(b"\xff\n\xfe"))
    for _ in range(2):
        job, _ = code.send()
        assert same(job, code)
        code.settle()


def test_what_a_job_does_to_its_files_reaches_no_other(code: Code) -> None:
    job, _ = code.send()
    code.settle()
    for path in (job / "code").rglob("*"):
        if path.is_file() and not path.is_symlink():
            assert path.stat().st_nlink == 1
            path.write_text("spoiled")
    shutil.rmtree(job / "code" / "lib")
    other, verdict = code.send()
    assert same(other, code) and verdict.detail == "no new content"


def spoil_pack(store: Path) -> None:
    for pack in (store / "packs").glob("*.pack"):
        pack.write_bytes(pack.read_bytes().replace(b"aaa", b"axa"))


def cut_packs(store: Path) -> None:
    for pack in (store / "packs").glob("*.pack"):
        pack.write_bytes(pack.read_bytes()[:10])


def drop_spares(store: Path) -> None:
    for spare in (store / "spares").iterdir():
        shutil.rmtree(spare)


def edit_spare(store: Path) -> None:
    for spare in (store / "spares").iterdir():
        train = spare / "code" / "train"
        about = train.stat()
        train.write_text("print(X)")
        os.utime(train, ns=(about.st_atime_ns, about.st_mtime_ns))
        (spare / "code" / "extra").write_text("")
        (spare / "code" / "more").mkdir()
        (spare / "code" / "run").chmod(0o644)
        (spare / "code" / "lib").chmod(0o700)


def junk_indexes(store: Path) -> None:
    for file in [*store.glob("*/*.json"), *store.glob("*/*.marks"), *store.glob("spares/*/*.json")]:
        file.write_text("{}")


def sealed(path: Path, change: Callable[[Any], object]) -> None:
    """Change a value of the store as a rank could, with the sum that makes it count."""
    sealed_text = path.read_bytes().partition(b"\n")[2] if path.exists() else b""
    if sealed_text:
        value = json.loads(sealed_text)
        change(value)
        text = json.dumps(value).encode()
        path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def forge_spare(store: Path) -> None:
    """Put other code into a spare, and into its account the times that the kernel gave to that code."""
    for spare in (store / "spares").iterdir():
        train = spare / "code" / "train"
        about = train.stat()
        train.write_text("print(X)")
        os.utime(train, ns=(about.st_atime_ns, about.st_mtime_ns))

        def note(index: Any, train: Path = train) -> None:
            for row in index["rows"]:
                if row[0] == "train":
                    row[6] = train.stat().st_ctime_ns

        sealed(spare / "index.json", note)


def forge_trees(store: Path) -> None:
    """Make the lists of trees name another content for a file, and spares go by these lists."""

    def swap(tree: Any) -> None:
        entries = {entry[0]: entry for entry in (tree[1] if isinstance(tree[0], int) else tree)}
        entries["train"][3], entries["train"][5] = entries["lib/b"][3], entries["lib/b"][5]

    for path in (store / "trees").glob("*.json"):
        sealed(path, swap)
    drop_spares(store)


def link_spare(store: Path) -> None:
    """Leave a second name for a file of a spare, and a link in the place of another one's folder."""
    for spare in (store / "spares").iterdir():
        os.link(spare / "code" / "train", store / f"train-of-{spare.name}")
        (spare / "code").rename(store / f"code-of-{spare.name}")
        (spare / "code").symlink_to(store / f"code-of-{spare.name}")


DAMAGES = [spoil_pack, cut_packs, drop_spares, edit_spare, junk_indexes, forge_spare, forge_trees, link_spare]


PAIRS = [*((one,) for one in DAMAGES), *itertools.combinations(DAMAGES, 2), tuple(DAMAGES)]


@pytest.mark.parametrize("damages", PAIRS)
def test_a_damaged_store_never_gives_wrong_code(code: Code, damages: tuple[Damage, ...]) -> None:
    code.send()
    code.settle()
    for damage in damages:
        damage(code.store)
    if len(damages) > 1:
        code.put(train="print(3)", lib__new="new")
    job, _ = code.send()
    assert same(job, code)
    code.settle()
    job, _ = code.send()
    assert same(job, code)


@pytest.mark.parametrize("forge", [forge_spare, forge_trees, link_spare])
def test_a_job_that_edits_the_store_does_not_choose_the_next_ones_code(code: Code, forge: Damage) -> None:
    code.send()
    code.settle()
    forge(code.store)
    job, _ = code.send()
    assert same(job, code) and not (job / "code").is_symlink()
    assert (job / "code" / "train").stat().st_nlink == 1
    code.settle()


def replaced(path: Path, by: str) -> None:
    """Put something else into the place of a file or folder."""
    if by == "unreadable":
        path.chmod(0)
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if by == "folder":
        (path / "deep" / "er").mkdir(parents=True)
        (path / "deep").chmod(0)
    elif by == "file":
        path.write_text("")
    elif by == "link":
        path.symlink_to("/dev/zero")
    elif by == "dangling link":
        path.symlink_to(path.parent / "nowhere")
    elif by == "pipe":
        os.mkfifo(path)


PLACES = {
    "the store": "",
    "the packs": "packs",
    "the trees": "trees",
    "the spares": "spares",
    "the lock": "lock",
    "another lock": "busy",
    "an index": "packs/*.json",
    "a pack": "packs/*.pack",
    "a tree": "trees/*.json",
    "the marks of a tree": "trees/*.marks",
    "a spare": "spares/*",
}
FOLDERS = {"the store", "the packs", "the trees", "the spares", "a spare"}
KINDS = ["folder", "file", "link", "pipe", "unreadable"]
DAMAGED = [(place, by) for place in PLACES for by in KINDS if by != "folder" or place not in FOLDERS]
# An empty file in these places is as good as none.
UNSEEN = {"the lock", "another lock", "an index", "a pack", "a tree", "the marks of a tree"}


@pytest.mark.parametrize(("place", "by"), [*DAMAGED, ("the store", "dangling link")])
def test_a_run_replaces_a_store_that_a_rank_has_damaged(code: Code, place: str, by: str) -> None:
    code.send()
    code.settle()
    paths = [*code.store.glob(PLACES[place])] if PLACES[place] else [code.store]
    assert paths
    for path in paths:
        replaced(path, by)
    job, verdict = code.send()
    assert same(job, code)
    # Only what is no damage at all goes without a warning.
    seen = not (by == "file" and place in UNSEEN)
    assert ("toolkit replaced the code store on the host: " in verdict.detail) == seen
    if seen:
        assert str(code.store) in verdict.detail
    code.settle()
    job, verdict = code.send()
    assert same(job, code) and "damaged" not in verdict.detail, "once"
    code.settle()
    names = {path.name for path in (code.root / "jobs").iterdir()}
    assert names == {".code", "job-1", "job-2", "job-3"} and not code.store.is_symlink()


def overflow(store: Path) -> None:
    """Give an index places that no file has, and the marks of trees a number that no tree has."""

    def change(rows: Any) -> None:
        rows[0][1:] = [2**70, -1]

    for path in (store / "packs").glob("*.json"):
        sealed(path, change)
    for path in (store / "trees").glob("*.marks"):
        sealed(path, lambda marks: marks.append("more"))
    drop_spares(store)


def other_types(store: Path) -> None:
    """Write values of other types, with sums that make them count."""
    for number, path in enumerate([*store.glob("packs/*.json"), *store.glob("trees/*")]):
        text = json.dumps([{"a": 1}, [[1, 2, 3]], [2**40, [None]], [0, "xyz"], 3][number % 5]).encode()
        path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    drop_spares(store)


def nested(store: Path) -> None:
    """Nest a value and a spare deeper than Python follows."""
    text = b"[" * 100_000
    for path in [*store.glob("packs/*.json"), *store.glob("trees/*")]:
        path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
    for spare in (store / "spares").iterdir():
        subprocess.run(["mkdir", "-p", "d/" * 1500], cwd=spare / "code", check=True)


@pytest.mark.parametrize("damage", [overflow, other_types, nested])
def test_values_that_no_toolkit_wrote_do_not_stop_a_run(code: Code, damage: Damage) -> None:
    code.send()
    code.settle()
    damage(code.store)
    for _ in range(2):
        job, _ = code.send()
        assert same(job, code)
        code.settle()
    assert not [*code.store.glob("new-*")]


def changed_programs(folder: Path, name: str, old: str, new: str) -> Path:
    """Return a folder of programs in which one line of a module of `code` is another."""
    programs = copied_programs(folder / "programs")
    path = programs / "toolkit/container/code" / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return programs


def test_a_lock_that_a_rank_holds_does_not_stop_a_run(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = changed_programs(tmp_path, "store.py", "LOCK_S = 45.0", "LOCK_S = 0.1")
    code.send()
    code.settle()
    monkeypatch.setattr("tests.unit.code_here.INSIDE", programs)
    with (code.store / "lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        job, verdict = code.send()
    assert same(job, code) and "has held the lock" in verdict.detail
    code.settle()


def test_a_store_that_is_gone(code: Code) -> None:
    code.send()
    code.settle()
    shutil.rmtree(code.store)
    job, _ = code.send()
    assert same(job, code)


def test_many_at_once(code: Code, tmp_path: Path) -> None:
    code.send()
    code.settle()
    other = Code(tmp_path / "other")
    other.host, other.root = code.host, code.root
    other.put(train="print(9)", lib__b="b")
    jobs: list[tuple[Path, Code]] = []
    failed: list[Exception] = []

    def go(sender: Code, number: int) -> None:
        try:
            job, _ = sender.send(sender.step(job=f"at-once-{number}"))
            jobs.append((job, sender))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=go, args=((code, other)[n % 2], n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and len(jobs) == 8
    assert all(same(job, sender) for job, sender in jobs)


def test_a_run_that_is_killed_leaves_no_job_and_spoils_no_other(code: Code) -> None:
    code.put(**{f"many{n}": f"{n}" for n in range(300)})
    killed = 0
    for step in range(14):
        code.put(train=f"print({step})")
        code.host.kill_after = 0.01 + 0.01 * step
        try:
            code.send(code.step(job=f"killed-{step}"))
        except ToolkitError:
            killed += 1
        job = code.root / "jobs" / f"killed-{step}"
        assert not job.exists() or same(job, code)
        code.host.kill_after = None
        if step % 4 == 3:
            job, _ = code.send()
            assert same(job, code)
    assert killed
    code.send()
    code.settle()
    code.send()
    code.settle()
    assert not list(code.store.glob("new-*"))


def test_the_store_is_bounded(code: Code) -> None:
    for number in range(18):
        # The last tree needs something of every pack, so packs go only by being joined.
        parts = {f"part{number}": str(number)}
        code.put(train="x" * number * 1000, lib__a=os.urandom(200_000).hex(), **parts)
        code.send()
        code.settle()
    assert len(list((code.store / "trees").glob("*.json"))) == 4
    assert len(code.spares()) <= 2
    packs = list((code.store / "packs").glob("*.pack"))
    assert len(packs) <= 17
    assert sum(pack.stat().st_size for pack in packs) < 6_000_000
    job, _ = code.send()
    assert same(job, code)


def test_files_that_change_while_they_are_sent(code: Code) -> None:
    step = code.step()
    code.put(train="print(7)")
    with pytest.raises(ToolkitError, match="train changed while toolkit sent the file") as found:
        code.send(step)
    assert ".toolkitignore" in found.value.fix
    code.put(train="1")
    with pytest.raises(ToolkitError, match="train became shorter"):
        code.send(step)
    (code.source / "train").unlink()
    with pytest.raises(ToolkitError, match="cannot read the code to send"):
        code.send(step)
    assert list((code.root / "jobs").iterdir()) == [code.store]


def test_a_job_is_made_once(code: Code) -> None:
    step = code.step(job="once")
    code.send(step)
    with pytest.raises(ToolkitError, match="the folder of job once exists already"):
        code.send(step)


def test_what_cannot_be_written_is_told(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    real = code.host.words

    def small(command: Command) -> list[str]:
        # Without bytecode (-B): Python 3.11 would keep 2,000 bytes of a module for all later tests.
        python, *rest = real(command)
        return ["prlimit", "--fsize=2000", python, "-B", *rest]

    monkeypatch.setattr(code.host, "words", small)
    with pytest.raises(ToolkitError, match="File too large"):
        code.send()
    assert list((code.root / "jobs").iterdir()) == [code.store] and not list(code.store.glob("new-*"))
    monkeypatch.undo()
    job, _ = code.send()
    assert same(job, code)


def test_both_sides_make_the_same_digests(tmp_path: Path) -> None:
    chance = random.Random(3)
    names = {os.fsdecode(chance.randbytes(4).replace(b"\0", b"x")) for _ in range(300)}
    entries = sorted(Entry(name, "fl"[len(name) % 2], 0o644, 3, -5, name[::-1]) for name in names)
    tree = CodeTree(tuple(entries))
    program = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); from toolkit.container.code import snapshot; "
        "print(snapshot.digest_of(json.load(sys.stdin), int(sys.argv[2])))"
    )
    argv = [sys.executable, "-c", program, str(INSIDE), str(tree.number)]
    done = subprocess.run(argv, input=json.dumps(entries), capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tree.digest


def test_signs_of_life_while_files_are_written(
    code: Code, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = changed_programs(tmp_path, "snapshot.py", "WORKING_S = 5.0", "WORKING_S = -1.0")
    monkeypatch.setattr("tests.unit.code_here.INSIDE", programs)
    said: list[bytes] = []
    take = ContainerSession._take
    monkeypatch.setattr(
        ContainerSession,
        "_take",
        lambda container_session, data: said.append(data) or take(container_session, data),
    )
    job, _ = code.send()
    assert same(job, code)
    assert b"".join(said).count(b'{"working":true}') == 6
