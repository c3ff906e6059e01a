"""Secrets that must not be in a bundle, and the bundle itself."""

from __future__ import annotations

import base64
import tarfile
from pathlib import Path

import pytest

from tests.unit.each import for_each
from toolkit.core.files import write_bundle
from toolkit.errors import ToolkitError
from toolkit.protocol.redact import masked, masked_text, secret_values


@for_each(
    ("text", "shown"),
    [
        ("HF_TOKEN=abcdef x", "HF_TOKEN=*** x"),
        ("export aws_secret_access_key='a b c'", "export aws_secret_access_key='***'"),
        ('"api_key": "abc", "lr": "3"', '"api_key": "***", "lr": "3"'),
        ('"private_key": "' + "x" * 3000, '"private_key": "***"'),
        ("DB_PASSWORD = hunter2", "DB_PASSWORD = ***"),
        ("Authorization: Bearer abcdefgh123", "Authorization: Bearer ***"),
        ("postgres://me:pw@db/x", "postgres://me:***@db/x"),
        ("TOKENIZERS_PARALLELISM=false", "TOKENIZERS_PARALLELISM=false"),
        ("KeyError: 'x' at train.py:3", "KeyError: 'x' at train.py:3"),
        ("epoch=3 loss=0.5 lr=1e-3", "epoch=3 loss=0.5 lr=1e-3"),
    ],
)
def test_values_of_secret_names_are_masked(text: str, shown: str) -> None:
    assert masked_text(text) == shown


def test_no_text_takes_long() -> None:
    for piece in ("key", "a-", "key-", "'key': ", "key=", "token ", "://a:"):
        masked_text(piece * (200_000 // len(piece)))


def test_values_are_masked_wherever_they_stand() -> None:
    secrets = secret_values(["s3cr3t-value", "abc", "line one\nline two"])
    assert "abc" not in secrets, "too short to be looked for"
    value = {"a": ["x s3cr3t-value y", 3], "b": {"c": "only line two here"}, "my_token": "zz"}
    shown = {"a": ["x *** y", 3], "b": {"c": "only *** here"}, "my_token": "***"}
    assert masked(value, secrets) == shown


def test_a_secret_does_not_replace_a_part_of_an_id_or_a_name_of_a_host() -> None:
    secrets = secret_values(["gpt2", "gpu1", "10.0.0.1", "running"])
    kept = {
        "host": "gpu1",
        "job": {"id": "20260302-090000-train-gpt2-a1b2", "hosts": [{"name": "gpu1", "address": "10.0.0.1"}]},
        "sockets": [{"peer": "10.0.0.1:12345"}],
        "status": {"state": "running", "lost_host": "gpu1", "restarts": [{"hosts": ["gpu1"]}]},
    }
    assert masked(kept, secrets) == kept
    free = {"command": ["train_gpt2.py"], "hosts": [{"name": "gpu1", "ranks": [{"tail": "on gpu1"}]}]}
    assert masked(free, secrets) == {
        "command": ["train_***.py"],
        "hosts": [{"name": "gpu1", "ranks": [{"tail": "on ***"}]}],
    }


@for_each(
    ("data", "shown"),
    [
        (b"\x80\x04\x8c\x0es3cr3t-value\0\xff", b"\x80\x04\x8c\x0e************\0\xff"),
        (b"\0HF_TOKEN=abcdef\0x", b"\0HF_TOKEN=******\0x"),
        (b"\0postgres://me:pw@db/x\xff", b"\0postgres://me:**@db/x\xff"),
        ("\0pass\xe9wort\0".encode(), b"\0**********\0"),
        (b"\0key=true key=1 \xe9", b"\0key=true key=1 \xe9"),
        (bytes(range(256)), bytes(range(256))),
    ],
)
def test_dumps_are_masked_within_their_base64_and_keep_their_length(data: bytes, shown: bytes) -> None:
    secrets = secret_values(["s3cr3t-value", "pass\xe9wort"])
    # At each place in the groups of three bytes that base64 has.
    for at in range(3):
        dumps = {"fr_0": base64.b64encode(b"-" * at + b"\0" + data).decode()}
        answer = {"ranks": [{"dumps": dumps}], "kept": {"hosts": [{"ranks": [{"dumps": dumps}]}]}}
        wanted = {"fr_0": base64.b64encode(b"-" * at + b"\0" + shown).decode()}
        expected = {"ranks": [{"dumps": wanted}], "kept": {"hosts": [{"ranks": [{"dumps": wanted}]}]}}
        assert masked(answer, secrets) == expected


def test_what_a_host_calls_a_dump_can_be_anything() -> None:
    assert masked({"dumps": {"a": "TOKEN=abc", "b": 3, "c": None}}) == {
        "dumps": {"a": "TOKEN=***", "b": 3, "c": None}
    }
    assert masked({"dumps": ["TOKEN=abc"]}) == {"dumps": ["TOKEN=***"]}


def test_a_bundle_is_whole_and_private_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "new" / "why-x.tar.gz"
    write_bundle(path, {"a.txt": b"1", "hosts/b.json": b"{}"}, 1000.0)
    assert path.stat().st_mode & 0o777 == 0o600
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["why-x/a.txt", "why-x/hosts/b.json"]
        assert all(member.mode == 0o600 for member in tar)
    with pytest.raises(ToolkitError, match="cannot write"):
        write_bundle(path, {"a.txt": b"other"}, 1000.0)
    with tarfile.open(path) as tar:
        read = tar.extractfile("why-x/a.txt")
        assert read is not None and read.read() == b"1"
    for name in ("../../x", "hosts//etc", "hosts/../x.json"):  # made of what a host reports
        with pytest.raises(ToolkitError, match="is not a valid name of a file below"):
            write_bundle(path.with_name("other.tar.gz"), {name: b""}, 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolkitError, match="cannot write"):
        write_bundle(tmp_path / "file" / "x.tar.gz", {}, 0)
    assert [p.name for p in path.parent.iterdir()] == ["why-x.tar.gz"]
