"""Sections of an answer: no content opens another section, in any shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import toolkit
from toolkit.protocol.frames import ROW, FrameError, framed_script, lines_of, read_frames, rows

NONCE = "0123456789abcdef"
END = f"\n{NONCE} end 0\n".encode()
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


def run(shell: str, text: str, *words: bytes, locale: str = "C.UTF-8") -> bytes:
    argv: list[str | bytes] = [shell, *(["sh"] if shell == "busybox" else []), "-c", text, "sh", *words]
    done = subprocess.run(
        argv, capture_output=True, check=True, env={"PATH": "/usr/bin:/bin", "LANG": locale}
    )
    assert done.stderr == b""
    return done.stdout


def frames(**sections: str) -> bytes:
    parts = (
        f"\n{NONCE} {name} {len(text.encode())}\n{text}" for name, text in {**sections, "end": ""}.items()
    )
    return "".join(parts).encode()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_counts_bytes(shell: str) -> None:
    values = ("", "a", "ä€𝄞", "a\n\nb", " b ", "%s\\n$(id)`id`")
    text = framed_script('for v; do n=$((n + 1)); say "v$n" "$v"; done', NONCE)
    said = run(shell, text, *(value.encode() for value in values))
    assert tuple(read_frames(said, NONCE).values()) == values


@pytest.mark.parametrize("shell", SHELLS)
def test_no_content_opens_another_section(shell: str) -> None:
    # Even if its author has seen the nonce.
    forged = f"x\n{NONCE} who 4\nroot\n{NONCE} end 0\n"
    said = run(shell, framed_script('say mark "$1"; say who "$2"', NONCE), forged.encode(), b"alice")
    assert read_frames(said, NONCE) == {"mark": forged, "who": "alice"}


def test_bytes_that_are_no_text_are_replaced() -> None:
    said = run(SHELLS[0], framed_script('say a "$1"; say b "$2"', NONCE), b"\xff\xfe", b"b")
    assert read_frames(said, NONCE) == {"a": "\ufffd\ufffd", "b": "b"}


@pytest.mark.parametrize(
    "banner",
    [
        "Welcome to gpu1!\n\n",
        "*" * 70 + "\n{not json}\n[1]\n",
        "\n",
        "no newline",
        "\n@ who 1\nx",
        f"{NONCE} who",
    ],
)
def test_what_a_login_shell_prints_does_no_harm(banner: str) -> None:
    said = banner.encode() + frames(who="alice") + b"logout\n"
    assert read_frames(said, NONCE) == {"who": "alice"}


def test_an_answer_that_is_cut_short_anywhere_is_an_error() -> None:
    said = frames(who="alice\n1000", docker="{}")
    for cut in range(len(said) - 1):
        with pytest.raises(FrameError):
            read_frames(said[:cut], NONCE)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (frames(who="alice").replace(b"who 5", b"who 4"), "last section is missing"),
        (frames(who="alice").replace(b"who 5", b"who 6"), "last section is missing"),
        (frames(who="alice").replace(b"who 5", b"who 999999999"), "section who is truncated"),
        (frames(who="alice").replace(END, b"") + frames(who="root"), "section who occurs twice"),
        (frames(who="alice").replace(NONCE.encode(), b"f" * 16), "last section is missing"),
        (b"", "last section is missing"),
    ],
)
def test_an_answer_that_is_not_made_of_sections_is_an_error(said: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        read_frames(said, NONCE)


@pytest.mark.parametrize("nonce", ["", "short", "0123456789abcdeF", "0123456789$(id)"])
def test_a_nonce_is_made_of_digits(nonce: str) -> None:
    with pytest.raises(ValueError, match="not a nonce"):
        framed_script("", nonce)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    "value",
    ["", "plain-name_1.x/y", "a b", "=", "a|b", "a\nwho|root", "ä", "'", '"', "\\", "$(id)", "*", "x" * 9999],
)
def test_a_cell_is_one_value(shell: str, value: str) -> None:
    said = run(shell, f'{ROW}row word "$1" end', value.encode()).decode()
    assert list(rows(said)) == [("word", (value, "end"))]


def test_a_cell_that_is_not_of_ours_stays_as_it_is() -> None:
    assert [*rows("word|a|=|=?|=YQ|=YQ==|=/w==\n")] == [("word", ("a", "", "=?", "=YQ", "a", "\ufffd"))]


def test_lines_end_at_newlines_only() -> None:
    assert lines_of("") == [] and lines_of("a\n") == ["a"] and lines_of("a\n\nb") == ["a", "", "b"]
    text = "a\x0bb\x0cc\x1cd\x85e\u2028f\rg"
    assert lines_of(text) == [text]


def test_no_parser_of_sections_splits_at_anything_else() -> None:
    """``splitlines`` knows ten separators, and values of hosts can contain nine of them."""
    others = {
        *("image/build.py", "image/wheelhouse.py"),  # files and programs of this machine
        *("cluster/container_probe.py", "image/layer_reader.py", "plan/context.py"),  # words of an error
    }
    package = Path(toolkit.__file__).parent
    folders = ("cluster", "image", "data", "services", "lifecycle", "checks", "cleanup", "network", "plan")
    parsers = ("bench/smoke_plan.py", "init/filling.py", "init/survey.py", "jobs/plan.py")
    paths = [path for folder in folders for path in sorted((package / folder).glob("*.py"))]
    for path in (*paths, *(package / name for name in parsers)):
        name = str(path.relative_to(package))
        assert name in others or ".splitlines(" not in path.read_text(), name
