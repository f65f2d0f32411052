"""What a picture of a topology consists of: boxes, lines and words, and how large they are."""

from __future__ import annotations

from typing import NamedTuple

WIDTH, MARGIN, ROW = 1200.0, 40.0, 110.0
SHOWN, SHOWN_OF_MORE = 16, 12  # boxes of a row of hosts or cards; of more, the first ones and the last
BESIDE = 300.0  # room for the figures of links, at the right of rows
LETTER = 6.8  # how wide a letter is
BOX, HIGH = 92.0, 34.0


class DrawnBox(NamedTuple):
    """A box: its middle, its size, its lines of text, and what a pointer over it shows."""

    x: float
    y: float
    width: float
    high: float
    kind: str  # switch, host, card or more
    text: tuple[str, ...]
    title: str
    upright: bool = False  # the text stands below the box, from top to bottom


class DrawnLink(NamedTuple):
    """A line from one middle to another; ``bow`` is how far it bends, as a share of its length."""

    x: float
    y: float
    x2: float
    y2: float
    kind: str  # trunk, between switches; or end
    bow: float = 0.0


class Note(NamedTuple):
    """Words beside the lines between two rows; y is their middle."""

    y: float
    lines: tuple[str, ...]


class Panel(NamedTuple):
    """All of a part, from its upper left corner."""

    nodes: list[DrawnBox]
    wires: list[DrawnLink]
    notes: list[Note]
    height: float


def brief(text: str, width: float) -> str:
    """Return ``host0-17`` as ``h0-17`` where there is little room."""
    return text if LETTER * len(text) <= width else text.replace("host", "h").replace("card", "c")
