"""A page as one HTML file that needs nothing else: no network, no script, light and dark, also on a phone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from toolkit.core.templates import package_text

# How many colours page.css has for curves and bars.
COLOURS = 12


def page(title: str, when: str, parts: Iterable[str], sections: Iterable[tuple[str, str]] = ()) -> str:
    """Return the whole file.

    Args:
        when: date and time, as it is to be shown.
        parts: HTML, in order; empty ones are left out.
        sections: id and name of those that a list of links at the head leads to.
    """
    head = html.escape(title)
    links = "".join(f"<a href='#{name}'>{html.escape(text)}</a> " for name, text in sections)
    whole = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{head}</title>",
        "<meta name=viewport content='width=device-width,initial-scale=1'>",
        f"<style>{package_text('html/page.css')}</style>",
        "<a class=skip href='#main'>To the content</a>" if links else "",
        f"<header><h1>{head}</h1><p class=soft>{html.escape(when)}</p></header>",
        f"<nav aria-label=Sections>{links}</nav>" if links else "",
        "<main id=main>",
        *parts,
        "</main>",
    ]
    return "\n".join(part for part in whole if part) + "\n"


def section(name: str, title: str, *parts: str) -> str:
    """Return a part of the page that can be linked to; empty when all of it is."""
    inner = "\n".join(part for part in parts if part)
    return f"<section id={name}><h2>{html.escape(title)}</h2>\n{inner}</section>" if inner else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str, text: Sequence[int] = (0,)) -> str:
    """Return a table of plain cells, which scrolls by itself, also by keyboard, where it is too wide.

    Args:
        label: what it shows, for those who hear the page.
        text: columns that hold words and stand to the left; the first is the head of its row.
    """
    look = [" class=text" if number in text else "" for number in range(len(head))]
    names = "".join(f"<th scope=col{look[n]}>{html.escape(name)}" for n, name in enumerate(head))
    lines = []
    for row in rows:
        cells = [f"<td{look[number]}>{html.escape(cell)}" for number, cell in enumerate(row)]
        cells[0] = f"<th scope=row{look[0]}>{html.escape(row[0])}"
        lines.append("<tr>" + "".join(cells))
    body = "\n".join(lines)
    return scroll(f"<table><tr>{names}\n{body}</table>", label)


def scroll(inner: str, label: str) -> str:
    """Return what may be wider than a phone in a box that scrolls, also by keyboard."""
    return f"<div class=scroll tabindex=0 role=region aria-label='{html.escape(label)}'>{inner}</div>"


def folded(title: str, *parts: str) -> str:
    """Return what only some want to see, behind a line that opens it."""
    return f"<details><summary>{html.escape(title)}</summary>\n{''.join(parts)}</details>"


def cards(rows: Iterable[tuple[str, str]]) -> str:
    """Return name and value as tiles."""
    tiles = "".join(f"<div><b>{html.escape(value)}</b>{html.escape(name)}</div>" for name, value in rows)
    return f"<div class=cards>{tiles}</div>"
