"""A topology as a picture, an SVG file: one panel for the file's own switches and links, one per fabric.

Its own (`_rows`): hosts on top, then the levels of switches, then cards; the figures of links stand between the rows. A
fabric in levels (`_levels`): its top switches first, hosts and cards below those that they are linked to. A torus is a
grid, a dragonfly a circle of groups; their hosts and cards are words.
"""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, cos, pi, sin
from typing import NamedTuple, TypeAlias

from cxlemu.cli.topology_parts import EqualEnds, TopologyPart, parts, short
from cxlemu.topology import Topology
from cxlemu.topology.endpoints import named
from cxlemu.topology.hierarchies import Dragonfly, Torus, XLink
from cxlemu.units import format_bytes

WIDTH, MARGIN, ROW, LINE = 1200.0, 40.0, 110.0, 18.0
SHOWN, SHOWN_OF_MORE = 16, 12  # boxes of a row of hosts or cards; of more, the first ones and the last
BESIDE = 300.0  # room for the figures of links, at the right of rows
LETTER = 6.8  # how wide a letter is
BOX, HIGH = 92.0, 34.0
INK, PALE = "#1b2733", "#5c6b78"
STYLE = f"""text {{ font: 12px sans-serif; fill: {INK}; text-anchor: middle }}
.title {{ font-size: 16px; font-weight: bold; text-anchor: start }} .left {{ text-anchor: start; fill: {PALE} }}
.ends {{ font-size: 10px; fill: {PALE} }} .upright {{ font-size: 10px; fill: {PALE}; text-anchor: start }}
.name {{ fill: white; font-size: 11px }} .small {{ fill: white; font-size: 9px }}
.switch {{ fill: #2f6f9f }} .host {{ fill: #3c7a57 }} .card {{ fill: #a5622a }} .more {{ fill: {PALE} }}
path {{ stroke: #8fa3b3; fill: none }}"""

Place: TypeAlias = tuple[float, float]  # the middle of a box


class NamedBox(NamedTuple):
    kind: str  # switch, host, card or more
    text: tuple[str, ...]
    title: str  # what a pointer over it shows
    switches: tuple[str, ...] = ()  # that it is linked to


class Panel:
    """The lines of a part, above them its boxes and words, from its upper left corner."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.boxes: list[str] = []

    def line(self, begin: Place, end: Place, kind: str = "trunk", bow: float = 0.0) -> None:
        """Draw a link from one middle to another; ``bow`` is how far it bends, as a share of its length."""
        (x, y), (x2, y2) = begin, end
        bend = (x + x2) / 2 - bow * (y2 - y), (y + y2) / 2 - bow * abs(x2 - x)
        path = f"M{x:.1f} {y:.1f} Q{bend[0]:.1f} {bend[1]:.1f} {x2:.1f} {y2:.1f}"
        self.lines.append(f'<path class="{kind}" d="{path}"/>')

    def box(self, place: Place, width: float, high: float, box: NamedBox) -> None:
        (x, y), size = place, f'width="{width:.1f}" height="{high:.1f}" rx="3" class="{box.kind}"'
        corner = f'x="{x - width / 2:.1f}" y="{y - high / 2:.1f}"'
        self.boxes.append(f"<rect {corner} {size}><title>{escape(box.title)}</title></rect>")
        first = y + 4 - 6 * (len(box.text) - 1)
        self.boxes += [
            _text(x, first + 12 * row, line, "small" if row else "name") for row, line in enumerate(box.text)
        ]

    def trunks(self, part: TopologyPart, places: Mapping[str, Place]) -> None:
        for one, other in (link.ends for link in part.links):
            if one in places and other in places:
                (x, y), (x2, y2) = places[one], places[other]
                beside = y == y2 and part.fabric is None  # others may stand between them
                self.line((x, y), (x2, y2), bow=0.15 if beside else 0.0)


def topology_svg(topology: Topology) -> str:
    """Draw a topology's hosts, switches, cards and all links between them, as the text of an SVG file."""
    top = MARGIN + LINE
    body = [_text(MARGIN, MARGIN, topology.title, "title")]
    for part in parts(topology):
        panel, head = Panel(), LINE
        height = _draw(panel, topology, part)
        texts = []
        captions = part.captions() if part.fabric else ()  # else they stand between the rows
        for line, style in [(part.title, "title"), *((line, "left") for line in captions)]:
            if line:
                texts.append(_text(MARGIN, head + LINE, line, style))
                head += LINE
        body += [f'<g transform="translate(0 {top:g})">', *texts]
        body += [f'<g transform="translate(0 {head + LINE:g})">', *panel.lines, *panel.boxes, "</g>", "</g>"]
        top += head + height + 2 * LINE
    size = f'width="{WIDTH:g}" height="{top + MARGIN:g}" viewBox="0 0 {WIDTH:g} {top + MARGIN:g}"'
    head_line = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    return "\n".join([head_line, '<rect width="100%" height="100%" style="fill: white"/>', *body, "</svg>\n"])


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


