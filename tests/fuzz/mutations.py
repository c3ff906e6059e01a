"""Changes of the answers of hosts: bytes, text, JSON, archives, sections, and the time at which they come."""

from __future__ import annotations

import copy
import io
import json
import random
import re
import tarfile
from collections.abc import Callable, Sequence
from typing import Any

from tests.fuzz.fake_hosts import Change

CONTROLS = (
    *(b"\0", b"\n", b"\r", b"\t", b"\b\b\b", b"\x07", b"\x1b[2J", b"\x1b[?1049h", b"\x1b]0;owned\x07"),
    *(
        b"\x1b]52;c;b3duZWQ=\x07",
        b"\x1bP$q\x1b\\",
        b"\x1b[31m",
        b"\x9b2J",
        b"\xc2\x9b2J",
        b"\x1b[6n",
        b"\x1b",
    ),
    *(b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x80\xae", b"\xe2\x80\xa8", b"\x7f"),
    *(b"\x1b[8m\x1b[1A", b"\x1bc", b"\xc2\x85", b"\xf0\x9f\x98\x80"),
)
_NAMES = (
    *(
        "..",
        ".",
        "/",
        "../../outside",
        "/etc/passwd",
        "~/.bashrc",
        "a/../../b",
        "sentinel",
        ".ssh/config",
        "../../../../../owned",
        "../../../../../sentinel/x",
    ),
    *(
        "out/../../../sentinel/x",
        "a" * 300,
        "x/" * 400,
        "-rf",
        "con\nfig",
        "a\0b",
        "\x1b[2J",
        "\udcff",
        "link/x",
    ),
    *("\u202egnp.exe", "%s%n", "{0.__class__}", "$(id)", "'; id; '", ""),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 2**64, 10**19, -(10**30), 1e308, -1e308, 1e-320),
    *("", "x", "0", "-1", [], {}, [[]], [None], {"": ""}, {"x": {}}, 0.5, 65536, 4097, 1e12, -1e12),
)
# Texts that `json.dumps` does not write.
_RAW = (
    *("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-" + "1" * 25, "0." + "3" * 5000, "[" * 5000),
    *(
        '{"a":' * 3000,
        '"\\ud800"',
        '"\\u0000"',
        '"\\u001b[2J"',
        '"' + "a" * 100_000 + '"',
        "1e400",
        "tru",
        "'x'",
    ),
    *("[" + "0," * 20_000 + "0]", '"\\u202e"', "-", "--1", "0x10", "1_000", "[" * 500 + "]" * 500),
)
_NUMBERS = (
    *(b"0", b"-1", b"9" * 30, b"9" * 5000, b"-" + b"9" * 20, b"NaN", b"inf", b"1e999", b"0x7f", b"1_0", b""),
    *("\u0663\u0664".encode(), "\u00b2".encode(), b"4294967296", b"18446744073709551616", b"1.5", b"+1"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_FRAME = re.compile(rb"\n([0-9a-f]{8,64}) ([a-z0-9-]{1,40}) ([0-9]{1,10})\n")


def _at(rng: random.Random, data: bytes | bytearray) -> int:
    return rng.randrange(len(data) + 1)


def _bytes(rng: random.Random, data: bytes) -> bytes:
    """Put random bytes in the place of some."""
    text = bytearray(data)
    for _ in range(rng.choice((1, 3, 20))):
        at = _at(rng, text)
        count = rng.choice((0, 1, 4, 50))
        text[at : at + rng.choice((0, count))] = bytes(rng.randrange(256) for _ in range(count))
    return bytes(text)


def _bits(rng: random.Random, data: bytes) -> bytes:
    """Flip bits."""
    text = bytearray(data)
    for _ in range(rng.choice((1, 1, 5, 50)) if text else 0):
        text[rng.randrange(len(text))] ^= 1 << rng.randrange(8)
    return bytes(text)


def _cut(rng: random.Random, data: bytes) -> bytes:
    """Leave out the end, the beginning, or a part in between."""
    first, second = sorted((_at(rng, data), _at(rng, data)))
    return rng.choice((data[:second], data[first:], data[:first] + data[second:], data[:-1]))


def _double(rng: random.Random, data: bytes) -> bytes:
    """Let something come twice, or often."""
    first, second = sorted((_at(rng, data), _at(rng, data)))
    lines = data.splitlines(keepends=True)
    if lines and rng.random() < 0.5:
        at = rng.randrange(len(lines))
        return b"".join([*lines[:at], *[lines[at]] * rng.choice((2, 2, 50)), *lines[at + 1 :]])
    return rng.choice((data + data, data[:second] + data[first:]))


def _order(rng: random.Random, data: bytes) -> bytes:
    """Change the order of lines."""
    lines = data.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def _empty(rng: random.Random, data: bytes) -> bytes:
    return rng.choice((b"", b"", b"\n", b" ", b"\0", b"null", b"{}", b"[]"))


def _number(rng: random.Random, data: bytes) -> bytes:
    """Put another number in the place of some."""
    found = list(_NUMBER.finditer(data))
    for match in sorted(
        rng.sample(found, min(len(found), rng.choice((1, 1, 2, 10)))), key=lambda m: -m.start()
    ):
        data = data[: match.start()] + rng.choice(_NUMBERS) + data[match.end() :]
    return data


def _control(rng: random.Random, data: bytes) -> bytes:
    """Put control characters and sequences into it."""
    for _ in range(rng.choice((1, 2, 5, 20))):
        at = _at(rng, data)
        data = data[:at] + rng.choice(CONTROLS) + data[at:]
    return data


def _long(rng: random.Random, data: bytes) -> bytes:
    """Put something long into it."""
    at, piece = _at(rng, data), rng.choice((b"a", b"\n", b"9", b"[", b"\x1b[", b'"', b" ", b"\xff", b"a|b "))
    return data[:at] + piece * rng.choice((200, 5000, 300_000)) + data[at:]


def _word(rng: random.Random, data: bytes) -> bytes:
    """Put another word, such as the name of a file, in the place of one."""
    found = list(re.finditer(rb"[^\s\"|,:]+", data))
    if not found:
        return data
    match = rng.choice(found)
    name = rng.choice(_NAMES).encode("utf-8", "surrogateescape")
    return data[: match.start()] + name + data[match.end() :]


Place = tuple[Any, Any]


def _places(value: Any) -> list[Place]:
    """All places below a JSON value, as a container and a key or an index."""
    found: list[Place] = []
    left = [value]
    while left:
        one = left.pop()
        pairs = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in pairs:
            found.append((one, key))
            left.append(inner)
    return found


_HOLE = "@@hole@@"


def _json(change: Callable[[random.Random, Any], str | None]) -> Callable[[random.Random, bytes], bytes]:
    """Make a change of a JSON value a change of the text, or of one of its lines, that holds one."""

    def changed(rng: random.Random, data: bytes) -> bytes:
        pieces = [data]
        at = 0
        if _parsed(data) is None:
            pieces = data.splitlines(keepends=True)
            candidates = [
                n for n, piece in enumerate(pieces) if piece[:1] in b"[{" and _parsed(piece) is not None
            ]
            if not candidates:
                return rng.choice((_number, _word, _long))(rng, data)
            at = rng.choice(candidates)
        value = json.loads(pieces[at])
        raw = change(rng, value)
        text = json.dumps(value)
        if raw is not None:
            text = text.replace(f'"{_HOLE}"', raw, 1)
        end = b"\n" if pieces[at].endswith(b"\n") else b""
        pieces[at] = text.encode("utf-8", "surrogateescape") + end
        return b"".join(pieces)

    return changed


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _types(rng: random.Random, value: Any) -> None:
    for _ in range(rng.choice((1, 1, 1, 3))):
        if places := _places(value):
            where, key = rng.choice(places)
            # A copy: the next change can be within it, and would put the original into itself.
            where[key] = copy.deepcopy(rng.choice(_VALUES))


def _names(rng: random.Random, value: Any) -> None:
    """Change a text, or the name of a key."""
    places = _places(value)
    texts = [place for place in places if isinstance(place[0][place[1]], str)]
    keys = [place for place in places if isinstance(place[1], str)]
    if keys and (not texts or rng.random() < 0.3):
        where, key = rng.choice(keys)
        where[rng.choice(_NAMES)] = where.pop(key)
    elif texts:
        where, key = rng.choice(texts)
        old = where[key]
        where[key] = rng.choice((rng.choice(_NAMES), old + rng.choice(_NAMES), f"{rng.choice(_NAMES)}/{old}"))


def _sequences(rng: random.Random, value: Any) -> None:
    """Put control characters into texts."""
    texts = [place for place in _places(value) if isinstance(place[0][place[1]], str)]
    for where, key in rng.sample(texts, min(len(texts), rng.choice((1, 3, 100)))):
        old, at = where[key], rng.randrange(len(where[key]) + 1)
        where[key] = old[:at] + rng.choice(CONTROLS).decode("utf-8", "surrogateescape") + old[at:]


def _counts(rng: random.Random, value: Any) -> None:
    """Empty, lengthen or shorten lists and objects."""
    places = [place for place in _places(value) if isinstance(place[0][place[1]], (list, dict))]
    if not places:
        return
    where, key = rng.choice(places)
    inner = where[key]
    if isinstance(inner, list):
        longer = inner * rng.choice((2, 100, 5000)) if len(json.dumps(inner)) < 200 else inner * 2
        where[key] = rng.choice(([], inner[1:], longer, inner[::-1]))
    elif inner:
        inner.pop(rng.choice(list(inner)))


def _raws(rng: random.Random, value: Any) -> str | None:
    """Put a text in the place of a value that no encoder writes."""
    places = _places(value)
    if not places:
        return None
    where, key = rng.choice(places)
    where[key] = _HOLE
    return rng.choice(_RAW)


def _frames(rng: random.Random, data: bytes) -> bytes:
    """Forge, double, leave out or exchange sections; of other output, the words that delimit it."""
    heads = list(_FRAME.finditer(data))
    if not heads:
        forged = rng.choice(
            (
                *(
                    b"@@toolkit@@\n",
                    b"@@begun@@\n",
                    b"\nended 0\n",
                    b"=used\n",
                    b"=images\n",
                    b"tried\n",
                    b"\n",
                ),
                *(b'{"done": true}\n', b'{"jobs": []}\n', b'{"refused": "no", "fix": "rm -rf /"}\n'),
                *(b'{"started": "x"}\n', b'{"host": "gpu9", "command": "x"}\n', b'{"begun": false}\n'),
                *(b'{"needs": [[0, 4294967296]]}\n', b'{"buckets": [99999999]}\n', b'{"needs": [[5, 1]]}\n'),
                *(
                    b'{"size": 99999, "mtime": 1}\n',
                    b'{"refused": ""}\n',
                    b'{"nothing": true}\n',
                    b'{"ports": {}}\n',
                ),
                *(
                    b'{"pairs": {}}\n',
                    b'{"working": true}\n' * 300,
                    b'{"missing": "x"}\n',
                    b'{"failed": true}\n',
                ),
            )
        )
        at = rng.choice((0, len(data), _at(rng, data)))
        return data[:at] + forged + data[at:]
    one, other = rng.choice(heads), rng.choice(heads)
    kind = rng.randrange(6)
    if kind == 0:  # a length that is none of it
        length = rng.choice((b"0", b"9999999999", b"1", b"%d" % (int(one[3]) + 1), b"-1", b"00000000001"))
        return data[: one.start(3)] + length + data[one.end(3) :]
    if kind == 1:  # a section that comes under the name of another
        return data[: one.start(2)] + other[2] + data[one.end(2) :]
    if kind == 2:  # a section within another
        forged = b"\n%s %s 3\nyes" % (one[1], other[2])
        return data[: one.end()] + forged + data[one.end() :]
    end = one.end() + int(one[3])
    if kind == 3:
        return data[: one.start()] + data[end:]
    if kind == 4:
        return data[:end] + data[one.start() : end] + data[end:]
    return data[: one.start()] + data[end:].rstrip() + data[one.start() : end]


def _archive(rng: random.Random, data: bytes) -> bytes:
    """Make an archive of members that no honest host sends; in other answers, change names."""
    if len(data) < 1024 or data[257:262] != b"ustar":
        return _json(_names)(rng, data)
    job = data[:100].split(b"/")[0].decode("ascii", "replace")
    packed = io.BytesIO()
    with tarfile.open(
        fileobj=packed, mode="w", format=rng.choice((tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    ) as tar:
        for _ in range(rng.randint(1, 6)):
            name = rng.choice((*_NAMES, "output.log", "code/x", "code/out", "code/out/model.pt", ".."))
            if rng.random() < 0.3:
                name = "../" * rng.randint(3, 6) + "owned"
            entry = tarfile.TarInfo(rng.choice((f"{job}/{name}", name, f"{name}/{job}", f"./{job}/{name}")))
            entry.type = rng.choice((*(tarfile.REGTYPE,) * 4, *_TYPES))
            entry.linkname = rng.choice(
                ("../../sentinel", "/etc/passwd", "..", "output.log", f"{job}/output.log")
            )
            content = b"y" * rng.choice((0, 1, 600))
            entry.size = len(content) if entry.type == tarfile.REGTYPE else 0
            entry.mode = rng.choice((0o644, 0o7777, 0))
            if rng.random() < 0.2:
                entry.pax_headers = {"path": rng.choice(("/etc/x", "../x", job + "/x")), "size": "99"}
            tar.addfile(entry, io.BytesIO(content))
    made = bytearray(packed.getvalue())
    if rng.random() < 0.3:  # a size that is none of it
        made[124:136] = rng.choice(
            (b"77777777777\0", b"\x80" + b"\xff" * 11, b"-0000000001\0", b"00000000001\0")
        )
        made[148:156] = b"%06o\0 " % (sum(made[:148]) + 8 * 32 + sum(made[156:512]))
    return rng.choice(
        (bytes(made), bytes(made), data[:-1024] + bytes(made), bytes(made) + data, bytes(made)[:-900])
    )


_TYPES = (
    *(tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE),
    *(tarfile.GNUTYPE_SPARSE, tarfile.CONTTYPE, b"L", b"x", b"g", b"K", b"Z"),
)

OF_BYTES: dict[str, Callable[[random.Random, bytes], bytes]] = {
    "bytes": _bytes,
    "bits": _bits,
    "cut": _cut,
    "double": _double,
    "order": _order,
    "empty": _empty,
    "number": _number,
    "control": _control,
    "long": _long,
    "word": _word,
    "json type": _json(_types),
    "json name": _json(_names),
    "json control": _json(_sequences),
    "json count": _json(_counts),
    "json raw": _json(_raws),
    "frames": _frames,
    "archive": _archive,
}
# How a command ends, what its login shell prints, and when anything comes.
OTHERS = ("status", "stderr", "noise", "silent", "drops", "flood", "lost", "refused")
KINDS = (*OF_BYTES, *OTHERS)
_STATUSES = (1, 2, 3, 70, 124, 125, 126, 127, 130, 137, 139, 213, 214, 215, 255, 256, -1, 2**31)


class Changed(Change):
    """One kind of change of the answer to one command."""

    def __init__(self, kind: str, rng: random.Random) -> None:
        self.kind, self._rng = kind, rng
        self.pace = kind if kind in ("silent", "drops", "flood", "lost") else ""

    def before(self, mark: bytes) -> bytes:
        if self.kind != "noise":
            return mark
        noise = self._rng.choice((b"Welcome!\n", b"x" * 300_000, mark, b"\x1b[2J", b"\xff\0", b"", mark[:-3]))
        return self._rng.choice((noise + mark, mark + noise, noise, noise + mark + mark))

    def out(self, data: bytes) -> bytes:
        if self.kind not in OF_BYTES:
            return data
        return spoiled(self._rng, self.kind, data)

    def err(self, data: bytes) -> bytes:
        if self.kind == "stderr":
            kind = self._rng.choice(("control", "long", "bytes", "word", "json type", "json raw"))
            return OF_BYTES[kind](self._rng, data)
        return OF_BYTES[self.kind](self._rng, data) if self.kind in OF_BYTES and data else data

    def status(self, status: int) -> int:
        return self._rng.choice(_STATUSES) if self.kind == "status" else status


def spoiled(rng: random.Random, kind: str, data: bytes) -> bytes:
    """Change an answer; one that is made of sections mostly within a section, whose length is right then."""
    heads = list(_FRAME.finditer(data))
    change = OF_BYTES[kind]
    if not heads or kind == "frames" or rng.random() < 0.15:
        return change(rng, data)
    for head in sorted(
        rng.sample(heads, min(len(heads), rng.choice((1, 1, 2, 5)))), key=lambda m: -m.start()
    ):
        end = head.end() + int(head[3])
        inner = change(rng, data[head.end() : end])
        data = data[: head.start(3)] + b"%d\n" % len(inner) + inner + data[end:]
    return data


def some(rng: random.Random, kinds: Sequence[str] = KINDS) -> str:
    """Return a kind of change; those that take long come seldom."""
    kind = rng.choice(kinds)
    if kind in ("flood", "drops") and rng.random() < 0.7:
        return some(rng, kinds)
    return kind
