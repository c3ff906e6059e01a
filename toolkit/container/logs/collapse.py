"""Collapses identical lines of several ranks, and hides torchrun's own traceback and repeated notes."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from itertools import groupby

from toolkit.container.logs.log import Written
from toolkit.protocol.host_list import host_list, spans

# A rank's line in the merged log; see rank.py.
_LINE = re.compile(rb"\[(\S+) (\d{1,9})\] (.*)\n", re.DOTALL)
_LABEL = re.compile(rb"^\[\S+\] ")  # the host before lines of its launcher
# Differences between otherwise identical lines: memory addresses, times of day, process ids.
_VARIES = re.compile(rb"0x[0-9a-f]{6,}|\d\d:\d\d:\d\d(?:[.,]\d+)?|\bpid[ =:]+\d+")
_QUOTE = 120
_HOSTS = 4  # with their ranks; of more hosts, ranks and hosts are two lists
_WORD, _RANK = re.compile(rb"\w"), re.compile(rb"^\[rank\d+\]: ?")
# torchrun's own traceback only repeats which rank failed, or which signal stopped torchrun. The first ends
# with a second row of equals signs, the second with its error.
_BEGIN, _ROW = b"Traceback (most recent call last):", b"====="
_CHILD_FAILED = b"torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_STOPPED = b"torch.distributed.elastic.multiprocessing.api.SignalException"
_MOST_HELD = 400
_HELD_S = 5.0
_UNENDED_S = 1.0  # time limit for a rank to print its traceback to the end
# torchrun frames its note about threads by empty lines and asterisks, on every host with several ranks.
_NOTE = re.compile(rb"torch/distributed/run\.py:\d+\] (?:\*+ *|(Setting OMP_NUM_THREADS ).*)?\n")
LEFT_OUT = b"[toolkit] a traceback of torchrun itself is left out; toolkit logs --no-fold prints it\n"


class _Block:
    """A printed line or traceback, the rank that printed it first, and the ranks that printed it since."""

    def __init__(self, host: str, rank: int, texts: Sequence[bytes], now: float, key: bytes) -> None:
        self.host, self.rank, self.texts, self.began, self.key = host, rank, texts, now, key
        self.ranks: dict[int, str] = {rank: host}


class _Same:
    """Open printed blocks of one text, and the number of them that each rank has printed."""

    def __init__(self) -> None:
        self.first = 0  # number of the oldest open block
        self.open: deque[_Block] = deque()
        self.printed: dict[int, int] = {}


class _Traceback:
    """The lines of a rank's traceback until its last line, which names the error, arrives."""

    def __init__(self, now: float) -> None:
        self.began = now
        self.texts: list[bytes] = []
        self.lines = b""


class LineCollapser:
    """Collapses identical lines that different ranks printed within `window` seconds, as far as is known.

    The first one is printed at once. The nth line of one rank is matched with the nth identical line of
    another rank: a rank can print the same line a thousand times. A traceback is printed or collapsed as a
    whole. Otherwise a traceback that differs in one line would be printed without its other lines.
    """

    def __init__(self, window: float = 2.0) -> None:
        self._window = window
        self._written = (0.0, 0.0)  # of the newest data
        self._rest = b""
        self._order: deque[_Block] = deque()
        self._tracebacks: dict[tuple[str, int], _Traceback] = {}
        self._same: dict[bytes, _Same] = {}

    def feed(self, data: bytes, now: float, written: Written | None = None) -> bytes:
        """Return the output for `data`, which arrived at `now` (seconds of any clock).

        Args:
            written: the earliest and the latest time of `data`, by the same clock, if it is older.
        """
        shown = self.tick(now, written)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return shown + b"".join(self._line(line + b"\n", now) for line in lines)

    def tick(self, now: float, written: Written | None = None) -> bytes:
        """Return tracebacks that do not end in time, and the summaries of blocks whose window is over."""
        self._written = written or (now, now)
        late = [who for who, one in self._tracebacks.items() if now - one.began >= _UNENDED_S]
        shown = b"".join(self._end_traceback(*who) for who in late)
        over: list[_Block] = []
        while self._order and self._written[0] - self._order[0].began >= self._window:
            oldest = self._order.popleft()
            same = self._same[oldest.key]
            same.open.popleft()
            same.first += 1
            if not same.open:
                del self._same[oldest.key]
            over.append(oldest)
        return shown + _summaries(over)

    def close(self) -> bytes:
        """Return the rest at the end of the input."""
        last = b"".join(self._end_traceback(*who) for who in list(self._tracebacks))
        last += self._rest
        blocks = list(self._order)
        self._rest = b""
        self._order.clear()
        self._same.clear()
        return last + _summaries(blocks)

    def _line(self, line: bytes, now: float) -> bytes:
        found = _LINE.fullmatch(line)
        if not found:
            return line
        host, rank, text = found[1].decode(errors="replace"), int(found[2]), found[3]
        bare = _RANK.sub(b"", text)
        if bare.startswith(_BEGIN):
            before = self._end_traceback(host, rank)
            self._tracebacks[host, rank] = _Traceback(now)
        elif (host, rank) in self._tracebacks:
            before = b""
        else:
            return self._block(host, rank, [text], line)
        held = self._tracebacks[host, rank]
        held.texts.append(text)
        held.lines += line
        is_last = not bare.startswith((_BEGIN, b" ")) or len(held.texts) >= _MOST_HELD
        return before + (self._end_traceback(host, rank) if is_last else b"")

    def _end_traceback(self, host: str, rank: int) -> bytes:
        held = self._tracebacks.pop((host, rank), None)
        return self._block(host, rank, held.texts, held.lines) if held else b""

    def _block(self, host: str, rank: int, texts: Sequence[bytes], lines: bytes) -> bytes:
        """Return `lines`, or nothing if another rank has printed the same `texts`."""
        key = _own_number(rank).sub(b"rank N", _VARIES.sub(b"", b"\n".join(texts)))
        same = self._same.setdefault(key, _Same())
        number = max(same.printed.get(rank, 0), same.first)
        same.printed[rank] = number + 1
        if number - same.first < len(same.open):
            same.open[number - same.first].ranks[rank] = host
            return b""
        added = _Block(host, rank, texts, self._written[1], key)
        same.open.append(added)
        self._order.append(added)
        return lines


