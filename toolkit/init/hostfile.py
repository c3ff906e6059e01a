"""Open MPI's hostfile, read as its own mpirun reads it (4.1 and 5), for `toolkit init`.

https://docs.open-mpi.org/en/v5.0.x/launching-apps/scheduling.html; what the page leaves open was tried with
mpirun. A line that repeats a host adds a slot; a second ``slots=`` for a host is an error; ``max_slots``
alone are the slots; a host without a number of slots has one per core. Ranks here are not bound to cores, so
that such a host stays without slots and the default of hosts.yaml holds. Also read is ``host:slots``, as in
``horovodrun -H`` and in other launchers' files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from toolkit.errors import BadInput, Problem
from toolkit.hostsfile import fields
from toolkit.hostsfile.errors import meant, shown
from toolkit.hostsfile.yaml import MAX_BYTES
from toolkit.init.draft import DraftHost, faults_between, read_slots

_SLOTS = ("slots", "count", "cpu")
_MOST = ("max-slots", "slots-max", "max-cpu", "cpu-max", "max-count", "count-max")
_USER = ("username", "user-name")
_PORT = ("port",)
_KEYS = (*_SLOTS, *_MOST, *_USER, *_PORT)
# Older releases took these for a map of the host's processors.
_PROCESSORS = re.compile(r"boards|sockets(-per-board)?|cores(-per-socket)?|cpu-set")

_COMMENT = re.compile(r"/\*.*?(\*/|\Z)|(#|//)[^\n]*", re.DOTALL)


@dataclass
class _Line:
    """One line about a host; a value that it does not give is empty."""

    number: int
    host: str = ""
    address: str = ""
    user: str = ""
    port: int = 0
    slots: int | None = None
    most: int | None = None
    faults: list[str] = field(default_factory=list)

    def read(self, make: Callable[[str], object], text: str) -> None:
        """Note what is wrong with a value."""
        try:
            make(text)
        except ValueError as error:
            self.faults.append(str(error))


def parse_hostfile(data: bytes, source: str) -> tuple[DraftHost, ...]:
    """Return the hosts that a hostfile lists, in its order.

    Args:
        source: the file's name, for messages.

    Raises:
        BadInput: with every problem, by line.
    """
    if len(data) > MAX_BYTES:
        raise BadInput(source, (Problem("", f"the file exceeds the maximum of {MAX_BYTES} bytes"),))
    try:
        text = data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise BadInput(
            source, (Problem("", "this line is not UTF-8, so the file is not a hostfile", number),)
        ) from error
    # A comment can span lines; the following lines keep their numbers.
    plain = _COMMENT.sub(lambda match: "\n" * match[0].count("\n") or " ", text)
    lines = [_line(n, words) for n, line in enumerate(plain.split("\n"), 1) if (words := _words(line))]
    hosts, firsts, faults = _merge(lines)
    faults += [(firsts[index].number, message) for index, message in faults_between(hosts)]
    faults += [(line.number, message) for line in lines for message in line.faults]
    if not (hosts or faults):
        faults = [(0, "the file lists no host")]
    if faults:
        raise BadInput(source, tuple(Problem("", message, n or None) for n, message in sorted(faults)))
    return tuple(hosts)


def _words(line: str) -> list[str]:
    return re.findall(r"=|[^\s=]+", line)


def _line(number: int, words: list[str]) -> _Line:
    line = _Line(number, words[0])
    if refusal := _not_a_host(words):
        line.faults.append(refusal)
        return line
    user, at, place = words[0].rpartition("@")
    if match := re.fullmatch(r"([^:]+):([0-9]+)", place):
        place, line.slots = match[1], _slots(line, match[2])
    line.address, line.user = place, user
    line.read(fields.address, place)
    if at:
        line.read(fields.user, user)
    for key, value in _pairs(line, words[1:]):
        _take(line, key, value)
    if line.slots is not None and line.most is not None and line.most < line.slots:
        line.faults.append(f"max_slots={line.most} is less than slots={line.slots}")
    return line


def _not_a_host(words: list[str]) -> str:
    first = words[0]
    if first == "rank" or words[1:2] == ["="]:
        return f"a line should begin with a host, found {shown(first)}; toolkit does not read rankfiles"
    if first.startswith("+"):
        return f"{shown(first)} refers to a scheduler allocation; toolkit requires host names"
    if first.startswith("^"):
        return f"{shown(first)} excludes a host; delete the lines of the host instead"
    if "," in first:
        return f"a line should contain one host, found {shown(first)}"
    return ""


def _pairs(line: _Line, words: list[str]) -> Iterator[tuple[str, str]]:
    while words:
        if len(words) < 3 or words[1] != "=" or words[2] == "=":
            line.faults.append(
                f"the host should be followed by pairs such as slots=4, found {shown(' '.join(words))}"
            )
            return
        yield words[0], words[2]
        words = words[3:]


def _take(line: _Line, word: str, value: str) -> None:
    key = word.replace("_", "-")
    if key in _SLOTS:
        if line.slots is not None:
            line.faults.append("the line sets slots twice")
        line.slots = _slots(line, value)
    elif key in _MOST:
        line.most = _slots(line, value)
    elif key in _USER:
        line.user = value
        line.read(fields.user, value)
    elif key in _PORT:
        line.read(lambda text: fields.between(int(text), 1, 65535), value)
        line.port = int(value) if re.fullmatch("[0-9]{1,5}", value) else 0
    elif _PROCESSORS.fullmatch(key):
        line.faults.append(f"toolkit does not read the processor setting {word}; remove the setting")
    else:
        line.faults.append(f"unknown word {shown(word)}; {meant(key, _KEYS)}")


def _slots(line: _Line, text: str) -> int | None:
    try:
        return read_slots(text)
    except ValueError as error:
        line.faults.append(str(error))
        return None


def _merge(lines: list[_Line]) -> tuple[list[DraftHost], list[_Line], list[tuple[int, str]]]:
    """One host per machine, the first line of each, and what is wrong with lines that repeat one."""
    firsts: dict[str, _Line] = {}
    slots: dict[str, int | None] = {}
    faults = []
    for line in lines:
        if not line.address:
            continue
        # Names of machines are equal whatever their case, to ssh and to the resolver.
        key = line.address.lower()
        first = firsts.setdefault(key, line)
        if first is line:
            slots[key] = line.most if line.slots is None else line.slots
            continue
        if line.slots is not None or line.most is not None:
            again = f"{line.address} is already on line {first.number}; write all slots on one line"
            faults.append((line.number, again))
        if (line.user or first.user, line.port or first.port) != (first.user, first.port):
            faults.append(
                (line.number, f"the user or port of {line.address} differs from line {first.number}")
            )
        before = slots[key]
        slots[key] = (1 if before is None else before) + 1
    hosts = [
        DraftHost(line.address, user=line.user, port=line.port, slots=slots[key])
        for key, line in firsts.items()
    ]
    return hosts, list(firsts.values()), faults
