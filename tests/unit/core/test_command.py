"""Types of texts of hosts that are passed on to other hosts."""

from __future__ import annotations

import base64

import pytest

from tests.unit.cluster_world import public_key
from toolkit.core.command import Kind, Ref
from toolkit.errors import ToolkitError

KEY = public_key("gpu2")
DATA = KEY.partition(" ")[2]


def encoded(raw: bytes) -> str:
    return f"ssh-ed25519 {base64.b64encode(raw).decode()}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.PUBLIC_KEY, KEY),
        (Kind.PUBLIC_KEY, "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGPKSUTyz1HwHReFVvD5obVsALAgJRNarH4TRpNePnAS"),
        (Kind.CONTAINER_ID, "0123456789abcdef" * 4),
        (Kind.ADDRESS, "10.77.0.2"),
        (Kind.ADDRESS, "fd00::1"),
        (Kind.ENDED_JOBS, "over:"),
        (Kind.ENDED_JOBS, "over: /20261120-211300-digits-a1b2//b c/"),
        (Kind.REPORT, "any\ntext"),
    ],
)
def test_values(kind: Kind, text: str) -> None:
    assert kind.parse(f" {text}\n") == text and kind.accepts(text)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.PUBLIC_KEY, f"{KEY}\n{KEY}"),
        (Kind.PUBLIC_KEY, f"{KEY}\rx"),
        (Kind.PUBLIC_KEY, f"{KEY} comment"),
        (Kind.PUBLIC_KEY, f'command="sh" {KEY}'),
        (Kind.PUBLIC_KEY, f"ssh-rsa {DATA}"),
        (Kind.PUBLIC_KEY, DATA),
        (Kind.PUBLIC_KEY, f"ssh-ed25519  {DATA}"),
        (Kind.PUBLIC_KEY, f"ssh-ed25519 {DATA}AAAA"),
        (Kind.PUBLIC_KEY, f"ssh-ed25519 {DATA[:-4]}"),
        (Kind.PUBLIC_KEY, f"ssh-ed25519 {DATA[:-4]}é==="),
        (Kind.PUBLIC_KEY, encoded(b"\0\0\0\x0bssh-ed25518\0\0\0\x20" + bytes(32))),
        (Kind.PUBLIC_KEY, encoded(b"\0\0\0\x0bssh-ed25519\0\0\0\x1f" + bytes(32))),
        (Kind.PUBLIC_KEY, encoded(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(33))),
        (Kind.CONTAINER_ID, "c" * 63),
        (Kind.CONTAINER_ID, "C" * 64),
        (Kind.CONTAINER_ID, f"{'c' * 64}\n{'c' * 64}"),
        (Kind.CONTAINER_ID, "sha256:" + "c" * 64),
        (Kind.ADDRESS, "10.77.0.2 gpu1"),
        (Kind.ADDRESS, "10.77.0.256"),
        (Kind.ADDRESS, "10.77.0.2/24"),
        (Kind.ADDRESS, "fe80::1%a b"),
        (Kind.ENDED_JOBS, "over: /a/\n/b/"),
        (Kind.ENDED_JOBS, "over: a"),
        (Kind.ENDED_JOBS, "/a/"),
    ],
)
def test_what_is_no_value(kind: Kind, text: str) -> None:
    assert not kind.accepts(text)
    with pytest.raises(ValueError, match=r"expected .*, found ") as caught:
        kind.parse(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.REPORT])
def test_nothing_is_no_value_and_what_is_long_is_cut(kind: Kind) -> None:
    assert not kind.accepts("")
    with pytest.raises(ValueError) as caught:
        kind.parse("x" * 10_000)
    assert len(str(caught.value)) < 150


def test_a_reference_is_never_more_than_one_line() -> None:
    """Whatever the type has let through: in a list of keys a second line is another host's key."""
    with pytest.raises(ToolkitError, match="the host of gpu2 contains a control character"):
        Ref("gpu2", "host", "gpu2 ", "\n").resolve({("gpu2", "host"): f"{KEY}\ngpu3 {KEY}"})
    with pytest.raises(ToolkitError):
        Ref("gpu2", "host", otherwise=f"{KEY}\ngpu3 {KEY}").resolve({})