def _own_number(rank: int) -> re.Pattern[bytes]:
    return re.compile(rb"\b(rank)([ =:]?)%d\b" % rank, re.IGNORECASE)


def _summaries(blocks: Sequence[_Block]) -> bytes:
    """Return one line for each series of blocks that the same ranks printed."""
    shown = b""
    for _, run in groupby((one for one in blocks if len(one.ranks) > 1), key=lambda one: set(one.ranks)):
        shown += _summary(list(run))
    return shown


def _summary(group: Sequence[_Block]) -> bytes:
    first, every = group[0], [(text, one.rank) for one in group for text in one.texts]
    # The last line of a traceback names the error; Python underlines other lines with ^ and ~.
    texts = [(text, rank) for text, rank in reversed(every) if text.strip()]
    worded = (one for one in texts if _WORD.search(_RANK.sub(b"", one[0])))
    quote, printer = next(worded, (*texts, (b"", 0))[0])
    if not quote:
        return b""  # empty lines are not reported
    # A summary must not quote the number of one rank as the output of all ranks.
    text = _own_number(printer).sub(rb"\1\2N", quote).decode(errors="replace").strip()
    if len(text) > _QUOTE:
        text = text[: _QUOTE - 1] + "…"
    lines = "the same line" if len(every) == 1 else f"the same {len(every)} lines"
    others = {rank: host for rank, host in first.ranks.items() if rank != first.rank}
    places = _by_host(others)
    where = (
        ", ".join(f"{host} {spans(ranks)}" for host, ranks in places.items())
        if len(places) <= _HOSTS
        else f"ranks {spans(sorted(others))} ({host_list(places)})"
    )
    return f"[toolkit] {lines} on {where}: {text}\n".encode()


def _by_host(others: dict[int, str]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for rank in sorted(others):
        found.setdefault(others[rank], []).append(rank)
    return found


class _Held:
    """The lines of a launcher since the first line of a traceback."""

    def __init__(self, now: float) -> None:
        self.since = now
        self.lines: list[bytes] = []
        self.is_torchruns = False
        self.rows = self.begun = 0


class LauncherTraceback:
    """Hides the tracebacks with which torchrun reports that a rank failed or that a signal stopped torchrun.

    Of the notes about OMP_NUM_THREADS, which every torchrun with several ranks prints, the first one remains.

    Lines without a rank's name are held back from the start of a traceback, for each host. They are printed
    if it turns out to be another error, or if it does not end in time. Torchruns can mix their lines, also
    those without the name of a host.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._held: dict[bytes, _Held] = {}  # by the label of the host
        self._told = self._noted = False

    def feed(self, data: bytes, now: float) -> bytes:
        """Return the output for `data`, which arrived at `now` (seconds of any clock)."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return self.tick(now) + b"".join(self._line(line + b"\n", now) for line in lines)

    def tick(self, now: float) -> bytes:
        """Return the lines that were held back for too long."""
        late = [label for label, held in self._held.items() if now - held.since > _HELD_S]
        return b"".join(self._release(label) for label in late)

    def close(self) -> bytes:
        """Return the rest at the end of the input."""
        rest, self._rest = self._rest, b""
        return b"".join(self._release(label) for label in list(self._held)) + rest

    def _release(self, label: bytes) -> bytes:
        return b"".join(self._held.pop(label).lines)

    def _line(self, line: bytes, now: float) -> bytes:
        if _LINE.fullmatch(line) or line.startswith(b"[toolkit]"):
            return line
        if note := _NOTE.search(line):
            repeated, self._noted = self._noted or not note[1], self._noted or bool(note[1])
            return b"" if repeated else line
        found = _LABEL.match(line)
        label = found[0] if found else b""
        text = line[len(label) :]
        begins = text.startswith(_BEGIN)
        if label not in self._held and not begins:
            return line
        held = self._held.setdefault(label, _Held(now))
        held.lines.append(line)
        held.begun += begins
        held.is_torchruns = held.is_torchruns or text.startswith((_CHILD_FAILED, _STOPPED))
        if held.is_torchruns:
            held.rows += 2 if text.startswith(_STOPPED) else text.startswith(_ROW)
            if held.rows == 2 * held.begun:
                self._release(label)
                told, self._told = self._told, True
                return b"" if told else LEFT_OUT
        elif not (begins or text.startswith(b" ")):
            return self._release(label)  # the error line itself, of another error
        return self._release(label) if len(held.lines) > _MOST_HELD else b""
