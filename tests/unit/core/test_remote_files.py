"""Answers of send_files are checked, and so is that only what was requested comes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.each import for_each
from toolkit.core.remote_files import (
    Missing,
    NoJob,
    RemoteFile,
    Requested,
    SentFile,
    decode_listed,
    decode_sent,
    leads_out,
)
from toolkit.errors import ToolkitError
from toolkit.protocol.files import MOST_BYTES

FOLDER = "/run/toolkit/jobs/one/code"


@for_each(
    ("pattern", "names", "others"),
    [
        ("out", ["out", "out/a", "out/.hidden/b"], ["output", "a/out", ".git/config", ""]),
        ("./a/../out/", ["out/x"], ["a", "a/out"]),
        (".", ["a", ".git/config"], []),
        ("*.pt", ["a.pt", "a.pt/below"], ["a/b.pt", ".a.pt", "a.ptx"]),
        ("*", ["a", "a/b"], [".git/hooks/pre-commit"]),
        (".*", [".git/config"], ["a"]),
        ("b[1].pt", ["b[1].pt", "b1.pt"], ["b[2].pt"]),
        ("**/*.pt", ["a.pt", "x/y/a.pt"], ["a.txt", ".x/a.pt", "x/.a.pt"]),
        ("x/**", ["x/y/z"], ["y"]),
        ("**/a/**/b", ["a/b", "x/a/y/z/b/below"], ["b/a", "x/b"]),
        ("../record.json", ["record.json"], ["../record.json", "one/record.json"]),
        ("/data/*/best.pt", ["run1/best.pt"], ["data/run1/best.pt", "run1/other", "x"]),
        ("/data/run2", ["run2/other"], ["other", "data/run2"]),
        ("/data/runs*/x", ["runs1/x"], ["run/x"]),
        ("/", ["etc/passwd"], []),
        (f"{FOLDER}/out", ["out/a"], ["a"]),
        ("/run/toolkit/jobs/one/logs", ["logs/rank-0.log"], ["rank-0.log"]),
        ("/run/toolkit/jobs/one/output.log*", ["output.log.1"], ["one/output.log"]),
    ],
)
def test_only_requested_names(pattern: str, names: list[str], others: list[str]) -> None:
    requested = Requested(FOLDER, [pattern])
    assert [name for name in names if name not in requested] == []
    assert [name for name in others if name in requested] == []


def test_one_of_several_patterns_is_enough() -> None:
    requested = Requested(FOLDER, ["a", "*.pt"])
    assert "a/x" in requested and "b.pt" in requested and "c" not in requested
    assert "x" not in Requested(FOLDER, [])


FILE = {"path": "/x/a", "name": "a", "size": 1, "mtime": 2, "mode": 0o600, "inode": 9}
LINK = {"path": "/x/l", "name": "l", "link": "a"}
MISSING = {
    "missing": "*.pt",
    "there": False,
    "place": "/x",
    "called": "",
    "names": ["a", "\udcff"],
    "more": 3,
}


def test_what_give_lists_and_sends() -> None:
    def decoded(value: Any) -> object:
        return decode_listed(json.dumps(value), "gpu1")

    assert decoded(FILE) == RemoteFile("/x/a", "a", 1, 2, 0o600, None, 9)
    assert decoded(LINK) == RemoteFile("/x/l", "l", link="a")
    assert decoded({"nothing": True}) == NoJob()
    assert decoded(MISSING) == Missing("*.pt", False, "/x", "", ("a", "\udcff"), 3)
    assert decoded({**FILE, "name": "a\nb\x1b\udcff", "newer": 1}) == RemoteFile(
        "/x/a", "a\nb\x1b\udcff", 1, 2, 0o600, None, 9
    )
    assert decode_sent(b'{"size": 3, "mtime": -5}', "gpu1") == SentFile(3, -5)
    assert decode_sent(b'{"refused": "no"}', "gpu1") == SentFile(refused="no")


@for_each(
    ("value", "field"),
    [
        *[({**FILE, "size": size}, "size: not") for size in (-1, 2**53 + 1, 1.0, "1", True, None)],
        *[({**FILE, "mtime": mtime}, "mtime: not") for mtime in (2**63, -(2**63), 1.5)],
        *[({**FILE, "mode": mode}, "mode: not") for mode in (-1, 0o4755, "755")],
        *[({**FILE, "name": name}, "name: ") for name in ("", "x" * 4097, "é" * 2049, "\ud800", "a\0b", 1)],
        ({key: FILE[key] for key in FILE if key != "mtime"}, "mtime: is missing"),
        ({**LINK, "link": ""}, "link: does not match the pattern"),
        ({"nothing": 1}, "nothing: not one of True: 1"),
        ({**MISSING, "names": "ab"}, "names: not a list: 'ab'"),
        ({**MISSING, "names": ["a", "\ud800"]}, "names[1]: contains the surrogate"),
        ({**MISSING, "more": -1}, "more: not in the range"),
        ([], "not an object"),
        ("x" * MOST_BYTES, "but the limit is 65536"),
    ],
)
def test_answers_that_are_not_valid(value: Any, field: str) -> None:
    with pytest.raises(ToolkitError) as caught:
        decode_listed(json.dumps(value), "gpu1")
    assert caught.value.host == "gpu1" and field in caught.value.what and len(caught.value.what) < 200


@pytest.mark.parametrize("line", [b"", b"{", b"[" * 60_000, b"\xff", b'{"size": 1, "size": 1}', b"9" * 5000])
def test_lines_that_are_no_json_object(line: bytes) -> None:
    with pytest.raises(ToolkitError, match=r"the host sent an invalid reply about result files"):
        decode_sent(line, "gpu1")


@for_each(
    ("name", "target", "out"),
    [
        ("a/l", "b", False),
        ("a/l", "../b", False),
        ("a/l", "../../b", True),
        ("a/l", "../../a/b", True),
        ("l", "/etc", True),
        ("l", ".", True),
        ("l", "..b", False),
    ],
)
def test_links_that_lead_out_by_the_words_alone(name: str, target: str, out: bool) -> None:
    assert leads_out(name, target) == out
