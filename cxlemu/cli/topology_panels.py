"""Where a part of a topology is drawn: its switches, hosts and cards as boxes, its links as lines.

The file's own switches and links (`_columns`): hosts on top, then the levels of switches, then cards; the figures of
links stand between the rows. A fabric in levels (`_fabric_rows`): its top switches first, hosts and cards below those
that they are linked to. A torus is a grid, a dragonfly a circle of groups; their hosts and cards are words.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import ceil, cos, pi, sin
from typing import NamedTuple, TypeAlias

from cxlemu.cli.topology_parts import TopologyPart, figures, short
from cxlemu.topology import Switch, Topology
from cxlemu.topology.endpoints import members, named
from cxlemu.topology.hierarchies import Dragonfly, Torus, XLink
from cxlemu.units import format_bytes

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


LinkedBox: TypeAlias = tuple[str, tuple[str, ...], str, tuple[str, ...]]  # kind, text, title, switches


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
    groups = _groups(topology, part)
    if part.fabric is None:
        return _columns(topology, part, groups)
    if isinstance(part.fabric, Torus):
        return _with_words(part, _grid(part.fabric, part.switches), bows=True)
    if isinstance(part.fabric, Dragonfly):
        return _with_words(part, _circles(part.fabric, part.switches))
    return _fabric_rows(topology, part, groups)


def _groups(topology: Topology, part: TopologyPart) -> list[EqualEnds]:
    """Cut hosts and cards into groups of the same switches."""
    counts = {"host": topology.host_count, "rank": topology.place_count}
    counts["card"] = sum(len(numbers) for numbers, numbers_of in topology.card_groups() if numbers_of.owner is None)
    names = {switch.name for switch in part.switches}
    joined: dict[str, list[tuple[range, str]]] = {}
    for one, other in (link.ends for link in part.links):
        end, switch = (one, other) if other in names else (other, one)
        some = members(end)
        if some is not None:
            joined.setdefault(some.kind, []).append((some.among(counts[some.kind]), switch))
    equal_ends = []
    for kind, pairs in joined.items():
        cuts = sorted({cut for numbers, _ in pairs for cut in (numbers.start, numbers.stop)})
        for begin, end_ in pairwise(cuts):
            switches = tuple(switch for numbers, switch in pairs if begin in numbers)
            if switches:
                equal_ends.append(EqualEnds(kind, range(begin, end_), switches))
    return equal_ends


# --- hosts, switches, cards ----------------------------------------------------------------------------------------


def _columns(topology: Topology, part: TopologyPart, groups: Sequence[EqualEnds]) -> Panel:
    tops = [group for group in groups if group.kind != "card"]
    cards = [group for group in groups if group.kind == "card"]
    switches = [([*map(_switch, level)], 1.6 * BOX) for level in part.levels()]
    filled = [(_linked(topology, tops), BOX), *switches, (_linked(topology, cards), BOX)]
    rows = [
        [*_row(boxes, number * ROW + HIGH / 2, widest)]
        for number, (boxes, widest) in enumerate(column for column in filled if column[0])
    ]
    nodes = [node for row in rows for node, _ in row]
    at = {node.title: node for node in nodes if node.kind == "switch"}
    wires = _trunks(part, at)
    wires += [_wire(box, at[name], "end") for row in rows for box, names in row for name in names]
    row_of = {node.title.split()[0]: number for number, row in enumerate(rows) for node, _ in row}
    gaps: dict[int, list[str]] = {}
    for link in part.links:
        sides = [row_of.get(end, len(rows) - 1 if end.startswith("card") else 0) for end in link.ends]
        gaps.setdefault(min(sides), []).append(f"{link.name}: {figures(link)}")
    notes = [Note(gap * ROW + ROW / 2 + HIGH / 2, tuple(lines)) for gap, lines in gaps.items()]
    return Panel(nodes, wires, notes, (len(rows) - 1) * ROW + HIGH)


def _row(boxes: Sequence[LinkedBox], y: float, widest: float) -> Iterator[tuple[DrawnBox, tuple[str, ...]]]:
    step = (WIDTH - 2 * MARGIN - BESIDE) / len(boxes)
    for column, (kind, text, title, switches) in enumerate(boxes):
        x = MARGIN + (column + 0.5) * step
        yield DrawnBox(x, y, min(step * 0.88, widest), HIGH, kind, text, title), switches


def _linked(topology: Topology, groups: Sequence[EqualEnds]) -> list[LinkedBox]:
    all_fit = sum(len(group.numbers) for group in groups) <= SHOWN
    most = SHOWN if all_fit else max(SHOWN_OF_MORE // len(groups), 1)
    return [(*box, group.switches) for group in groups for box in _boxes(topology, group, most)]


def _switch(switch: Switch) -> LinkedBox:
    return "switch", (switch.name, "one in each host") if switch.per_host else (switch.name,), switch.name, ()


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


def _trunks(part: TopologyPart, at: Mapping[str, DrawnBox]) -> list[DrawnLink]:
    return [_wire(at[one], at[other]) for one, other in (link.ends for link in part.links) if {one, other} <= {*at}]


def _wire(drawn_box: DrawnBox, other: DrawnBox, kind: str = "trunk") -> DrawnLink:
    return DrawnLink(drawn_box.x, drawn_box.y, other.x, other.y, kind)


# --- fabrics in levels ---------------------------------------------------------------------------------------------


def _fabric_rows(topology: Topology, part: TopologyPart, groups: Sequence[EqualEnds]) -> Panel:
    """Place the highest level on top, and below each switch of the last row the hosts and cards that it joins."""
    names = _names(topology, part)
    across = 12 if isinstance(part.fabric, XLink) else 4096
    rows = [
        level[begin : begin + across] for level in reversed(part.levels()) for begin in range(0, len(level), across)
    ]
    nodes: list[DrawnBox] = []
    wires: list[DrawnLink] = []
    boxes: dict[str, DrawnBox] = {}
    y = HIGH / 2
    for row in rows:
        step = (WIDTH - 2 * MARGIN) / len(row)
        deepest = HIGH
        for column, switch in enumerate(row):
            equal_ends = [group for group in groups if group.switches == (switch.name,)]
            x, width = MARGIN + (column + 0.5) * step, min(step * 0.8, BOX)
            name = names[switch.name]
            room = width >= LETTER * len(name) + 4
            words = " ".join(group.name for group in equal_ends)
            title = f"{name} {words}".strip()
            boxes[switch.name] = DrawnBox(x, y, width, min(HIGH * 0.7, width), "switch", (name,) * room, title)
            nodes.append(boxes[switch.name])
            if not equal_ends:
                continue
            if step < BOX:
                if step >= 11:
                    text = words if room else title
                    nodes.append(DrawnBox(x, y + HIGH / 2, 0, 0, "end", (text,), text, upright=True))
                    deepest = max(deepest, HIGH + 5.5 * len(text))
                continue
            below = [*_row_below(topology, equal_ends, x, step, y + 0.7 * ROW)]
            wires += [_wire(box, boxes[switch.name], "end") for box in below]
            nodes += below
            deepest = 0.7 * ROW + HIGH
        y += max(deepest + 20, ROW) if row is not rows[-1] else deepest
    return Panel(nodes, wires + _trunks(part, boxes), [], y - HIGH / 2)


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
        briefs = tuple(brief(line, each) for line in text)
        yield DrawnBox(x + (number - (len(boxes) - 1) / 2) * each, y, each * 0.9, HIGH, kind, briefs, title)


# --- a torus and a dragonfly -----------------------------------------------------------------------------------------


class Spot(NamedTuple):
    """The middle of a switch, and how wide it is."""

    x: float
    y: float
    size: float


def _with_words(part: TopologyPart, placed: tuple[dict[str, Spot], float], *, bows: bool = False) -> Panel:
    """Make the panel of switches that stand apart; what is linked to them is written below, where all have room."""
    places, height = placed
    ends = {name: [brief(end, spot.size) for end in part.ends.get(name, [])] for name, spot in places.items()}
    shown = all(places[name].size >= 5 * len(end) for name, its in ends.items() for end in its)
    nodes = []
    for switch in part.switches:
        x, y, size = places[switch.name]
        name = short(switch.name)
        text = (name,) if size >= 6.5 * len(name) else ()
        title = " ".join([name, *part.ends.get(switch.name, [])])
        nodes.append(DrawnBox(x, y, size, min(size, 16.0), "switch", text, title))
        if shown:
            nodes += [
                DrawnBox(x, y + 14 + 11 * row, 0, 0, "end", (end,), end) for row, end in enumerate(ends[switch.name])
            ]
    wires = []
    for one, other in (link.ends for link in part.links):
        if one in places and other in places:
            a, b = places[one], places[other]
            far = max(abs(a.x - b.x), abs(a.y - b.y)) > 3 * a.size  # it would run through other switches
            wires.append(DrawnLink(a.x, a.y, b.x, b.y, "trunk", 0.15 if bows and far else 0.0))
    return Panel(nodes, wires, [], height)


def _grid(fabric: Torus, switches: Sequence[Switch]) -> tuple[dict[str, Spot], float]:
    """Place a plane of the first two dimensions beside the next, each a little lower than the one before."""
    columns, rows, planes = (*fabric.dimensions, 1, 1)[:3]
    step = min((WIDTH - 2 * MARGIN) / (columns * planes + planes), 110)
    lower = step / 4
    places = {}
    for number, switch in enumerate(switches):
        plane, index = divmod(number, columns * rows)
        row, column = divmod(index, columns)
        x = MARGIN + (plane * (columns + 1) + column + 0.5) * step
        places[switch.name] = Spot(x, row * step + plane * lower + 40, step * 0.55)
    return places, rows * step + planes * lower + 40


def _circles(fabric: Dragonfly, switches: Sequence[Switch]) -> tuple[dict[str, Spot], float]:
    """Place groups on a circle, and the routers of each on a small one."""
    radius = min(110.0 + 18 * fabric.groups, 480.0)
    small = min(radius * sin(pi / max(fabric.groups, 3)) * 0.62, 70.0) if fabric.groups > 1 else 70.0
    size = min(small * pi / ceil(fabric.routers / 2) * 0.6, 36.0)
    places = {}
    for number, switch in enumerate(switches):
        group, router = divmod(number, fabric.routers)
        outer = 2 * pi * group / fabric.groups
        inner = 2 * pi * router / fabric.routers + outer
        x = WIDTH / 2 + radius * sin(outer) + small * sin(inner)
        y = radius + small + 30 - radius * cos(outer) - small * cos(inner)
        places[switch.name] = Spot(x, y, size)
    return places, 2 * (radius + small) + 60