def _brief(text: str, width: float) -> str:
    """Return ``host0-17`` as ``h0-17`` where there is little room."""
    return text if LETTER * len(text) <= width else text.replace("host", "h").replace("card", "c")


def _draw(panel: Panel, topology: Topology, part: TopologyPart) -> float:
    """Draw a part; return its height."""
    if isinstance(part.fabric, Torus):
        return _apart(panel, part, *_grid(part.fabric))
    if isinstance(part.fabric, Dragonfly):
        return _apart(panel, part, *_circles(part.fabric))
    return (_levels if part.fabric else _rows)(panel, topology, part)


def _boxes(topology: Topology, group: EqualEnds, most: int) -> Iterator[NamedBox]:
    """Yield a box for each host or card of a group, ``most`` at most."""
    kind, numbers = "card" if group.kind == "card" else "host", group.numbers
    if len(numbers) > most and most < 4:
        yield NamedBox(kind, (group.name, f"{len(numbers)} {group.kind}s"), group.name, group.switches)
        return
    left_out = numbers[most - 2 : -1] if len(numbers) > most else range(0)
    for number in numbers:
        if number not in left_out:
            name = f"{group.kind}{number}"
            size = (format_bytes(topology.card(number).capacity_bytes),) if kind == "card" else ()
            yield NamedBox(kind, (name, *size), name, group.switches)
        elif number == left_out[0]:
            yield NamedBox("more", ("...", f"{len(left_out)} more"), named(group.kind, left_out), group.switches)


