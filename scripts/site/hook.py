"""Hooks of mkdocs: pages from outside docs/, links to them, folders in the navigation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
ASSETS = ("site.css", "iframe-worker.js")
TOP = "top/"
# Files of the repository that become pages of the site, below TOP.
CARRIED = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "examples/README.md",
    "examples/hosts.full.yaml",
)
# In Markdown, and in the HTML of a picture.
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))|(?<=\bsrc=\")([^\"]+)|(?<=\bsrcset=\")([^\"]+)")

_CELL = re.compile(r"<t[dh][ >].*?</t[dh]>", re.DOTALL)


def page_of(path: str) -> str:
    """Return the page of a repository file: its path below docs/, or below TOP."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return TOP + (path if path.endswith(".md") else f"{path}.md")


def source_of(page: str) -> str:
    """Return the repository file of a page: the inverse of ``page_of``."""
    if not page.startswith(TOP):
        return f"docs/{page}"
    return next(path for path in CARRIED if page_of(path) == page)


def with_links(text: str, page: str) -> str:
    """Return the text of a page with its relative links pointing to pages of the site.

    Args:
        page: path of the page in the sources of the site.
    """
    source = posixpath.dirname(source_of(page))

    def moved(match: re.Match[str]) -> str:
        link, anchor = match[1] or match[3] or match[4], match[2] or ""
        if ":" in link:
            return match[0]
        target = posixpath.normpath(posixpath.join(source, link))
        return posixpath.relpath(page_of(target), posixpath.dirname(page) or ".") + anchor

    return _LINK.sub(moved, text)


def as_page(path: str, text: str) -> str:
    """Return the page of a carried file: Markdown unchanged, other text as a code block."""
    if path.endswith(".md"):
        return text
    name = posixpath.basename(path)
    return f"# {name}\n\n```{posixpath.splitext(name)[1].lstrip('.') or 'text'}\n{text.rstrip()}\n```\n"


def with_folders(nav: Any, pages: Collection[str]) -> Any:
    """Return the navigation with each ``folder/`` replaced by the pages of the folder, README first.

    Args:
        nav: as in mkdocs.yml: a page, a mapping of titles to navigations, or a list of these.
        pages: all pages of the site; pages that the navigation names elsewhere are not repeated.
    """
    left = set(pages) - set(named(nav))
    return _expand(nav, sorted(left, key=lambda page: (not page.endswith("README.md"), page)))


def named(nav: Any) -> list[str]:
    """Return all pages and folders that a navigation names, in order."""
    if isinstance(nav, str):
        return [nav]
    return [name for each in (nav.values() if isinstance(nav, Mapping) else nav) for name in named(each)]


def _expand(nav: Any, pages: list[str]) -> Any:
    if isinstance(nav, Mapping):
        return {title: _expand(below, pages) for title, below in nav.items()}
    if isinstance(nav, str):
        return nav
    found: list[Any] = []
    for each in nav:
        if isinstance(each, str) and each.endswith("/"):
            found += [page for page in pages if posixpath.dirname(page) == each.rstrip("/")]
        else:
            found.append(_expand(each, pages))
    return found


# Called by mkdocs


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add carried files and assets to the site, then expand folders in the navigation."""
    for path in CARRIED:
        text = as_page(path, (ROOT / path).read_text(encoding="utf-8"))
        files.append(File.generated(config, page_of(path), content=text))
    for name in ASSETS:
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(HERE / name)))
    config.nav = with_folders(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links to pages of the site."""
    return with_links(markdown, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Remove the backslash of ``\\|`` in tables: Python-Markdown keeps it in code."""
    return _CELL.sub(lambda match: match[0].replace("\\|", "|"), html)
