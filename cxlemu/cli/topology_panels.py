"""Where a part of a topology is drawn: its switches, hosts and cards as boxes, its links as lines.

The file's own switches and links (`columns`): hosts on top, then the levels of switches, then cards; the figures of
links stand between the rows. A fabric in levels (`fabric_rows`): its top switches first, hosts and cards below those
that they are linked to. A torus is a grid, a dragonfly a circle of groups; their hosts and cards are words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from cxlemu.cli.topology_grids import circles, grid, with_words
from cxlemu.cli.topology_parts import TopologyPart, figures, short
from cxlemu.cli.topology_shapes import (
    BESIDE,
    BOX,
    HIGH,
    LETTER,
    MARGIN,
    ROW,
    SHOWN,
    SHOWN_OF_MORE,
    WIDTH,
    DrawnBox,
    DrawnLink,
    Note,
    Panel,
    brief,
)
from cxlemu.topology import Switch, Topology
from cxlemu.topology.endpoints import members, named
from cxlemu.topology.hierarchies import Dragonfly, Torus, XLink
from cxlemu.units import format_bytes


class EqualEnds(NamedTuple):
    """Consecutive hosts, ranks or cards that are linked to the same switches."""

    kind: str
    numbers: range
    switches: tuple[str, ...]

    @property
    def name(self) -> str:
        """All of them in a word, such as ``host0-17``."""
        return named(self.kind, self.numbers)


def panel(topology: Topology, part: TopologyPart) -> Panel:
    """Place what a part consists of."""
    groups = _groups(topology, part)
    if part.fabric is None:
        return _columns(topology, part, groups)
    if isinstance(part.fabric, Torus):
        return with_words(part, grid(part.fabric, part.switches), bows=True)
    if isinstance(part.fabric, Dragonfly):
        return with_words(part, circles(part.fabric, part.switches))
    return _fabric_rows(topology, part, groups)


def _groups(topology: Topology, part: TopologyPart) -> list[EqualEnds]:
    """Cut hosts and cards into groups of the same switches."""
    counts = {"host": topology.host_count, "rank": topology.place_count}
    counts["card"] = sum(len(numbers) for numbers, its in topology.card_groups() if its.owner is None)
    names = {switch.name for switch in part.switches}
    joined: dict[str, list[tuple[range, str]]] = {}
    for one, other in (link.ends for link in part.links):
        end, switch = (one, other) if other in names else (other, one)
        some = members(end)
        if some is not None:
            joined.setdefault(some.kind, []).append((some.among(counts[some.kind]), switch))
    found = []
    for kind, its in joined.items():
        cuts = sorted({cut for numbers, _ in its for cut in (numbers.start, numbers.stop)})
        for begin, end_ in pairwise(cuts):
            switches = tuple(switch for numbers, switch in its if begin in numbers)
            if switches:
                found.append(EqualEnds(kind, range(begin, end_), switches))
    return found


# --- hosts, switches, cards ----------------------------------------------------------------------------------------


def _columns(topology: Topology, part: TopologyPart, groups: Sequence[EqualEnds]) -> Panel:
    tops = [group for group in groups if group.kind != "card"]
    cards = [group for group in groups if group.kind == "card"]
    levels = part.levels()
    rows: list[list[DrawnBox]] = [[*_row(topology, tops, 0)]] if tops else []
    for level in levels:
        rows.append([*_switch_row(level, len(rows) * ROW)])
    if cards:
        rows.append([*_row(topology, cards, len(rows) * ROW)])
    at = {node.title.split()[0]: node for row in rows for node in row if node.kind == "switch"}
    wires = [_wire(at[one], at[other]) for one, other in (link.ends for link in part.links) if {one, other} <= {*at}]
    if tops:
        wires += _wires(topology, tops, rows[0], at)
    if cards:
        wires += _wires(topology, cards, rows[-1], at)
    row_of = {name: number for number, row in enumerate(rows) for name in (n.title.split()[0] for n in row)}
    gaps: dict[int, list[str]] = {}
    for link in part.links:
        sides = [row_of.get(end, len(rows) - 1 if end.startswith("card") else 0) for end in link.ends]
        gaps.setdefault(min(sides), []).append(f"{link.name}: {figures(link)}")
    notes = [Note(gap * ROW + ROW / 2, tuple(lines)) for gap, lines in gaps.items()]
    return _down(Panel([node for row in rows for node in row], wires, notes, (len(rows) - 1) * ROW + HIGH))


def _row(topology: Topology, groups: Sequence[EqualEnds], y: float) -> Iterator[DrawnBox]:
    """Place the boxes of all groups in a row."""
    boxes = [box for group in groups for box in _boxes(topology, group, _most(groups))]
    step = (WIDTH - 2 * MARGIN - BESIDE) / len(boxes)
    for column, (kind, text, title) in enumerate(boxes):
        yield DrawnBox(MARGIN + (column + 0.5) * step, y, min(step * 0.88, BOX), HIGH, kind, text, title)


def _most(groups: Sequence[EqualEnds]) -> int:
    """Return how many boxes each group has in a row of its own."""
    all_fit = sum(len(group.numbers) for group in groups) <= SHOWN
    return SHOWN if all_fit else max(SHOWN_OF_MORE // len(groups), 1)


def _boxes(topology: Topology, group: EqualEnds, most: int) -> list[tuple[str, tuple[str, ...], str]]:
    """Return kind, text and title of a group's boxes, ``most`` at most."""
    kind, numbers = "card" if group.kind == "card" else "host", group.numbers

    def one(number: int) -> tuple[str, tuple[str, ...], str]:
        name = named(group.kind, range(number, number + 1))
        size = (format_bytes(topology.card(number).capacity_bytes),) if kind == "card" else ()
        return kind, (name, *size), name

    if len(numbers) <= most:
        return [one(number) for number in numbers]
    if most < 4:
        return [(kind, (group.name, f"{len(numbers)} {group.kind}s"), group.name)]
    left_out = numbers[most - 2 : -1]
    more = ("more", ("...", f"{len(left_out)} more"), named(group.kind, left_out))
    return [*(one(number) for number in numbers[: most - 2]), more, one(numbers[-1])]


