"""The decoder of structured data that comes from a host, a container, a rank, an image or an archive.

A dataclass describes what is accepted. Everything else is refused with a :class:`DecodeError` that names the
field: a wrong type, a missing key, a number out of range, a text that is too long or contains control
characters. Unknown keys are dropped, because newer programs send more.

Types of fields: ``str``, ``int``, ``float``, ``bool``, another dataclass, ``Literal[...]``, ``X | None``,
``tuple[X, ...]``, ``tuple[X, Y]`` for a list of that length, ``dict[str, X]``, and ``object`` for any JSON of
moderate depth. ``Annotated`` narrows a type by :class:`Text`, :class:`Number` or :class:`Items`, and
:class:`Key` names the JSON key of a field that has another name.

``whole``, ``real`` and ``hexadecimal`` read numbers in lines of text; what is no such number is None.
"""

from __future__ import annotations

import functools
import json
import math
import re
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

T = TypeVar("T")

MOST_BYTES = 1 << 24  # of one JSON text
# Items of all lists and objects of one JSON text, by its commas and brackets. Three bytes take 64 in memory.
_MOST_ITEMS = 1 << 21
_DIGITS = 20  # of an integer; more than 64 bits need
_SHOWN = 60  # characters of a refused value
_DEPTH = 64  # of a value of any type; programs that write or mask it call themselves for each level


class DecodeError(ValueError):
    """Data that is not what its dataclass describes.

    Args:
        path: of the field: ``State.ExitCode`` or ``[3].name``; empty for the whole.
        what: the problem, with the value where it helps.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}" if path else what)
        self.path, self.what = path, what


class TooLarge(DecodeError):
    """A JSON text with more bytes or items than one can have."""


@dataclass(frozen=True)
class Text:
    """Limits of a string.

    Args:
        most: characters.
        pattern: that all of it must match; empty for any.
        lines: whether tabs and newlines are allowed.
        any: whether all characters are allowed, as in output of ranks and variables of images. Only halves
            of surrogate pairs are replaced, because no file and no terminal takes them.
        path: whether it is the name of a file: all characters but NUL are allowed, bytes that are no UTF-8
            are surrogates (``surrogateescape``), and ``most`` counts bytes.
    """

    most: int = 4096
    pattern: str = ""
    lines: bool = False
    any: bool = False
    path: bool = False


@dataclass(frozen=True)
class Number:
    """Limits of a number, both included."""

    least: float = -(2**63)
    most: float = 2**63 - 1


@dataclass(frozen=True)
class Key:
    """The JSON key of a field, if it is not the field's name."""

    name: str


@dataclass(frozen=True)
class Items:
    """The most items of a tuple or a dict."""

    most: int = 100_000


@dataclass(frozen=True)
class OrEmpty:
    """Marker of an optional value: an empty text, list or object means null, whatever the type."""


_TEXT, _NUMBER, _ITEMS = Text(), Number(), Items()
# Controls of the direction of text too: some of these texts become files that `render` prints unchanged.
_CONTROL = re.compile("[\0-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTROL_IN_LINES = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# Names in messages about values.
_NAMES = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}


def load_json(data: bytes | str, most: int = MOST_BYTES) -> Any:
    """Return the value of a JSON text.

    Args:
        most: bytes (of a ``str``: characters).

    Raises:
        DecodeError: it is too long or too deep, is not JSON, or contains a number that is out of range.
    """
    if len(data) > most:
        raise TooLarge("", f"has {len(data)} bytes, but the limit is {most}")
    _check_items(data)
    with _json_errors():
        return json.loads(data, parse_int=_integer, parse_float=_real, parse_constant=_constant)


def _check_items(data: bytes | str, start: int = 0) -> None:
    if len(data) - start <= _MOST_ITEMS:
        return
    if isinstance(data, str):
        count = sum(data.count(sign, start) for sign in ",[{")
    else:
        count = sum(data.count(sign, start) for sign in b",[{")
    if count > _MOST_ITEMS:
        raise TooLarge("", f"contains more than {_MOST_ITEMS} items")


