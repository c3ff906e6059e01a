"""Render pages as one HTML file each that needs nothing else: no network, no script; also on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.core.templates import render_template

# How many colours page.css has for curves and bars.
COLOURS = 12


@dataclass(frozen=True)
class Table:
    """Plain cells, which scroll by themselves where they are too wide.

    Args:
        label: what it shows, for those who hear the page.
        text: columns that hold words and stand to the left; the first is the head of its row.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    label: str
    text: Sequence[int] = (0,)


def page(template: str, title: str, when: str, **values: Any) -> str:
    """Return the whole file.

    Args:
        template: which of ``toolkit/html``; all values are escaped there.
        when: date and time, as it is to be shown.
        values: what the template names besides.
    """
    return render_template(f"html/{template}.html.j2", title=title, when=when, **values)


def single_page(part: str, title: str, when: str, **values: Any) -> str:
    """Return a page of one part, which other pages include as well."""
    return page("page", title, when, part=f"html/{part}.html.j2", **values)
