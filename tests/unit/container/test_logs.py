"""Logs of bounded size, read while they grow, by time and by their last lines; identical lines collapsed."""

from __future__ import annotations

import errno
import itertools
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.each import for_each
from toolkit.container.logs import collapse
from toolkit.container.logs import log as logs


@pytest.fixture
def collapser() -> Any:
    return collapse.LineCollapser(window=2.0)


def numbered(count: int, first: int = 0) -> bytes:
    return b"".join(b"line %06d\n" % n for n in range(first, first + count))


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    reader = logs.Reader(path)
    assert reader.read() == b""
    log.write(b"one\n")
    assert reader.read() == b"one\n" and reader.read() == b""
    log.write(b"two\n")
    log.close()
    assert reader.read() == b"two\n"
    reader.close()
    assert b"".join(logs.read_all(path)) == b"one\ntwo\n"


def test_reading_what_is_there_ends_although_the_log_grows(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    log.write(b"one\n")
    found = []
    for data in itertools.islice(logs.read_all(path), 100):
        found.append(data)
        log.write(b"more\n")  # a rank that prints faster than it is read
    log.close()
    assert found == [b"one\n"]


def test_a_log_keeps_its_beginning_and_its_end_within_its_limit(tmp_path: Path) -> None:
    path, limit = tmp_path / "rank-0.log", 8 * 4096
    log = logs.Log(path, limit)
    written = numbered(20_000)
    for start in range(0, len(written), 1000):
        log.write(written[start : start + 1000])
    log.close()
    kept = [piece for _, piece in logs.pieces(path)]
    assert len(kept) == logs.PIECES and sum(piece.stat().st_size for piece in kept) <= limit
    read = b"".join(logs.read_all(path))
    head, _, rest = read.partition(b"[toolkit] ")
    gap, _, tail = rest.partition(b" bytes of the log are left out here\n")
    assert written.startswith(head) and written.endswith(tail)
    assert len(head) + int(gap) + len(tail) == len(written) == logs.size_of(path)


def test_a_reader_that_is_too_slow_is_told_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    log = logs.Log(path, 8 * 4096)
    reader = logs.Reader(path)
    log.write(numbered(10))
    assert reader.read() == numbered(10)
    log.write(numbered(20_000, 10))
    read = b""
    while data := reader.read():
        read += data
    assert b" bytes of the log are left out here\n" in read
    assert read.endswith(b"line 020009\n")
    reader.close()
    log.close()


def test_a_log_is_continued_where_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.log"
    for part in range(3):
        log = logs.Log(path, 8 * 4096)
        log.write(numbered(500, 500 * part))
        log.close()
    assert b"".join(logs.read_all(path)) == numbered(1500)


def test_output_after_a_line_without_an_end_is_a_line_of_its_own(tmp_path: Path) -> None:
    """A rank can be killed in the middle of a line, and continues its log after a restart."""
    path = tmp_path / "rank-0.log"
    for text in (b"step 1\nste", b"attempt 1\n", b"attempt", b" 2\n"):
        log = logs.Log(path, 1 << 20)
        log.write(text[:3])
        log.write(text[3:])
        log.close()
    logs.Log(path, 1 << 20).close()
    assert path.read_bytes() == b"step 1\nste\nattempt 1\nattempt\n 2\n"


def failing_close(monkeypatch: pytest.MonkeyPatch, file: Any) -> None:
    """Let a file report at its close that data is lost, as NFS does for a quota."""
    close = file.close

    def fail() -> None:
        close()
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(file, "close", fail)


def test_an_error_at_the_close_of_a_log_has_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.Log(tmp_path / "output.log", 8 * 4096)
    failing_close(monkeypatch, log._file)
    log.write(numbered(1000))  # goes on in the next file
    failing_close(monkeypatch, log._file)
    failing_close(monkeypatch, log._times)
    log.close()
    assert log._file.closed and log._times.closed
    assert b"".join(logs.read_all(tmp_path / "output.log")) == numbered(1000)


class SmallDisk:
    """A file with space for some bytes, which writes what fits before it fails."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = int(self.file.write(data[: self.room]))
        self.room -= done
        return done


@pytest.mark.parametrize(
    ("room", "kept"),
    [(20, b"[gpu1 0] loss 0.1234\n"), (0, b""), (30, b"[gpu1 0] loss 0.1234 step 100\n"), (31, None)],
)
def test_a_line_that_a_full_disk_has_cut_is_ended(tmp_path: Path, room: int, kept: bytes | None) -> None:
    """Otherwise the next line would seem to be of the same rank."""
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    file = log._file
    log._file = cast(Any, SmallDisk(file, room))
    with pytest.raises(OSError, match="No space left"):
        log.write(b"[gpu1 0] loss 0.1234 step 100\n[gpu1 0] loss")
    with pytest.raises(OSError, match="No space left"):
        log.write(b"[gpu1 0] loss 0.1\n")
    log._file = file
    log.write(b"[gpu2 3] loss 9.9\n")
    log.close()
    kept = b"[gpu1 0] loss 0.1234 step 100\n[\n" if kept is None else kept
    assert path.read_bytes() == kept + b"[gpu2 3] loss 9.9\n"


def test_a_log_is_read_from_a_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    for minute in range(10):
        now[0] = 1000.0 + 60 * minute
        log.write(b"minute %d\n" % minute)
    log.close()

    def since(epoch: float) -> bytes:
        return b"".join(logs.read_all(path, logs.offset_at(path, epoch)))

    assert since(0).startswith(b"minute 0\n")
    assert since(1000 + 60 * 7) == b"minute 7\nminute 8\nminute 9\n"
    assert since(1000 + 60 * 7 + 30) == b"minute 8\nminute 9\n"
    assert since(5000) == b""


def test_the_times_of_a_long_job_stay_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "time", lambda: now[0])
    monkeypatch.setattr(logs, "MOST_ROWS", 100)
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    for step in range(2000):
        now[0] += 3.0
        log.write(b"%d\n" % step)
    log.close()
    rows = (tmp_path / "output.log.times").read_text().splitlines()
    assert 20 < len(rows) <= 100
    found = b"".join(logs.read_all(path, logs.offset_at(path, 1000.0 + 3 * 1500)))
    assert b"\n1500\n" in b"\n" + found and len(found) < len(b"".join(logs.read_all(path))) / 2


@pytest.mark.parametrize(("lines", "expected"), [(0, b""), (1, b"c\n"), (2, b"b\nc\n"), (9, b"a\nb\nc\n")])
def test_the_last_lines(tmp_path: Path, lines: int, expected: bytes) -> None:
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    log.write(b"a\nb\nc\n")
    log.close()
    assert b"".join(logs.read_all(path, logs.offset_of_last_lines(path, lines))) == expected


def test_a_line_without_an_end_is_the_last_one(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    log = logs.Log(path, 1 << 20)
    log.write(b"a\nb\nhalf")
    log.close()
    assert b"".join(logs.read_all(path, logs.offset_of_last_lines(path, 2))) == b"b\nhalf"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1\n2\n3\n4\n" + "frame #0: __clone + 0x44 (0x7fc3)\n\n" * 200, ["2", "3", "4"]),
        ("5\nException raised from run at /x.cpp:1 (most recent call first):\nframe #0: x\n", ["5"]),
        ("[rank1]: 6\n[rank1]: For debugging consider passing CUDA_LAUNCH_BLOCKING=1\n", ["[rank1]: 6"]),
        ("frame #0: x\nframe #1: y\n", ["frame #0: x", "frame #1: y"]),
        ("my frame #0: x\n", ["my frame #0: x"]),
    ],
)
def test_a_backtrace_does_not_count_as_last_lines(tmp_path: Path, text: str, expected: list[str]) -> None:
    path = tmp_path / "rank-0.log"
    path.write_text(text)
    assert logs.last_lines(path, lines=3) == expected


_OWN = """[rank0]: Traceback (most recent call last):
[rank0]:   File "/code/train.py", line 9, in <module>
[rank0]:     raise ValueError("batch 17")
[rank0]: ValueError: batch 17
"""
_OF_THREAD = """Exception in thread Thread-1 (_pin_memory_loop):
Traceback (most recent call last):
  File "/usr/lib/python3.12/threading.py", line 1075, in _bootstrap_inner
    self.run()
EOFError

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/opt/loader.py", line 3, in loop
    raise ConnectionResetError(104, "Connection reset by peer")
ConnectionResetError: [Errno 104] Connection reset by peer
"""
_OF_DESTRUCTOR = """Exception ignored in: <function Loader.__del__ at 0x7fb92399d620>
Traceback (most recent call last):
  File "/opt/loader.py", line 8, in __del__
    assert worker is None
AssertionError: can only test a child process
"""
_OF_STREAM = """Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>
BrokenPipeError: [Errno 32] Broken pipe
"""


@for_each(
    ("text", "last"),
    [
        (_OWN + _OF_THREAD + _OF_DESTRUCTOR + _OF_STREAM, "[rank0]: ValueError: batch 17"),
        (_OWN + _OF_DESTRUCTOR + "[W x.cpp:1] leak\n", "ValueError: batch 17\n[W x.cpp:1] leak"),
        (_OF_THREAD + _OWN, "[rank0]: ValueError: batch 17"),
        # Another exception of the rank is not known, or is not recent.
        ("step 1\n" + _OF_THREAD, "ConnectionResetError: [Errno 104] Connection reset by peer"),
        (_OF_STREAM, "BrokenPipeError: [Errno 32] Broken pipe"),
        (_OWN + "step\n" * 8 + _OF_DESTRUCTOR, "AssertionError: can only test a child process"),
    ],
)
def test_exceptions_that_do_not_end_a_rank_are_left_out_after_its_own(text: str, last: str) -> None:
    assert "\n".join(logs.last_useful(text)).endswith(last)


def test_the_last_lines_are_those_since_the_start_of_a_rank(tmp_path: Path) -> None:
    """An exception of an earlier attempt is in the same log."""
    path = tmp_path / "rank-0.log"
    path.write_text("KeyError: 1\nloading\n")
    Path(f"{path}.20").write_text("more\n")
    assert logs.last_lines(path, 12) == ["loading", "more"]
    assert logs.last_lines(path, 20) == ["more"]


TRACEBACK = (
    b"Traceback (most recent call last):\n    ^^^^\n  File x\n    ^^^^\nRuntimeError: rank %d has no memory\n"
)


def said(rank: int, text: bytes) -> bytes:
    host = b"gpu7" if rank < 16 else b"gpu8"
    return b"".join(b"[%s %d] %s\n" % (host, rank, line) for line in text.splitlines())


def test_one_traceback_in_place_of_thirty_one(collapser: Any) -> None:
    shown = collapser.feed(said(12, TRACEBACK % 12), 0.0)
    assert shown == said(12, TRACEBACK % 12)
    for rank in (r for r in range(31) if r != 12):
        assert collapser.feed(said(rank, TRACEBACK % rank), 0.5) == b""
    assert collapser.tick(1.9) == b""
    told = b"[toolkit] the same 5 lines on gpu7 0-11,13-15, gpu8 16-30: "
    assert collapser.tick(2.0) == told + b"RuntimeError: rank N has no memory\n"
    assert collapser.close() == b""


def test_the_lines_of_a_ranks_traceback_stay_together(collapser: Any) -> None:
    """Ranks fail at the same moment, with equal frames and different errors; their lines are mixed."""
    frames = [b"Traceback (most recent call last):", b"  File x", b"    ^^^^"]
    one, two, three = ([*frames, b"KeyError: %d" % error] for error in (0, 1, 0))
    ranks = {0: one, 1: two, 2: three}
    order = [(1, 0), (0, 0), (0, 1), (1, 1), (2, 0), (1, 2), (2, 1), (0, 2), (2, 2), (0, 3), (2, 3), (1, 3)]
    shown = b"".join(collapser.feed(said(rank, ranks[rank][line] + b"\n"), 0.0) for rank, line in order)
    assert shown == said(0, b"\n".join(one)) + said(1, b"\n".join(two))
    told = b"[toolkit] the same 4 lines on gpu7 2: KeyError: 0\n"
    assert collapser.close() == told


def test_tracebacks_with_the_rank_that_pytorch_adds_stay_together_too(collapser: Any) -> None:
    text = "[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File x\n[rank{0}]: E: {1}\nnext\n"
    zero, one = (text.format(rank, error).encode().splitlines() for rank, error in ((0, "a"), (1, "b")))
    shown = b"".join(
        collapser.feed(said(rank, line), 0.0)
        for pair in zip(one, zero, strict=True)
        for rank, line in zip((1, 0), pair, strict=True)
    )
    assert shown == said(1, b"\n".join(one[:3])) + said(0, b"\n".join(zero[:3])) + said(1, b"next")


def test_a_traceback_of_a_rank_that_does_not_end_is_shown(collapser: Any) -> None:
    begun = said(3, b"Traceback (most recent call last):\n  File x")
    assert collapser.feed(begun, 0.0) == b"" and collapser.tick(0.9) == b"" and collapser.tick(1.0) == begun
    assert collapser.feed(said(3, b"  File y"), 1.1) == said(3, b"  File y")
    assert collapser.feed(begun + b"[gpu7 3] Ke", 5.0) == b"" and collapser.close() == begun + b"[gpu7 3] Ke"
    assert collapser.feed(begun * 2, 9.0) == begun, "another traceback begins"


def test_a_rank_number_of_too_many_digits_is_text_of_the_launcher(collapser: Any) -> None:
    line = b"[gpu1 " + b"1" * 5000 + b"] what a launcher printed\n"
    assert collapser.feed(line, 0.0) == line


def test_ranks_that_say_the_same_a_thousand_times_each(collapser: Any) -> None:
    assert collapser.feed(said(0, b"step\n" * 1000), 0.0) == said(0, b"step\n" * 1000)
    assert collapser.feed(said(1, b"step\n" * 1000), 0.1) == b""
    assert collapser.close().startswith(b"[toolkit] the same 1000 lines on gpu7 1: step")


def test_a_summary_is_shorter_than_the_three_lines_that_it_replaces(collapser: Any) -> None:
    lines = b"".join(b"[box%d %d] loaded 60000 images\n" % (1 + rank // 2, rank) for rank in range(4))
    first = lines.splitlines(keepends=True)[0]
    summary = (collapser.feed(lines, 0.0) + collapser.close()).removeprefix(first)
    assert summary == b"[toolkit] the same line on box1 1, box2 2-3: loaded 60000 images\n"
    assert len(summary) < len(lines) - len(first)


def test_ranks_and_hosts_of_a_large_job_are_two_lists(collapser: Any) -> None:
    said = b"".join(b"[node%02d %d] ready\n" % (rank // 2, rank) for rank in range(100))
    shown = collapser.feed(said, 0.0) + collapser.close()
    assert shown == (b"[node00 0] ready\n[toolkit] the same line on ranks 1-99 (node[00-49]): ready\n")


def test_a_summary_quotes_a_line_with_words(collapser: Any) -> None:
    for rank in (0, 1):
        for line in (b"    backward()", b"    ^^^^^^^^^^", b""):
            collapser.feed(said(rank, (b"[rank%d]: " % rank + line).rstrip()), 0.0)
    assert collapser.close().endswith(b"on gpu7 1: [rankN]:     backward()\n")


def test_what_differs_or_comes_later_is_shown(collapser: Any) -> None:
    for rank in (0, 1):
        line = said(rank, b"loss 0.%d" % rank)
        assert collapser.feed(line, 0.0) == line
    line = said(0, b"epoch 1")
    assert collapser.feed(line, 0.0) == line
    assert collapser.feed(said(1, b"epoch 1"), 3.0) == said(1, b"epoch 1")
    assert collapser.close() == b""


def test_addresses_times_and_the_ranks_own_number_do_not_count(collapser: Any) -> None:
    first = said(3, b"10:02:11.201 [rank 3] <Tensor at 0x7f0011aabb> pid=71 broke")
    assert collapser.feed(first, 0.0) == first
    assert collapser.feed(said(4, b"10:02:11.987 [rank 4] <Tensor at 0x7f99ccdd00> pid=72 broke"), 0.1) == b""
    assert collapser.feed(said(5, b"10:02:11.987 [rank 6] <Tensor at 0x7f99ccdd00> pid=72 broke"), 0.1) != b""


def test_a_summary_does_not_quote_the_number_of_one_rank_for_all(collapser: Any) -> None:
    for rank in (2, 0):
        collapser.feed(said(rank, b"WORLD=3 RANK=%d on 2" % rank), 0.0)
    assert collapser.close().endswith(b"[toolkit] the same line on gpu7 0: WORLD=3 RANK=N on 2\n")


def test_what_no_rank_has_said_and_half_lines_pass(collapser: Any) -> None:
    assert collapser.feed(b"[toolkit] a\nmpirun: b\n[gpu7 1] ha", 0.0) == b"[toolkit] a\nmpirun: b\n"
    assert collapser.feed(b"lf\n", 0.1) == b"[gpu7 1] half\n"
    assert collapser.feed(b"[gpu7 1] rest", 0.2) == b""
    assert collapser.close() == b"[gpu7 1] rest"


def test_empty_lines_are_not_summed_up(collapser: Any) -> None:
    assert collapser.feed(said(0, b"\n") + said(1, b"\n"), 0.0) == said(0, b"\n")
    assert collapser.close() == b""


# torchrun's own traceback

RANKS_OWN = b"[box2 1] Traceback (most recent call last):\n[box2 1] KeyError: 1\n"
TORCHRUN = b"""Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
             ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/run/toolkit/inside/run.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 131)
