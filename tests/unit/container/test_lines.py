"""Lines stay whole on their way from a rank through a launcher into the merged log."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.container_world import PATIENCE_S
from toolkit.container.job.child import Output
from toolkit.container.logs import lines
from toolkit.container.logs.log import Log


def test_tags_of_horovodrun_are_removed() -> None:
    merger = lines.Merger()
    said = merger.feed(b"[0]<stdout>:[box1 0] a\n[1]<stderr>:[box2 1] b\nown\n")
    assert said == b"[box1 0] a\n[box2 1] b\nown\n"


def test_lines_are_prefixed_and_an_unfinished_one_waits() -> None:
    stream = lines.Stream(1, b"[gpu1 0] ")
    assert stream.feed(b"one\ntwo\r\n\nthr") == [
        b"[gpu1 0] one\n",
        b"[gpu1 0] two\n",
        b"[gpu1 0] \n",
    ]
    assert stream.pending
    assert stream.feed(b"ee\n") == [b"[gpu1 0] three\n"]
    assert not stream.pending


def test_of_a_progress_bar_one_line_is_shown_in_a_while_and_its_last_one() -> None:
    now = [0.0]
    stream = lines.Stream(1, b"[h 0] ", lambda: now[0])
    assert stream.feed(b"\r 10%") == []
    assert stream.flush() == [b"[h 0]  10%\n"]
    assert stream.feed(b"\r 20%\r 30%\r 40%") == []
    assert stream.flush() == []
    now[0] += lines.BAR_S
    assert stream.flush() == [b"[h 0]  40%\n"]
    assert stream.feed(b"\r 50%\r100%\nend\n") == [b"[h 0] 100%\n", b"[h 0] end\n"]
    assert stream.feed(b"\r 10%") == []
    assert stream.flush(last=True) == [b"[h 0]  10%\n"]


class Followed:
    """Output of a process that prints its input, copied to a pipe with a clock of the test."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0)
        streams = (lines.Stream(self._writer, b"[h 0] "), lines.Stream(self._writer, b"[h 0] "))
        self._log = Log(folder / "log", 1 << 20)
        self._copy = Output(self.process, streams, self._log, lambda: self.now)

    def say(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self._copy.pump(PATIENCE_S)

    def wait(self, seconds: float, looks: int) -> bytes:
        """Look this many times in this time; return what has been printed."""
        for _ in range(looks):
            self.now += seconds / looks
            self._copy.pump(0)
        try:
            return os.read(self._reader, 1 << 16)
        except BlockingIOError:
            return b""

    def close(self) -> None:
        self._copy.close()
        self._log.close()
        self.process.communicate()
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    output = Followed(tmp_path)
    yield output
    output.close()


def test_a_line_that_is_printed_word_by_word_stays_whole_when_the_machine_stalls(followed: Followed) -> None:
    followed.say(b"I am 0 of")
    assert followed.wait(30.0, looks=1) == b"", "a stall of both processes is no silence of the rank"
    assert followed.wait(0.9, looks=9) == b""
    followed.say(b" 3\n")
    assert followed.wait(0.0, looks=1) == b"[h 0] I am 0 of 3\n"


def test_an_incomplete_line_is_printed_after_a_silence(followed: Followed) -> None:
    followed.say(b"loading...")
    assert followed.wait(1.2, looks=12) == b"[h 0] loading...\n"


def test_a_bar_that_ends_each_text_with_a_carriage_return() -> None:
    now = [0.0]
    stream = lines.Stream(1, b"", lambda: now[0])
    assert stream.feed(b" 10%\r") == []
    assert stream.flush() == [b" 10%\n"]
    assert stream.feed(b" 20%\r 30%\r") == []
    now[0] += lines.BAR_S
    assert stream.feed(b" 40%\r 50%\r") == [b" 30%\n"]
    assert stream.feed(b"100%\n") == [b"100%\n"]


def test_a_line_end_that_is_split_between_two_reads_counts_once() -> None:
    stream = lines.Stream(1, b"")
    assert stream.feed(b"a\r") == []
    assert stream.feed(b"\nb\r") == [b"a\n"]
    assert stream.flush() == [b"b\n"]
    assert stream.feed(b"\nc\n\n") == [b"c\n", b"\n"]


def test_backspaces_end_a_line_so_that_no_rank_overwrites_its_prefix() -> None:
    stream = lines.Stream(1, b"[gpu1 0] ", clock=itertools.count(step=10.0).__next__)
    forged = b"loss 1" + b"\b" * 20 + b"[gpu2 1] loss 2\n"
    assert stream.feed(forged) == [b"[gpu1 0] loss 1\n", b"[gpu1 0] [gpu2 1] loss 2\n"]
    # Keras prints its progress bar with backspaces. As with \r, one line in some seconds is enough.
    often = lines.Stream(1, b"[gpu1 0] ", clock=lambda: 7.0)
    bar = b"".join(b"%d/99" % step + b"\b" * 4 for step in range(10, 99))
    assert often.feed(bar + b"99/99\n") == [b"[gpu1 0] 10/99\n", b"[gpu1 0] 99/99\n"]


def test_an_overlong_line_is_folded_and_loses_nothing() -> None:
    stream = lines.Stream(1, b"[h 0] ")
    payload = bytes(byte for byte in range(256) if byte not in b"\b\r\n") * 100
    found = stream.feed(payload[:5000]) + stream.feed(payload[5000:] + b"\n")
    assert all(len(line) <= lines.ATOMIC and line.startswith(b"[h 0] ") for line in found)
    assert b"".join(line[len(b"[h 0] ") : -1] for line in found) == payload


def test_every_write_is_atomic_on_a_shared_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []

    def write(_out: int, data: bytes) -> int:
        written.append(data)
        return len(data)

    monkeypatch.setattr(os, "write", write)
    many = [b"x" * 999 + b"\n" for _ in range(10)]
    assert lines.write_lines(1, many)
    assert b"".join(written) == b"".join(many)
    assert all(len(block) <= lines.ATOMIC and block.endswith(b"\n") for block in written)


def test_the_merger_strips_tags_and_leaves_the_rest_alone() -> None:
    merger = lines.Merger()
    assert merger.feed(b"[1,0]<stdout>:[gpu1 0] hello\n[1,1]<std") == b"[gpu1 0] hello\n"
    assert merger.feed(b"err>:[gpu2 1] oh\nmpirun: x\n") == b"[gpu2 1] oh\nmpirun: x\n"


def test_the_merger_knows_the_tags_of_open_mpi_5() -> None:
    merger = lines.Merger()
    said = merger.feed(
        b"[1,0]<stdout>: [gpu1 0] hello\n[1,11]<stderr>: [gpu2 11] oh\nown\n"
        b"[1,0]<stdout>: [gpu1 0] fi[1,11]<stdout>: [gpu2 11] whole\n[1,0]<stdout>:  rst\n"
    )
    assert said == b"[gpu1 0] hello\n[gpu2 11] oh\nown\n[gpu2 11] whole\n[gpu1 0] fi rst\n"


def test_the_merger_puts_together_what_open_mpi_has_cut() -> None:
    merger = lines.Merger()
    out = merger.feed(
        b"[1,0]<stdout>:[gpu1 0] fi[1,1]<stdout>:[gpu2 1] whole\n"
        b"[1,1]<stdout>:[gpu2[1,0]<stdout>:rst\n"
        b"[1,1]<stdout>: 1] second\n"
    )
    assert out == b"[gpu2 1] whole\n[gpu1 0] first\n[gpu2 1] second\n"


def test_a_line_of_a_launcher_without_an_end_is_not_kept() -> None:
    merger = lines.Merger()
    data = b"\rdownloading " * (1 << 15)
    shown = b"".join(merger.feed(data[i : i + 4096]) for i in range(0, len(data), 4096))
    assert len(data) - len(shown) <= lines.MOST_UNENDED
    assert (shown + merger.close()).replace(b"\n", b"") == data


def test_what_is_unfinished_at_the_end_is_shown() -> None:
    merger = lines.Merger()
    assert merger.feed(b"[1,0]<stdout>:[gpu1 0] a[1,1]<stdout>:[gpu2 1] b\nlast") == b"[gpu2 1] b\n"
    assert merger.close() == b"last\n[gpu1 0] a\n"
    assert merger.close() == b""


def test_lines_of_a_launcher_get_its_label_and_lines_of_ranks_do_not() -> None:
    merger = lines.Merger(b"[gpu2] ")
    shown = merger.feed(b"E1125 api.py:984] failed\n[gpu2 1] KeyError: 1\n[rank1]: x\n\nlast")
    assert shown == b"[gpu2] E1125 api.py:984] failed\n[gpu2 1] KeyError: 1\n[gpu2] [rank1]: x\n[gpu2] \n"
    assert merger.close() == b"[gpu2] last\n"
