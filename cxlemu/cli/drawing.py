"""A topology in characters: a row of boxes for the hosts, for each level of switches and for the cards."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from cxlemu.topology import Link, Topology
from cxlemu.units import format_bytes

Box = tuple[str, ...]  # its lines of text

# by what leaves a joint: (up, down, left, right)
_JOINTS = {
    (0, 0, 1, 1): "─", (1, 1, 0, 0): "│", (1, 1, 1, 1): "┼",
    (1, 0, 0, 1): "└", (1, 0, 1, 1): "┴", (1, 0, 1, 0): "┘",
    (0, 1, 0, 1): "┌", (0, 1, 1, 1): "┬", (0, 1, 1, 0): "┐",
    (1, 1, 0, 1): "├", (1, 1, 1, 0): "┤",
}  # fmt: skip

ASCII = str.maketrans(dict.fromkeys(_JOINTS.values(), "+") | {"─": "-", "│": "|"})


def drawing(topology: Topology, width: int) -> list[str]:
    """Lines of at most ``width`` characters. Rows that do not fit leave out their middle.

    A bar between two rows says that they are joined; which links join what, the table of links says.
    """
    hosts: list[Box] = [(f"host{host}",) for host in range(topology.host_count)]
    levels: dict[int, list[Box]] = {}
    for switch in sorted(topology.switches, key=lambda switch: switch.level):
        levels.setdefault(switch.level, []).append((switch.name,))
    cards: list[Box] = [
        (f"card{card}", format_bytes(group.capacity_bytes))
        for numbers, group in topology.card_groups()
        for card in numbers
        if group.owner is None
    ]
    rows = [hosts, *levels.values(), *([cards] if cards else [])]
    return stacked(rows, [_labels(topology, upper, row) for upper, row in pairwise(rows)], width)


def stacked(rows: Sequence[Sequence[Box]], labels: Sequence[Sequence[str]], width: int) -> list[str]:
    """Rows of boxes, all of a row joined to all of the next. ``labels``: what is written between two rows."""
    lines: list[str] = []
    above: list[int] = []
    for index, row in enumerate(rows):
        shown = _fitted(row, width)
        middles = _middles(shown, width)
        if above:
            lines += _bar(above, middles, labels[index - 1], width)
        lines += _boxes(shown, middles)
        above = middles
    return lines


def _inner(box: Box) -> int:
    return max(map(len, box)) + 2


def _fitted(row: Sequence[Box], width: int) -> list[Box]:
    """The whole row, or as many boxes from both ends as fit beside an ellipsis."""
    for kept in range(len(row), 1, -1):
        some = list(row) if kept == len(row) else [*row[: kept - 1], ("...",), row[-1]]
        if sum(_inner(box) + 3 for box in some) - 1 <= width:
            return some
    return [tuple(text[: width - 4] for text in row[0])]


def _middles(row: Sequence[Box], width: int) -> list[int]:
    """The columns of the boxes' middles, the row centred."""
    column = width // 2 - (sum(_inner(box) + 3 for box in row) - 1) // 2
    middles = []
    for box in row:
        middles.append(column + (_inner(box) + 2) // 2)
        column += _inner(box) + 3
    return middles


def _boxes(row: Sequence[Box], middles: Sequence[int]) -> list[str]:
    indent = " " * (middles[0] - (_inner(row[0]) + 2) // 2)
    height = max(map(len, row))
    lines = [" ".join("┌" + "─" * _inner(box) + "┐" for box in row)]
    for index in range(height):
        texts = [(box[index] if index < len(box) else "").center(_inner(box)) for box in row]
        lines.append(" ".join(f"│{text}│" for text in texts))
    lines.append(" ".join("└" + "─" * _inner(box) + "┘" for box in row))
    return [indent + line for line in lines]


def _bar(above: Sequence[int], below: Sequence[int], labels: Sequence[str], width: int) -> list[str]:
    """Stems of the upper row, a bar, stems of the lower row; labels beside the stems of the shorter row."""
    first, last = min(*above, *below), max(*above, *below)
    bar = "".join(
        _JOINTS[column in above, column in below, column > first, column < last]
        for column in range(first, last + 1)
        if first < last
    )
    fewer = min(above, below, key=len)
    stems = "".join("│" if column in fewer else " " for column in range(fewer[-1] + 1))
    side = [(f"{stems}  {label}" if len(stems) + 2 + len(label) <= width else stems) for label in labels or [""]]
    joined = [" " * first + bar] if bar else []
    return [*side, *joined] if fewer is above else [*joined, *side]


def _labels(topology: Topology, above: Sequence[Box], below: Sequence[Box]) -> list[str]:
    """The figures of the links between two rows, by name."""
    upper, lower = ({box[0] for box in row} for row in (above, below))

    def joins(link: Link) -> bool:
        sides = [_members(end) for end in link.ends]
        return any(one in upper and other in lower for one, other in (sides, sides[::-1]))

    return [
        f"{link.name}: {link.gbytes_per_s:g} GB/s each way, {link.latency_ns} ns"
        for link in topology.links
        if joins(link)
    ]


def _members(end: str) -> str:
    """A node that stands for the end: all hosts are in one row, with their ranks, and so are all cards."""
    return {"hosts": "host0", "ranks": "host0", "cards": "card0"}.get(end, end)