============================================================
"""
OTHER = b"Traceback (most recent call last):\n  File x\ntorch.distributed.RendezvousTimeoutError\n"
ENDED = b"[toolkit] rank 1 on box2 exited with code 1\n"


def test_torchruns_traceback_is_left_out_and_the_ranks_own_is_not() -> None:
    shown = collapse.LauncherTraceback()
    assert shown.feed(RANKS_OWN + TORCHRUN + ENDED, 0.0) == RANKS_OWN + collapse.LEFT_OUT + ENDED
    assert shown.feed(OTHER + b"more\n", 0.0) == OTHER + b"more\n" and shown.close() == b""


def test_two_torchruns_may_mix_their_lines() -> None:
    shown = collapse.LauncherTraceback()
    lines = TORCHRUN.splitlines(keepends=True)
    mixed = b"".join(line + line for line in lines[:-1])
    assert shown.feed(mixed + RANKS_OWN, 0.0) == RANKS_OWN
    assert shown.feed(lines[-1] * 2, 1.0) == collapse.LEFT_OUT and shown.close() == b""


def test_the_label_of_a_host_does_not_hide_torchruns_traceback() -> None:
    shown = collapse.LauncherTraceback()
    both = [(b"[box1] " + line, b"[box2] " + line) for line in TORCHRUN.splitlines(keepends=True)]
    mixed = b"".join(first + second for first, second in both)
    assert shown.feed(RANKS_OWN + mixed + ENDED, 0.0) == RANKS_OWN + collapse.LEFT_OUT + ENDED
    other = b"".join(b"[box2] " + line for line in OTHER.splitlines(keepends=True))
    assert shown.feed(other, 1.0) == other and shown.close() == b""


def test_the_note_about_threads_is_shown_once_without_its_frame() -> None:
    head = b"[box%d] W1125 21:47:06.250000 54 torch/distributed/run.py:874] "
    note = b"Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid \n"
    frame = b"*" * 41 + b"\n"
    lines = b"".join(head % host + text for host in (1, 2) for text in (b"\n", frame, note, frame))
    other = head % 1 + b"another warning\n"
    shown = collapse.LauncherTraceback()
    assert shown.feed(lines + other, 0.0) + shown.close() == head % 1 + note + other


def test_other_lines_of_a_second_torchrun_do_not_end_the_traceback_of_the_first() -> None:
    """A syntax error ends all ranks at the same moment: torchrun logs it on each host, then raises."""
    shown = collapse.LauncherTraceback()
    log = b"] E1125 18:37:24.084000 375 api.py:1002] failed (exitcode: 1) local_rank: 0\n"
    one, two = ([host + line for line in TORCHRUN.splitlines(True)] for host in (b"[box1] ", b"[box2] "))
    mixed = [two[0], b"[box1" + log, one[0], *two[1:4], b"[box3" + log, *one[1:], *two[4:]]
    told = [b"[box1" + log, b"[box3" + log, collapse.LEFT_OUT]
    assert shown.feed(b"".join(mixed), 0.0) == b"".join(told) and shown.close() == b""


def test_the_tracebacks_of_stopped_torchruns_are_left_out_with_one_note() -> None:
    shown = collapse.LauncherTraceback()
    one = b"""Traceback (most recent call last):
  File "/opt/venv/bin/torchrun", line 8, in <module>
    raise SignalException(f"Process {os.getpid()} got signal: {sigval}", sigval=sigval)
torch.distributed.elastic.multiprocessing.api.SignalException: Process 329 got signal: 15
"""
    mixed = b"".join(line + line for line in one.splitlines(keepends=True))
    assert shown.feed(one + mixed + ENDED + TORCHRUN, 0.0) == collapse.LEFT_OUT + ENDED
    assert shown.feed(OTHER, 1.0) == OTHER and shown.close() == b""


def test_a_traceback_that_does_not_end_is_shown() -> None:
    shown = collapse.LauncherTraceback()
    begun = TORCHRUN[: TORCHRUN.index(b"Root Cause")]
    assert shown.feed(begun, 0.0) == b"" and shown.tick(4.9) == b"" and shown.tick(5.1) == begun
    assert shown.feed(begun, 6.0) == b"" and shown.close() == begun
    many = b"Traceback (most recent call last):\n" + b"  File x\n" * 1000
    assert shown.feed(many, 7.0) + shown.close() == many
