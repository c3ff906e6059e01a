"""The documentation as a site: it builds strictly, all pages can be reached, nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[2]
HOOK: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "site" / "hook.py"))
# What a browser fetches by itself: a link that somebody may click is none of it.
FETCHED = re.compile(
    r"<(?:script|link|img|iframe|source|video|object)\b[^>]*?(?:src|href|data)=\"?(?:\w+:)?//[^>]*>"
)
IN_STYLES = re.compile(r"(?:url\(|@import)\s*[\"']?(?:\w+:)?//[^)]*")


def build(target: Path, *more: str) -> subprocess.CompletedProcess[str]:
    # Not --quiet: warnings that are not told are not counted either.
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target), *more]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True)


def test_the_site_builds_strictly_and_names_nothing_elsewhere(tmp_path: Path) -> None:
    done = build(tmp_path / "site")
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 60
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert FETCHED.findall(text) == [], page
        # The theme fetches the program that draws these from elsewhere.
        assert 'class="mermaid"' not in text, page
        assert "\\|" not in re.sub(r"<pre>.*?</pre>", "", text, flags=re.DOTALL), page
    for style in (tmp_path / "site").rglob("*.css"):
        assert IN_STYLES.findall(style.read_text(encoding="utf-8")) == [], style
    # Search without a server: the index as a script, and what stands in for the worker.
    assert (tmp_path / "site" / "search" / "search_index.js").is_file()
    assert 'src="assets/iframe-worker.js"' in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")


def test_the_site_is_not_built_with_an_orphan_or_a_dead_link(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    (tmp_path / "docs" / "alone.md").write_text(
        "# Alone\n\n[x](gone.md) [y](how-to/images.md#gone) [z](../GONE.md)\n"
    )
    config = tmp_path / "mkdocs.yml"
    config.write_text(
        f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: {tmp_path}/docs\nhooks: [{ROOT}/scripts/site/hook.py]\n"
    )
    done = build(tmp_path / "site", "--config-file", str(config))
    assert done.returncode != 0
    for words in ("alone.md", "gone.md'", "how-to/images.md#gone'", "top/GONE.md'"):
        assert words in done.stderr


@pytest.mark.parametrize(
    ("text", "fetched"),
    [
        ('<script src="https://x.example/a.js">', True),
        ('<link rel="stylesheet" href="//x.example/a.css">', True),
        ("<img alt=x src=http://x.example/a.png>", True),
        ('<a href="https://x.example/">', False),
        ('<script src="../assets/a.js">', False),
    ],
)
def test_what_a_browser_fetches(text: str, fetched: bool) -> None:
    assert bool(FETCHED.search(text)) == fetched


def test_every_page_is_in_the_navigation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "1")
    config = load_config(str(ROOT / "mkdocs.yml"), hooks=[])
    docs = [str(path.relative_to(ROOT / "docs")) for path in sorted((ROOT / "docs").rglob("*.md"))]
    pages = [*docs, *(HOOK["page_of"](path) for path in HOOK["CARRIED"])]
    named = HOOK["named"](HOOK["with_folders"](config.nav, pages))
    assert sorted(named) == sorted(pages)


def test_nested_lists_are_nested_in_the_site_too() -> None:
    """Python-Markdown takes four blanks for a level, git hosts any that reach the text above."""
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "README.md"):
        prose = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        assert re.findall(r"^ {1,3}(?:[-*+]|\d+\.) .*", prose, re.MULTILINE) == [], path


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        ("glossary.md", "[x](network.md#a)", "[x](network.md#a)"),
        ("adr/0001.md", "[x](../network.md)", "[x](../network.md)"),
        ("index.md", "[x](../SECURITY.md)", "[x](top/SECURITY.md)"),
        (
            "reference/hosts-yaml.md",
            "[x](../../examples/hosts.full.yaml)",
            "[x](../top/examples/hosts.full.yaml.md)",
        ),
        ("top/README.md", "[x](docs/internals/adr/README.md#y)", "[x](../internals/adr/README.md#y)"),
        ("top/README.md", "[x](LICENSE) [y](#here)", "[x](LICENSE.md) [y](#here)"),
        ("top/examples/README.md", "[x](../docs/reference/porting.md)", "[x](../../reference/porting.md)"),
        ("glossary.md", "[x](https://example.com/docs/y.md) [y](faults-history.jsonl)", None),
    ],
)
def test_links_lead_to_where_the_site_has_a_file(page: str, text: str, expected: str | None) -> None:
    assert HOOK["with_links"](text, page) == (expected or text)


def test_a_folder_in_the_navigation_is_its_pages_that_are_named_nowhere_else() -> None:
    nav = ["a.md", {"B": ["b/", {"C": "b/c.md"}]}]
    pages = ["a.md", "b/a.md", "b/c.md", "b/README.md", "b/d/e.md"]
    assert HOOK["with_folders"](nav, pages) == ["a.md", {"B": ["b/README.md", "b/a.md", {"C": "b/c.md"}]}]
    assert nav == ["a.md", {"B": ["b/", {"C": "b/c.md"}]}]


def test_what_is_no_markdown_becomes_a_block_of_code() -> None:
    assert HOOK["as_page"]("x/a.yaml", "b: c\n") == "# a.yaml\n\n```yaml\nb: c\n```\n"
    assert HOOK["as_page"]("LICENSE", "words\n") == "# LICENSE\n\n```text\nwords\n```\n"
    assert HOOK["as_page"]("a.md", "# A\n") == "# A\n"
