"""Render each page as one self-contained HTML file without network access and scripts, also for phones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.core.templates import render_template

# The number of colors for curves and bars in page.css.
COLOURS = 12


@dataclass(frozen=True)
class Table:
    """A table of plain cells, which scrolls if it is too wide.

    Args:
        label: description for screen readers.
        text: columns of words, which are aligned left; the first is the head of its row.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str
    text: Sequence[int] = (0,)


def page(template: str, title: str, when: str, **values: Any) -> str:
    """Return the complete file.

    Args:
        template: name of a template in ``toolkit/html``, which escapes all values.
        when: date and time of the page, as text.
        values: other variables of the template.
    """
    return render_template(f"html/{template}.html.j2", title=title, when=when, **values)


def single_page(part: str, title: str, when: str, **values: Any) -> str:
    """Return a page of one part, which other pages can include too."""
    return page("page", title, when, part=f"html/{part}.html.j2", **values)