@contextmanager
def _json_errors() -> Iterator[None]:
    try:
        yield
    except RecursionError:
        raise DecodeError("", "nested too deeply") from None
    except UnicodeDecodeError:
        raise DecodeError("", "not UTF-8") from None
    except json.JSONDecodeError as error:
        raise DecodeError("", f"not JSON: {error.msg} at character {error.pos}") from None


def load_first(text: str, start: int = 0) -> tuple[Any, int]:
    """Return the JSON value that begins at an index, and the index behind it; more text can follow.

    Raises:
        DecodeError: see :func:`load_json`.
    """
    if len(text) - start > MOST_BYTES:
        raise TooLarge("", f"has {len(text) - start} characters, but the limit is {MOST_BYTES}")
    _check_items(text, start)
    decoder = json.JSONDecoder(parse_int=_integer, parse_float=_real, parse_constant=_constant)
    with _json_errors():
        found: tuple[Any, int] = decoder.raw_decode(text, start)
        return found


def decode_json(kind: type[T], data: bytes | str, most: int = MOST_BYTES) -> T:
    """Return a JSON text as a value of a dataclass, or of another type that fields can have.

    Raises:
        DecodeError: see :func:`load_json` and :func:`decode`.
    """
    return decode(kind, load_json(data, most))


def decode(kind: type[T], value: object, path: str = "") -> T:
    """Return a value that JSON can express as a value of a dataclass, or of another type of fields.

    Args:
        path: of the value, for messages.

    Raises:
        DecodeError: it is not what the type describes.
    """
    try:
        return cast(T, _decode(kind, value, path, ()))
    except RecursionError:
        raise DecodeError(path, "nested too deeply") from None


def _integer(text: str) -> int:
    if len(text) > _DIGITS:
        raise DecodeError("", f"an integer of {len(text)} characters, but the limit is {_DIGITS}")
    return int(text)


