"""examples/checkpoint.py: whatever kills the writer, the newest complete checkpoint loads."""

from __future__ import annotations

import errno
import fcntl
import importlib.util
import io
import os
import random
import re
import resource
import select
import signal
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checkpoint = load(EXAMPLES / "checkpoint.py")


def payload(step: int) -> bytes:
    return b"%d," % step * (1 + step * 7919 % 20_000)


def steps_in(folder: Path) -> list[int]:
    return [found.step for found in checkpoint.complete(folder)]


def unfinished(folder: Path) -> list[Path]:
    return list(folder.glob(".*"))


def in_child(work: Callable[[], object]) -> int:
    """Run it in a process of its own; return that one's wait status."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os._exit(error.errno or 1 if isinstance(error, OSError) else 1)
    return os.waitpid(pid, 0)[1]


# Writing and reading


def test_bytes_and_writers(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert checkpoint.latest(folder) is None
    first = checkpoint.save(folder, 1, b"one")
    assert checkpoint.latest(folder) == (1, first) and first.read_bytes() == b"one"

    def write(file: BinaryIO) -> None:
        file.write(b"....two")
        file.seek(0)
        file.write(b"step")

    second = checkpoint.save(str(folder), 2, write)
    assert checkpoint.latest(str(folder)).path.read_bytes() == b"steptwo"
    assert second.name.startswith("step-000000000002.7.") and second.suffix == ".ckpt"


def test_two_are_kept(tmp_path: Path) -> None:
    for step in range(0, 50, 10):
        checkpoint.save(tmp_path, step, payload(step))
    assert steps_in(tmp_path) == [40, 30] and len(list(tmp_path.iterdir())) == 2
    checkpoint.save(tmp_path, 50, b"", keep=1)
    assert steps_in(tmp_path) == [50]


def test_a_step_that_is_done_again_takes_the_place_of_the_first(tmp_path: Path) -> None:
    for content in (b"a", b"b", b"b"):
        checkpoint.save(tmp_path, 7, content)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"b"]


def test_later_steps_are_left_alone(tmp_path: Path) -> None:
    for step in (20, 30, 5):
        checkpoint.save(tmp_path, step, payload(step))
    assert steps_in(tmp_path) == [30, 20, 5]


@pytest.mark.parametrize("damage", [b"", b"payloa", b"payload and more", b"pXyload"])
def test_a_torn_one_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    checkpoint.save(tmp_path, 1, b"old")
    torn = checkpoint.save(tmp_path, 2, b"payload")
    torn.write_bytes(damage)
    assert steps_in(tmp_path) == [1]
    checkpoint.save(tmp_path, 2, b"payload")
    assert steps_in(tmp_path) == [2, 1]


def test_a_truncated_checkpoint_does_not_count_as_kept(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, 1, b"old")
    checkpoint.save(tmp_path, 2, b"payload").write_bytes(b"pay")
    checkpoint.save(tmp_path, 3, b"new")
    assert steps_in(tmp_path) == [3, 1] and len(list(tmp_path.iterdir())) == 2


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    for name in ("step-1.ckpt", "step-000000000001.3.xyz.ckpt", "best.pt", ".step-000000000001.mine"):
        (tmp_path / name).write_bytes(b"abc")
    for step in range(4):
        checkpoint.save(tmp_path, step, b"x")
    assert steps_in(tmp_path) == [3, 2] and len(list(tmp_path.iterdir())) == 6


def test_files_have_the_mode_that_the_umask_gives(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        path = checkpoint.save(tmp_path, 1, b"x")
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(("step", "keep"), [(-1, 2), (1, 0)])
def test_nonsense_is_refused(tmp_path: Path, step: int, keep: int) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        checkpoint.save(tmp_path, step, b"x", keep)


def test_folders_of_shares_that_cannot_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    checkpoint.save(tmp_path, 1, b"x")
    assert steps_in(tmp_path) == [1]


# Several ranks


@pytest.mark.parametrize(
    ("held", "step"),
    [([[], []], None), ([[90, 80], [90]], 90), ([{90, 80}, {80, 70}], 80), ([[5]], 5), ([], None)],
)
def test_ranks_resume_from_the_newest_step_that_all_have(held: list[list[int]], step: int | None) -> None:
    assert checkpoint.agreed(held) == step


@pytest.mark.parametrize("held", [[[90], []], [[90], [80]], [[], [90, 80]]])
def test_ranks_without_a_common_step_do_not_start_beside_each_other(held: list[list[int]]) -> None:
    with pytest.raises(RuntimeError, match="no common checkpoint") as caught:
        checkpoint.agreed(held)
    assert "rank 0: " in str(caught.value) and "all hosts share" in str(caught.value)


def test_no_example_lets_each_rank_find_its_own_start() -> None:
    """One rank reads for all, or all compare what they have; a script of one rank needs neither."""
    alone = {"train_single.py", "digits.py", "checkpoint.py"}
    reads = re.compile(r"digits\.read\(|checkpoint\.latest\(|load_checkpoint\(")
    for path in sorted(EXAMPLES.glob("*/*.py")):
        lines = [line for line in path.read_text().splitlines() if reads.search(line)]
        if path.name in alone or not lines:
            continue
        assert all("if rank == 0" in line for line in lines) or "checkpoint.agreed(" in path.read_text(), path
    page = EXAMPLES.parent / "docs" / "how-to" / "checkpoint-and-resume.md"
    for text in (page.read_text(), (EXAMPLES / "checkpoint.py").read_text()):
        assert "if rank == 0 else None" in text and "broadcast_object_list" in text


def test_the_examples_contain_the_same_copy() -> None:
    texts = {path.parent.name: path.read_text() for path in EXAMPLES.glob("*/checkpoint.py")}
    assert texts.keys() == {"digits", "text"}
    assert set(texts.values()) == {(EXAMPLES / "checkpoint.py").read_text()}


# What others left


def test_what_a_dead_writer_left_goes_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    dead, alive = tmp_path / ".step-1.a.unfinished", tmp_path / ".step-1.b.unfinished"
    dead.write_bytes(b"x")
    with alive.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        checkpoint.save(tmp_path, 1, b"x")
        assert unfinished(tmp_path) == [alive]
    checkpoint.save(tmp_path, 2, b"x")
    assert unfinished(tmp_path) == []


def test_without_locks_only_what_is_old_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*args: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    old, young = tmp_path / ".step-1.a.unfinished", tmp_path / ".step-1.b.unfinished"
    old.write_bytes(b"x")
    young.write_bytes(b"x")
    os.utime(old, (0, 0))
    checkpoint.save(tmp_path, 1, b"x")
    assert unfinished(tmp_path) == [young] and steps_in(tmp_path) == [1]


# Failures


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    for step in (1, 2):
        checkpoint.save(tmp_path, step, b"small")

    def work() -> None:
        sys.dont_write_bytecode = True  # Python 3.11 would keep the first 10,000 bytes
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
        checkpoint.save(tmp_path, 3, b"x" * 100_000)

    assert os.WEXITSTATUS(in_child(work)) == errno.EFBIG
    assert steps_in(tmp_path) == [2, 1] and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt(), RuntimeError("bug")])
def test_a_writer_that_fails_midway(tmp_path: Path, error: BaseException) -> None:
    checkpoint.save(tmp_path, 1, b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"x" * 100_000)
        raise error

    with pytest.raises(type(error)):
        checkpoint.save(tmp_path, 2, write)
    assert steps_in(tmp_path) == [1] and len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_that_is_noticed_only_when_it_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, 1, b"old")

    def fsync(fd: int) -> None:
        raise OSError(errno.EDQUOT, "over quota")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(OSError, match="over quota"):
        checkpoint.save(tmp_path, 2, b"new")
    assert steps_in(tmp_path) == [1] and len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def read_only() -> Iterator[Path]:
    # pytest's own folders let no other user in, and to root no folder is read-only.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkpoint.save(folder, 1, b"old")
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def test_a_folder_that_is_read_only(read_only: Path) -> None:
    def work() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)
        checkpoint.save(read_only, 2, b"new")

    assert os.WEXITSTATUS(in_child(work)) == errno.EACCES
    assert steps_in(read_only) == [1] and len(list(read_only.iterdir())) == 1


# Kills


def steps_of_a_save(folder: Path, kill_at: int) -> Callable[[], None]:
    """Save once, and be killed before the n-th call that changes anything, or after the last."""
    left = kill_at

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return call(*args, **kwargs)

        return counted

    def write(file: BinaryIO) -> None:
        for _ in range(2):
            watched(file.write)(b"x" * 10_000)

    def work() -> None:
        os.fsync = watched(os.fsync)
        for name in ("open", "replace", "unlink"):
            setattr(Path, name, watched(getattr(Path, name)))
        checkpoint.save(folder, 3, write)

    return work


def test_killed_at_every_call(tmp_path: Path) -> None:
    found = []
    for kill_at in range(100):
        folder = tmp_path / str(kill_at)
        checkpoint.save(folder, 1, b"one")
        checkpoint.save(folder, 2, b"two")
        (folder / ".step-1.a.unfinished").write_bytes(b"of one before")
        status = in_child(steps_of_a_save(folder, kill_at))
        steps = steps_in(folder)
        found.append(steps[0])
        assert steps in ([2, 1], [3, 2, 1], [3, 2])
        checkpoint.save(folder, 4, b"four")
        assert steps_in(folder) == [4, steps[0]] and unfinished(folder) == []
        if not os.WIFSIGNALED(status):
            break
    assert os.WEXITSTATUS(status) == 0 and len(found) >= 8 and found == sorted(found)


def test_killed_at_a_hundred_random_moments(tmp_path: Path) -> None:
    chance = random.Random(7)
    temporaries = 0

    def writer(report: int) -> Callable[[], None]:
        def work() -> None:
            found = checkpoint.latest(tmp_path)
            step = found.step if found else 0
            while True:
                step += 1
                checkpoint.save(tmp_path, step, payload(step))
                os.write(report, b"%d\n" % step)

        return work

    for _ in range(100):
        reading, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                writer(report)()
            finally:
                os._exit(1)
        os.close(report)
        select.select([], [], [], chance.uniform(0, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
        with os.fdopen(reading) as reports:
            saved = [int(line) for line in reports]
        found = checkpoint.latest(tmp_path)
        if found:
            assert found.path.read_bytes() == payload(found.step)
        # What was reported as saved is there, and at most one more.
        assert not saved or found.step in (saved[-1], saved[-1] + 1)
        temporaries += len(unfinished(tmp_path))
        assert len(steps_in(tmp_path)) <= 3
        step = (found.step if found else 0) + 1
        checkpoint.save(tmp_path, step, payload(step))
        assert len(list(tmp_path.iterdir())) == min(step, 2) == len(steps_in(tmp_path))
    assert temporaries > 0 and step > 100


# The example


def test_digits_goes_on_as_if_nothing_had_been(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed here")
    monkeypatch.syspath_prepend(str(EXAMPLES / "digits"))
    digits = load(EXAMPLES / "digits" / "digits.py")
    pictures, labels, *test = digits.load(torch.device("cpu"))
    steps = digits.steps_per_epoch(len(pictures), 32, 1)

    def train(folder: Path, until: int) -> float:
        torch.manual_seed(1)
        model = digits.make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
        first = digits.restore(digits.read(folder), len(pictures), steps, model, optimizer)
        for step in range(first, until):
            batch = digits.batch(len(pictures), step, 32, 0, 1)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(pictures[batch]), labels[batch]).backward()
            optimizer.step()
            if step % 7 == 0:
                digits.save(folder, len(pictures), steps, step + 1, model, optimizer)
        return float(digits.accuracy(model, *test))

    whole = train(tmp_path / "whole", 2 * steps)
    for until in (5, steps + 3, 2 * steps):
        broken = train(tmp_path / "broken", until)
    assert whole == broken
    newest = [checkpoint.latest(tmp_path / name).path.read_bytes() for name in ("whole", "broken")]
    states = [torch.load(io.BytesIO(data)) for data in newest]
    assert all(torch.equal(states[0]["model"][k], states[1]["model"][k]) for k in states[0]["model"])