def _rows(panel: Panel, topology: Topology, part: TopologyPart) -> float:
    def linked(ends: list[EqualEnds]) -> list[NamedBox]:
        all_fit = sum(len(group.numbers) for group in ends) <= SHOWN
        most = SHOWN if all_fit else max(SHOWN_OF_MORE // len(ends), 1)
        return [box for group in ends for box in _boxes(topology, group, most)]

    levels = [
        [NamedBox("switch", (each.name, "one in each host")[: 1 + bool(each.per_host)], each.name) for each in level]
        for level in part.levels()
    ]
    hosts, cards = ([group for group in part.groups if (group.kind == "card") is is_card] for is_card in (False, True))
    rows = [row for row in (linked(hosts), *levels, linked(cards)) if row]
    places: dict[str, Place] = {}
    ends: list[tuple[Place, str]] = []
    for number, row in enumerate(rows):
        step = (WIDTH - 2 * MARGIN - BESIDE) / len(row)
        for column, box in enumerate(row):
            place = MARGIN + (column + 0.5) * step, number * ROW + HIGH / 2
            panel.box(place, min(step * 0.88, BOX * 1.6 if box.kind == "switch" else BOX), HIGH, box)
            if box.kind == "switch":
                places[box.title] = place
            ends += [(place, switch) for switch in box.switches]
    panel.trunks(part, places)
    for place, switch in ends:
        panel.line(place, places[switch], "end")
    for gap, lines in part.labels().items():
        first = gap * ROW + ROW / 2 + HIGH / 2 + 4 - LINE / 2 * (len(lines) - 1)
        beside = WIDTH - MARGIN - BESIDE + LINE
        panel.boxes += [_text(beside, first + LINE * number, line, "left") for number, line in enumerate(lines)]
    return (len(rows) - 1) * ROW + HIGH


def _levels(panel: Panel, topology: Topology, part: TopologyPart) -> float:
    """Place the highest level on top, and below each switch of the last row the hosts and cards that it joins."""
    names = _names(topology, part)
    across = 12 if isinstance(part.fabric, XLink) else 4096
    rows = [
        level[begin : begin + across] for level in reversed(part.levels()) for begin in range(0, len(level), across)
    ]
    places: dict[str, Place] = {}
    y = HIGH / 2
    for row in rows:
        step = (WIDTH - 2 * MARGIN) / len(row)
        deepest = HIGH
        for column, switch in enumerate(row):
            ends = part.ends_of(switch)
            x, width = MARGIN + (column + 0.5) * step, min(step * 0.8, BOX)
            name = names[switch.name]
            room = width >= LETTER * len(name) + 4
            words = " ".join(group.name for group in ends)
            title = f"{name} {words}".strip()
            places[switch.name] = x, y
            panel.box((x, y), width, min(HIGH * 0.7, width), NamedBox("switch", (name,) * room, title))
            if ends and step >= BOX:
                _below(panel, topology, ends, (x, y), step)
                deepest = 0.7 * ROW + HIGH
            elif ends and step >= 11:
                text = words if room else title
                turned = f'class="upright" transform="translate({x - 3:.1f} {y + HIGH / 2:.1f}) rotate(90)"'
                panel.boxes.append(f"<text {turned}>{escape(text)}</text>")
                deepest = max(deepest, HIGH + 5.5 * len(text))
        y += max(deepest + 20, ROW) if row is not rows[-1] else deepest
    panel.trunks(part, places)
    return y - HIGH / 2


def _names(topology: Topology, part: TopologyPart) -> dict[str, str]:
    """Return the switches' names without their fabric's, unless another fabric has a switch of that name."""
    own = {switch.name for switch in part.switches}
    others = {short(switch.name) for switch in topology.expanded.switches if switch.name not in own}
    return {name: name if short(name) in others else short(name) for name in own}


def _below(panel: Panel, topology: Topology, ends: Sequence[EqualEnds], switch: Place, step: float) -> None:
    most = max(int(step / (0.7 * BOX)) // len(ends), 1)
    boxes = [box for group in ends for box in _boxes(topology, group, most)]
    each = min(step * 0.96 / len(boxes), BOX)
    for number, box in enumerate(boxes):
        place = switch[0] + (number - (len(boxes) - 1) / 2) * each, switch[1] + 0.7 * ROW
        panel.line(place, switch, "end")
        panel.box(place, each * 0.9, HIGH, box._replace(text=tuple(_brief(line, each) for line in box.text)))


def _apart(panel: Panel, part: TopologyPart, spots: Sequence[Place], size: float, height: float) -> float:
    """Draw switches that stand apart; what is linked to them is written below, where all have room."""
    places = dict(zip((switch.name for switch in part.switches), spots, strict=True))
    ends = [[group.name for group in part.ends_of(switch)] for switch in part.switches]
    shown = all(size >= 5 * len(_brief(end, size)) for below in ends for end in below)
    for (name, (x, y)), below in zip(places.items(), ends, strict=True):
        label = short(name)
        text = (label,) * (size >= 6.5 * len(label))
        panel.box((x, y), size, min(size, 16.0), NamedBox("switch", text, " ".join([label, *below])))
        if shown:
            panel.boxes += [_text(x, y + 18 + 11 * row, _brief(end, size), "ends") for row, end in enumerate(below)]
    for one, other in (link.ends for link in part.links):
        if one in places and other in places:
            (x, y), (x2, y2) = places[one], places[other]
            far = max(abs(x - x2), abs(y - y2)) > 3 * size  # it would run through other switches
            panel.line((x, y), (x2, y2), bow=0.15 if far and isinstance(part.fabric, Torus) else 0.0)
    return height


def _grid(fabric: Torus) -> tuple[list[Place], float, float]:
    """Place a plane of the first two dimensions beside the next, each a little lower than the one before."""
    columns, rows, planes = (*fabric.dimensions, 1, 1)[:3]
    step = min((WIDTH - 2 * MARGIN) / (columns * planes + planes), 110)
    lower = step / 4
    places = [
        (MARGIN + (plane * (columns + 1) + column + 0.5) * step, row * step + plane * lower + 40)
        for plane in range(planes)
        for row in range(rows)
        for column in range(columns)
    ]
    return places, step * 0.55, rows * step + planes * lower + 40


def _circles(fabric: Dragonfly) -> tuple[list[Place], float, float]:
    """Place groups on a circle, and the routers of each on a small one."""
    radius = min(110.0 + 18 * fabric.groups, 480.0)
    small = min(radius * sin(pi / max(fabric.groups, 3)) * 0.62, 70.0) if fabric.groups > 1 else 70.0
    places = []
    for group in range(fabric.groups):
        outer = 2 * pi * group / fabric.groups
        for inner in (2 * pi * router / fabric.routers + outer for router in range(fabric.routers)):
            x = WIDTH / 2 + radius * sin(outer) + small * sin(inner)
            places.append((x, radius + small + 30 - radius * cos(outer) - small * cos(inner)))
    return places, min(small * pi / ceil(fabric.routers / 2) * 0.6, 36.0), 2 * (radius + small) + 60
