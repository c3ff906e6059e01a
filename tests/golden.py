"""Golden files: expected text under tests/golden, rewritten when TOOLKIT_GOLDEN=1."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).with_name("golden")


def check_golden(path: str, text: str) -> None:
    """Fail when ``text`` differs from the golden file at ``path`` (relative to tests/golden).

    With TOOLKIT_GOLDEN=1 in the environment the file is written instead, for review with git diff.
    """
    file = ROOT / path
    if os.environ.get("TOOLKIT_GOLDEN") == "1":
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8", newline="\n")
        return
    assert file.exists(), f"{file} is missing; run the tests once with TOOLKIT_GOLDEN=1"
    assert file.read_text(encoding="utf-8") == text, f"{file} differs; TOOLKIT_GOLDEN=1 rewrites it"


def without_style(page: str) -> str:
    """Return a page without its style sheet, which is in a file of its own."""
    head, _, rest = page.partition("<style>")
    style, end, body = rest.partition("</style>")
    assert len(style) > 1000 and end, "a page brings its style along"
    return head + body