def _switch_row(switches: Sequence[Switch], y: float) -> Iterator[DrawnBox]:
    step = (WIDTH - 2 * MARGIN - BESIDE) / len(switches)
    for column, switch in enumerate(switches):
        text = (switch.name, "one in each host") if switch.per_host else (switch.name,)
        x = MARGIN + (column + 0.5) * step
        yield DrawnBox(x, y, min(step * 0.88, 1.6 * BOX), HIGH, "switch", text, switch.name)


def _wires(
    topology: Topology, groups: Sequence[EqualEnds], row: Sequence[DrawnBox], at: dict[str, DrawnBox]
) -> Iterator[DrawnLink]:
    boxes = iter(row)
    for group in groups:
        for _ in _boxes(topology, group, _most(groups)):
            box = next(boxes)
            yield from (_wire(box, at[switch])._replace(kind="end") for switch in group.switches)


def _wire(one: DrawnBox, other: DrawnBox) -> DrawnLink:
    return DrawnLink(one.x, one.y, other.x, other.y, "trunk")


def _down(its: Panel) -> Panel:
    """Move all down by half a box, so that nothing lies above the panel."""
    half = HIGH / 2
    nodes = [node._replace(y=node.y + half) for node in its.nodes]
    wires = [wire._replace(y=wire.y + half, y2=wire.y2 + half) for wire in its.wires]
    return Panel(nodes, wires, [note._replace(y=note.y + half) for note in its.notes], its.height)


# --- fabrics in levels ---------------------------------------------------------------------------------------------


def _fabric_rows(topology: Topology, part: TopologyPart, groups: Sequence[EqualEnds]) -> Panel:
    """Place the highest level on top, and below each switch of the last row the hosts and cards that it joins."""
    names = _names(topology, part)
    across = 12 if isinstance(part.fabric, XLink) else 4096
    rows = [its[at : at + across] for its in reversed(part.levels()) for at in range(0, len(its), across)]
    nodes: list[DrawnBox] = []
    wires: list[DrawnLink] = []
    y = 0.0
    for row in rows:
        step = (WIDTH - 2 * MARGIN) / len(row)
        deepest = HIGH
        for column, switch in enumerate(row):
            its = [group for group in groups if group.switches == (switch.name,)]
            x, width = MARGIN + (column + 0.5) * step, min(step * 0.8, BOX)
            name = names[switch.name]
            room = width >= LETTER * len(name) + 4
            words = " ".join(group.name for group in its)
            title = f"{name} {words}".strip()
            nodes.append(DrawnBox(x, y, width, min(HIGH * 0.7, width), "switch", (name,) * room, title))
            if not its:
                continue
            if step < BOX:
                if step >= 11:
                    text = words if room else title
                    nodes.append(DrawnBox(x, y + HIGH / 2, 0, 0, "end", (text,), text, upright=True))
                    deepest = max(deepest, HIGH + 5.5 * len(text))
                continue
            below = [*_row_below(topology, its, x, step, y + 0.7 * ROW)]
            wires += [DrawnLink(box.x, box.y, x, y, "end") for box in below]
            nodes += below
            deepest = 0.7 * ROW + HIGH
        y += max(deepest + 20, ROW) if row is not rows[-1] else deepest
    at = {switch.name: node for switch, node in zip(_flat(rows), _switches(nodes), strict=True)}
    wires += [_wire(at[one], at[other]) for one, other in (link.ends for link in part.links) if {one, other} <= {*at}]
    return _down(Panel(nodes, wires, [], y))


def _names(topology: Topology, part: TopologyPart) -> dict[str, str]:
    """Return the switches' names without their fabric's, unless another fabric has a switch of that name."""
    own = {switch.name for switch in part.switches}
    others = {short(switch.name) for switch in topology.expanded.switches if switch.name not in own}
    return {name: name if short(name) in others else short(name) for name in own}


def _row_below(topology: Topology, groups: Sequence[EqualEnds], x: float, step: float, y: float) -> Iterator[DrawnBox]:
    most = max(int(step / (0.7 * BOX)) // len(groups), 1)
    boxes = [box for group in groups for box in _boxes(topology, group, most)]
    each = min(step * 0.96 / len(boxes), BOX)
    for number, (kind, text, title) in enumerate(boxes):
        its = tuple(brief(line, each) for line in text)
        yield DrawnBox(x + (number - (len(boxes) - 1) / 2) * each, y, each * 0.9, HIGH, kind, its, title)


def _flat(rows: Sequence[Sequence[Switch]]) -> list[Switch]:
    return [switch for row in rows for switch in row]


def _switches(nodes: Sequence[DrawnBox]) -> list[DrawnBox]:
    return [node for node in nodes if node.kind == "switch"]
