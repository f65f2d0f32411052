"""Mermaid's sequence diagrams as SVG, so that a page needs no script to draw them: participants and arrows, no more."""

from __future__ import annotations

import html
import re
from typing import NamedTuple

COLUMN, ROW, TOP, CHARACTER = 184, 36, 44, 6.4  # px
STYLE = ".sequence text{fill:currentColor;stroke:var(--md-default-bg-color);stroke-width:4px;paint-order:stroke}"
_BLOCK = re.compile(r"(?ms)^```mermaid\n(.*?)^```\n")
_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_ARROW = re.compile(r"(\w+)(-?->>)(\w+): (.+)")


class Arrow(NamedTuple):
    """Who says what to whom; a reply is dashed."""

    start: str
    end: str
    text: str
    reply: bool


def drawn(text: str) -> str:
    """Draw the diagrams of a page of Markdown."""
    return _BLOCK.sub(lambda block: picture(block[1]) + "\n", text)


def picture(source: str) -> str:
    """Draw a diagram.

    Raises:
        ValueError: It has a line that is neither a participant nor an arrow.
    """
    kind, *lines = (line.strip() for line in source.strip().splitlines())
    if kind != "sequenceDiagram":
        raise ValueError(f"a Mermaid diagram is a {kind}: only sequenceDiagram is drawn on the site")
    names: dict[str, str] = {}
    arrows = []
    for line in lines:
        if match := _PARTICIPANT.fullmatch(line):
            names[match[1]] = match[2]
        elif match := _ARROW.fullmatch(line):
            arrows.append(Arrow(match[1], match[3], match[4], match[2] == "-->>"))
        else:
            raise ValueError(f"a sequence diagram has the line {line!r}: a participant or an arrow is drawn, no more")
    return _svg(names, arrows)


def _svg(names: dict[str, str], arrows: list[Arrow]) -> str:
    at = {name: COLUMN * number + COLUMN // 2 for number, name in enumerate(names)}
    width = round(max(COLUMN * len(names), *(_right_end(arrow, at) for arrow in arrows if not _leftward(arrow, at))))
    height = TOP + ROW * len(arrows) + 16
    shapes = []
    for name, label in names.items():
        x = at[name]
        shapes.append(f'<line x1="{x}" y1="{TOP - 8}" x2="{x}" y2="{height}" stroke="currentColor" opacity=".3"/>')
        shapes.append(
            f'<rect x="{x - 88}" y="4" width="176" height="32" rx="4" fill="currentColor" fill-opacity=".08" '
            f'stroke="currentColor"/><text x="{x}" y="25" text-anchor="middle">{html.escape(label)}</text>'
        )
    for row, arrow in enumerate(arrows):
        shapes += _arrow(arrow, at, TOP + ROW * row + 26)
    head = '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    return (
        f'<div class="scrolls"><svg class="sequence" role="img" viewBox="0 0 {width} {height}" width="{width}" '
        f'fill="none" font-size="13"><style>{STYLE}</style>'
        f'<defs>{head}<path d="M0 0L8 4L0 8z" fill="currentColor"/></marker></defs>{"".join(shapes)}</svg></div>\n'
    )


def _right_end(arrow: Arrow, at: dict[str, int]) -> float:
    if arrow.start == arrow.end:
        return at[arrow.start] + 40 + CHARACTER * len(arrow.text)
    return max(at[arrow.start], at[arrow.end])


def _leftward(arrow: Arrow, at: dict[str, int]) -> bool:
    """Whether what a participant tells itself stands on its left: where it fits there, right of the middle."""
    fits = at[arrow.start] > 40 + CHARACTER * len(arrow.text)
    return arrow.start == arrow.end and at[arrow.start] > COLUMN * len(at) / 2 and fits


def _arrow(arrow: Arrow, at: dict[str, int], y: int) -> list[str]:
    x1, x2 = at[arrow.start], at[arrow.end]
    dashed = ' stroke-dasharray="5 4"' if arrow.reply else ""
    style = f'stroke="currentColor"{dashed} marker-end="url(#head)"'
    text = html.escape(arrow.text)
    if x1 == x2:
        side, anchor = (-1, "end") if _leftward(arrow, at) else (1, "start")
        path = f"M{x1} {y - 10}h{24 * side}v14h{-22 * side}"
        return [
            f'<path d="{path}" {style}/>',
            f'<text x="{x1 + 32 * side}" y="{y + 2}" text-anchor="{anchor}">{text}</text>',
        ]
    label = f'<text x="{(x1 + x2) / 2}" y="{y - 6}" text-anchor="middle">{text}</text>'
    return [f'<line x1="{x1}" y1="{y}" x2="{x2}" y2="{y}" {style}/>', label]
