"""Draws recorded commands as an animated terminal: an SVG with CSS animation, without scripts or fonts."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

ADVANCE, LINE, SIZE = 8.0, 18, 13.3
COLUMNS, ROWS = 100, 26
MARGIN, BAR = 14, 30
# The picture rests on its last line before it begins again.
REST_S = 3.0

_LIGHT = {
    "page": "#ffffff",
    "edge": "#d0d7de",
    "text": "#1f2328",
    "dim": "#656d76",
    "good": "#116329",
    "bad": "#cf222e",
    "note": "#0550ae",
}
_DARK = {
    "page": "#0d1117",
    "edge": "#30363d",
    "text": "#e6edf3",
    "dim": "#8d96a0",
    "good": "#56d364",
    "bad": "#ff7b72",
    "note": "#79c0ff",
}
THEMES = {"light": _LIGHT, "dark": _DARK}


@dataclass(frozen=True)
class Shown:
    """A line of the picture: when it appears, and for a prompt how long it is typed."""

    text: str
    at: float
    typed_s: float = 0.0


def _spans(text: str) -> list[tuple[str, str]]:
    """Return the parts of a line, each with its color."""
    if text.startswith("$ "):
        return [("good", "$ "), ("text", text[2:])]
    if text.startswith("# ") or text.strip() == "…":
        return [("dim", text)]
    if text.lstrip().startswith("fix:"):
        return [("good", text)]
    if match := re.match(r"\[toolkit\] ", text):
        return [("note", match[0]), ("bad" if "killed" in text else "note", text[match.end() :])]
    if match := re.match(r"\[\S+ \d+\] ", text):
        return [("dim", match[0]), ("text", text[match.end() :])]
    if match := re.match(r" *(?:done|ok) ", text):
        return [("good", match[0]), ("text", text[match.end() :])]
    return [("text", text)]


def _line(row: int, text: str) -> str:
    """Return the elements of one line; each part has its width, because fonts differ in it."""
    column, parts = 0, []
    for color, words in _spans(text):
        start = len(words) - len(words.lstrip(" "))
        bare = words.strip(" ")
        if bare:
            x, width = (column + start) * ADVANCE, len(bare) * ADVANCE
            shown = html.escape(bare, quote=False).replace(" ", "\u00a0")
            parts.append(
                f'<text class="{color}" x="{x:g}" y="{(row + 1) * LINE - 5}" textLength="{width:g}">'
                f"{shown}</text>"
            )
        column += len(words)
    return "".join(parts)


def draw(lines: list[Shown], title: str, theme: str) -> str:
    """Return the picture of lines that appear one after the other and scroll."""
    colors = THEMES[theme]
    total = lines[-1].at + REST_S
    width, height = int(COLUMNS * ADVANCE) + 2 * MARGIN, ROWS * LINE + BAR + MARGIN
    style, body = [], []

    def percent(seconds: float) -> str:
        return f"{100 * seconds / total:.2f}%"

    moments: dict[float, list[int]] = {}
    for number, line in enumerate(lines):
        moments.setdefault(round(line.at, 2), []).append(number)
    for name, (at, rows) in enumerate(moments.items()):
        elements = "".join(_line(row, lines[row].text) for row in rows)
        if at > 0:
            style.append(f"@keyframes a{name}{{0%{{opacity:0}}{percent(at)}{{opacity:1}}to{{opacity:1}}}}")
            style.append(f".a{name}{{animation:a{name} {total:g}s step-end infinite}}")
        body.append(f'<g class="a{name}">{elements}</g>')
    # A cover over each prompt moves away letter by letter.
    for row, line in enumerate(lines):
        if line.typed_s:
            letters = len(line.text) - 2
            style.append(
                f"@keyframes t{row}{{0%,{percent(line.at)}{{transform:none}}"
                f"{percent(line.at + line.typed_s)},to{{transform:translateX({letters * ADVANCE:g}px)}}}}"
                f".t{row}{{animation:t{row} {total:g}s steps({letters}) infinite}}"
            )
            body.append(
                f'<g class="cut"><rect class="cover t{row}" x="{2 * ADVANCE:g}" y="{row * LINE}"'
                f' width="{letters * ADVANCE:g}" height="{LINE}"/></g>'
            )
    scrolled = [(at, max(rows) + 1 - ROWS) for at, rows in moments.items() if max(rows) + 1 > ROWS]
    steps = "".join(f"{percent(at)}{{transform:translateY(-{rows * LINE}px)}}" for at, rows in scrolled)
    last = max(0, len(lines) - ROWS) * LINE
    style.append(f"@keyframes scroll{{0%{{transform:none}}{steps}to{{transform:translateY(-{last}px)}}}}")
    style.append(f".scroll{{transform:translateY(-{last}px);animation:scroll {total:g}s step-end infinite}}")
    # Without animation the picture is its last screen.
    style.append(".cover{transform:translateX(2000px)}")
    style.append("@media (prefers-reduced-motion:reduce){*{animation:none!important}}")
    page, edge = colors["page"], colors["edge"]
    fills = "".join(f".{name}{{fill:{color}}}" for name, color in colors.items())
    font = 'ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace'
    dots = "".join(f'<circle cx="{x}" cy="16" r="5" fill="{edge}"/>' for x in (18, 35, 52))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    frame = f'x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size}>
<title>{html.escape(title)}</title>
<style>
text{{font:{SIZE}px {font};white-space:pre}}{fills}.cover{{fill:{page}}}
{chr(10).join(style)}
</style>
<clipPath id="window"><rect width="{COLUMNS * ADVANCE:g}" height="{ROWS * LINE}"/></clipPath>
<rect {frame} fill="{page}" stroke="{edge}"/>
{dots}
<text class="dim" x="{width / 2:g}" y="20" text-anchor="middle">{html.escape(title)}</text>
<g transform="translate({MARGIN} {BAR})" clip-path="url(#window)">
<g class="scroll">
{chr(10).join(body)}
</g>
</g>
</svg>
"""