def _real(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise DecodeError("", f"a number out of range: {_shown(text)}")
    return number


def _constant(text: str) -> float:
    raise DecodeError("", f"not a number: {text}")


def _decode(kind: Any, value: object, path: str, limits: tuple[object, ...]) -> object:
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *more = get_args(kind)
        return _decode(inner, value, path, (*more, *limits))
    if origin in (Union, types.UnionType):
        return _optional(kind, value, path, limits)
    if origin is Literal:
        # A bool equals a number, so types are compared too.
        if any(type(one) is type(value) and one == value for one in get_args(kind)):
            return value
        raise DecodeError(path, f"not one of {', '.join(map(str, get_args(kind)))}: {_shown(value)}")
    if origin is tuple:
        items = get_args(kind)
        if not isinstance(value, list):
            raise DecodeError(path, f"not a list: {_shown(value)}")
        if items[-1] is Ellipsis:
            _count(value, path, limits)
            items = items[:1] * len(value)
        elif len(items) != len(value):
            raise DecodeError(path, f"a list of length {len(value)} instead of {len(items)}")
        pairs = zip(items, value, strict=True)
        return tuple(_decode(item, one, f"{path}[{number}]", ()) for number, (item, one) in enumerate(pairs))
    if origin is dict:
        word, item = get_args(kind)
        if not isinstance(value, dict):
            raise DecodeError(path, f"not an object: {_shown(value)}")
        _count(value, path, limits)
        return {
            cast(str, _decode(word, name, f"{path} key", ())): _decode(
                item, one, f"{path}.{_shown(name)}", ()
            )
            for name, one in value.items()
        }
    if is_dataclass(kind):
        return _dataclass(kind, value, path)
    if kind is object:
        _check_depth(value, path)
        return value
    return _simple(kind, value, path, limits)


def _optional(kind: Any, value: object, path: str, limits: tuple[object, ...]) -> object:
    inner = [one for one in get_args(kind) if one is not types.NoneType]
    if len(inner) != 1 or len(get_args(kind)) != 2:
        raise TypeError(f"cannot decode {kind}")
    if value is None or (value in ("", [], {}) and any(isinstance(one, OrEmpty) for one in limits)):
        return None
    return _decode(inner[0], value, path, limits)


def _dataclass(kind: Any, value: object, path: str) -> object:
    if not isinstance(value, dict):
        raise DecodeError(path, f"not an object: {_shown(value)}")
    given = {}
    for name, word, hint, is_required in _fields(kind):
        place = f"{path}.{word}" if path else word
        if word in value:
            given[name] = _decode(hint, value[word], place, ())
        elif is_required:
            raise DecodeError(place, "is missing")
    return kind(**given)


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """Name, JSON key, type and necessity of each field."""
    hints = get_type_hints(kind, include_extras=True)

    def is_required(one: Field[Any]) -> bool:
        return one.default is MISSING and one.default_factory is MISSING

    def word(one: Field[Any]) -> str:
        hint = hints[one.name]
        limits = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        return _limit(limits, Key(one.name)).name

    return tuple((one.name, word(one), hints[one.name], is_required(one)) for one in fields(kind))


def _simple(kind: Any, value: object, path: str, limits: tuple[object, ...]) -> object:
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise DecodeError(path, f"not {_NAMES[kind]}: {_shown(value)}")
    if isinstance(value, str):
        return _text(value, path, _limit(limits, _TEXT))
    if kind in (int, float):
        number = cast(float, value)
        limit = _limit(limits, _NUMBER)
        if not limit.least <= number <= limit.most:
            raise DecodeError(path, f"not in the range {limit.least} to {limit.most}: {_shown(value)}")
    return value


def _check_depth(value: object, path: str) -> None:
    level = [value]
    for _ in range(_DEPTH):
        inner = [one for one in level if isinstance(one, (list, dict))]
        level = [each for one in inner for each in (one if isinstance(one, list) else one.values())]
        if not level:
            return
    raise DecodeError(path, f"nested more than {_DEPTH} levels deep")


def _text(value: str, path: str, limit: Text) -> str:
    if len(value) > limit.most:
        raise DecodeError(path, f"has {len(value)} characters, but the limit is {limit.most}")
    if limit.path:
        _check_path(value, path, limit.most)
    elif limit.any:
        return _SURROGATE.sub("\ufffd", value)
    elif found := (_CONTROL_IN_LINES if limit.lines else _CONTROL).search(value):
        raise DecodeError(path, f"contains the control character {found[0]!a}")
    if limit.pattern and not re.fullmatch(limit.pattern, value):
        raise DecodeError(path, f"does not match the pattern {limit.pattern}: {_shown(value)}")
    return value


def _check_path(value: str, path: str, most: int) -> None:
    try:
        length = len(value.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise DecodeError(path, f"contains the surrogate {value[error.start]!a}") from None
    if length > most:
        raise DecodeError(path, f"has {length} bytes, but the limit is {most}")
    if "\0" in value:
        raise DecodeError(path, "contains the control character '\\x00'")


def _count(value: list[Any] | dict[Any, Any], path: str, limits: tuple[object, ...]) -> None:
    limit = _limit(limits, _ITEMS)
    if len(value) > limit.most:
        raise DecodeError(path, f"contains {len(value)} items, but the limit is {limit.most}")


def _limit(limits: tuple[object, ...], default: T) -> T:
    return next((one for one in limits if isinstance(one, type(default))), default)


def _shown(value: object) -> str:
    """Return the beginning of a value in printable ASCII."""
    if isinstance(value, (list, dict)):
        return "a list" if isinstance(value, list) else "an object"
    text = ascii(value[: _SHOWN + 1] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_WHOLE = re.compile(r"-?[0-9]{1,19}")
_REAL = re.compile(r"-?[0-9]{1,19}(\.[0-9]{0,30})?")
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{1,16}")
MOST = 2**63 - 1  # the largest integer of a line


def whole(text: str, most: int = MOST, least: int = 0) -> int | None:
    """Return a decimal integer within bounds, which are included."""
    value = int(text) if _WHOLE.fullmatch(text) else None
    return value if value is not None and least <= value <= most else None


def real(text: str) -> float | None:
    """Return a decimal number without an exponent, of at most 19 digits before the point."""
    return float(text) if _REAL.fullmatch(text) else None


def hexadecimal(text: str, most: int = 2**32 - 1) -> int | None:
    """Return a hexadecimal number without a prefix, 0 to ``most``."""
    value = int(text, 16) if _HEXADECIMAL.fullmatch(text) else None
    return value if value is not None and value <= most else None
