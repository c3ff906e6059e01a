"""Mask secrets in texts before they are attached to a report."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Iterable
from typing import Any

MASK = "***"
# A shorter value occurs too often by coincidence.
LEAST = 4
SECRET_NAME = re.compile(r"token|secret|key|passw(?:or)?d|credential", re.IGNORECASE)
# NAME=value, NAME="a value", "name": "value", as in environments, command lines and JSON. The pattern
# omits the part of the name before the keyword, so that matching is fast for every text.
_PAIR = re.compile(
    rf"(?P<head>(?:{SECRET_NAME.pattern})[A-Za-z0-9_.-]{{0,60}}(?:\s{{0,3}}=\s{{0,3}}|[\"']\s{{0,3}}:\s{{0,3}}))"
    r"(?P<value>\"(?:[^\"\\\n]|\\.)*\"?|'[^'\n]*'?|[^\s\"',;&]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"(?P<head>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/-]{8,}=*", re.IGNORECASE)
# user:password@host of an address.
_ADDRESS = re.compile(r"(?P<head>://[^\s/:@]{1,60}:)[^\s/@]{1,200}(?=@)")
_PRINTED = re.compile(rb"[\t -~]{4,}")
_PLAIN = frozenset(("true", "false", "none", "null", "auto", '"none"', '"null"'))
# Keys of values that identify a job or a host, or are words of toolkit. A variable such as TOKENIZER=gpt2 can
# have the same text.
_IDENTITIES = frozenset((
    "id", "host", "hosts", "lost_host", "main", "unswept", "address", "local", "peer",
    "state", "states", "call",
))  # fmt: skip


def secret_values(values: Iterable[str]) -> tuple[str, ...]:
    """Return the texts to search for: each value and each of its lines; the longest first."""
    pieces = {piece for value in values for piece in (value, *value.splitlines())}
    found = {piece.strip() for piece in pieces}
    return tuple(
        sorted((v for v in found if len(v) >= LEAST and v.lower() not in _PLAIN), key=lambda v: (-len(v), v))
    )


def secret_pairs(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the values of variables whose names mark them as secret.

    >>> secret_pairs([("HF_TOKEN", "abcd"), ("EPOCHS", "3")])
    ['abcd']
    """
    return [value for name, value in pairs if SECRET_NAME.search(name)]


def masked_text(text: str, secrets: Collection[str] = ()) -> str:
    """Return the text without these values, and without the value of any NAME=VALUE with a secret's name.

    >>> masked_text("run --env HF_TOKEN=abc --lr 3")
    'run --env HF_TOKEN=*** --lr 3'
    """
    for secret in secrets:
        text = text.replace(secret, MASK)
    text = _PAIR.sub(_hide, text)
    text = _BEARER.sub(rf"\g<head>{MASK}", text)
    return _ADDRESS.sub(rf"\g<head>{MASK}", text)


def masked_bytes(data: bytes, secrets: Collection[str] = ()) -> bytes:
    """Return binary data without what ``masked_text`` masks, with a ``*`` for each byte of it.

    The data keeps its length, so that formats with lengths stay valid.

    >>> masked_bytes(b"\\0\\x10HF_TOKEN=abc\\0")
    b'\\x00\\x10HF_TOKEN=***\\x00'
    """
    for secret in secrets:
        value = secret.encode("utf-8", "surrogateescape")
        data = data.replace(value, b"*" * len(value))
    return _PRINTED.sub(_starred, data)


def _starred(match: re.Match[bytes]) -> bytes:
    text = match[0].decode("ascii")
    for pattern in (_PAIR, _BEARER, _ADDRESS):
        text = pattern.sub(_stars, text)
    return text.encode("ascii")


def _stars(match: re.Match[str]) -> str:
    head = match["head"]
    if match.re is _PAIR and _hide(match) == match[0]:
        return match[0]
    return head + "*" * (len(match[0]) - len(head))


def _hide(match: re.Match[str]) -> str:
    value = match["value"]
    if value.lower() in _PLAIN or value.isdigit():
        return match[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{match['head']}{quote}{MASK}{quote}"


def masked(value: Any, secrets: Collection[str] = ()) -> Any:
    """Return the same JSON value with its texts and dumps masked, except ids, names of hosts and states."""
    if isinstance(value, str):
        return masked_text(value, secrets)
    if isinstance(value, dict):
        return {key: _entry(str(key), each, secrets) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [masked(each, secrets) for each in value]
    return value


def _entry(key: str, value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str) and value and SECRET_NAME.search(key):
        return MASK
    if key in _IDENTITIES:
        return _identity(value, secrets)
    if key == "dumps" and isinstance(value, dict):
        return {name: _dump(each, secrets) for name, each in value.items()}
    return masked(value, secrets)


def _identity(value: Any, secrets: Collection[str]) -> Any:
    """Return an identity unchanged; of a list of hosts, each row masked except the name of the host."""
    if isinstance(value, list):
        return [_identity(each, secrets) for each in value]
    if isinstance(value, dict):
        return masked(value, secrets) | {key: value[key] for key in ("name",) if key in value}
    return value


def _dump(value: Any, secrets: Collection[str]) -> Any:
    """Return a dump in base64 with its bytes masked; any other text is masked as text."""
    if not isinstance(value, str):
        return masked(value, secrets)
    try:
        data = base64.b64decode(value, validate=True)
    except ValueError:
        return masked_text(value, secrets)
    return base64.b64encode(masked_bytes(data, secrets)).decode()
