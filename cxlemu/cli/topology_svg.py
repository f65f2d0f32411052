"""A topology as a picture: switches and all links between them, one panel per fabric; hosts and cards in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from math import ceil, cos, pi, sin
from typing import NamedTuple

from cxlemu.cli.topology_parts import TopologyPart, parts, short
from cxlemu.topology import Switch, Topology
from cxlemu.topology.hierarchies import Dragonfly, Torus, XLink

WIDTH, MARGIN, LINE = 1200.0, 40.0, 18.0
INK, SWITCH, LINK, PALE = "#1b2733", "#2f6f9f", "#8fa3b3", "#5c6b78"
STYLE = f"""text {{ font: 12px sans-serif; fill: {INK}; text-anchor: middle }}
.title {{ font-size: 16px; font-weight: bold; text-anchor: start }} .left {{ text-anchor: start; fill: {PALE} }}
.ends {{ font-size: 10px; fill: {PALE} }} .name {{ fill: white; font-size: 10px }}
rect {{ fill: {SWITCH} }} path {{ stroke: {LINK}; fill: none }}"""


class Spot(NamedTuple):
    """The middle of a switch, and how wide it is."""

    x: float
    y: float
    size: float


class Panel(NamedTuple):
    """Where a part's switches are drawn.

    Attributes:
        places: By switch, from the panel's upper left corner.
    """

    places: dict[str, Spot]
    height: float
    bows: bool = False  # whether long links would run through other switches if they were straight


def topology_svg(topology: Topology) -> str:
    """Draw a topology's own switches and links, if it has any, and its fabrics, as the text of an SVG file."""
    panels = [_drawn(part) for part in parts(topology)]
    top = MARGIN + LINE
    body = [_text(MARGIN, MARGIN, f"{topology.name}: {topology.description}".rstrip(": "), "title")]
    for drawn, height in panels:
        body += [f'<g transform="translate(0 {top:g})">', *drawn, "</g>"]
        top += height
    size = f'width="{WIDTH:g}" height="{top + MARGIN:g}" viewBox="0 0 {WIDTH:g} {top + MARGIN:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
    return "\n".join([head, '<rect width="100%" height="100%" style="fill: white"/>', *body, "</svg>\n"])


def _drawn(part: TopologyPart) -> tuple[list[str], float]:
    """Return a panel's elements and its height."""
    found: list[str] = []
    panel, top = _placed(part), LINE
    for line, style in [(part.title, "title"), *((line, "left") for line in part.captions())]:
        if line:
            found.append(_text(MARGIN, top + LINE, line, style))
            top += LINE
    top += LINE
    places = {name: spot._replace(y=spot.y + top) for name, spot in panel.places.items()}
    for one, other in (link.ends for link in part.links):
        if one in places and other in places:
            found.append(_line(places[one], places[other], panel.bows))
    shows_ends = all(
        places[name].size >= 5 * len(_brief(end, places[name].size)) for name, its in part.ends.items() for end in its
    )
    for switch in part.switches:
        name = short(switch.name) if part.fabric else switch.name
        found += _box(places[switch.name], name, part.ends.get(switch.name, []), shows_ends)
    return found, top + panel.height + 2 * LINE


def _line(start: Spot, end: Spot, bows: bool) -> str:
    across, down = end.x - start.x, end.y - start.y
    bow = 0.15 if bows and max(abs(across), abs(down)) > 3 * start.size else 0.0
    middle = (start.x + end.x) / 2 - bow * down, (start.y + end.y) / 2 - bow * abs(across)
    return f'<path d="M{start.x:.1f} {start.y:.1f} Q{middle[0]:.1f} {middle[1]:.1f} {end.x:.1f} {end.y:.1f}"/>'


def _box(spot: Spot, name: str, ends: Sequence[str], shows_ends: bool) -> Iterator[str]:
    """Draw a switch; a name that has no room is shown when a pointer is over it."""
    x, y, size = spot
    high = min(size, 16.0)
    at = f'x="{x - size / 2:.1f}" y="{y - high / 2:.1f}" width="{size:.1f}" height="{high:.1f}"'
    yield f'<rect {at} rx="2"><title>{escape(" ".join([name, *ends]))}</title></rect>'
    if size >= 6.5 * len(name):
        yield _text(x, y + 4, name, "name")
    for row, end in enumerate(ends if shows_ends else ()):
        yield _text(x, y + high / 2 + 11 * (row + 1), _brief(end, size), "ends")


def _brief(end: str, size: float) -> str:
    """Return ``host0-17`` as ``h0-17`` where there is little room."""
    return end if size >= 6 * len(end) else end.replace("host", "h").replace("card", "c")


def _text(x: float, y: float, text: str, style: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}">{escape(text)}</text>'


# --- where switches are ----------------------------------------------------------------------------------------------


def _placed(part: TopologyPart) -> Panel:
    if isinstance(part.fabric, Torus):
        return _grid(part.fabric, part.switches)
    if isinstance(part.fabric, Dragonfly):
        return _circles(part.fabric, part.switches)
    if isinstance(part.fabric, XLink):
        return _rows(part, across=12)
    return _rows(part)


def _rows(part: TopologyPart, across: int = 4096) -> Panel:
    """Place a row for each level, the highest on top; rows of ``across`` at most."""
    rows = [its[at : at + across] for its in reversed(part.levels()) for at in range(0, len(its), across)]
    places = {}
    for row, switches in enumerate(rows):
        step = (WIDTH - 2 * MARGIN) / len(switches)
        for column, switch in enumerate(switches):
            places[switch.name] = Spot(MARGIN + (column + 0.5) * step, row * 120 + 20, min(step * 0.8, 90))
    return Panel(places, 120 * (len(rows) - 1) + 60)


def _grid(fabric: Torus, switches: Sequence[Switch]) -> Panel:
    """Place a plane of the first two dimensions beside the next, each a little lower than the one before."""
    columns, rows, planes = (*fabric.dimensions, 1, 1)[:3]
    step = min((WIDTH - 2 * MARGIN) / (columns * planes + planes), 110)
    lower = step / 4
    places = {}
    for number, switch in enumerate(switches):
        plane, at = divmod(number, columns * rows)
        row, column = divmod(at, columns)
        x = MARGIN + (plane * (columns + 1) + column + 0.5) * step
        places[switch.name] = Spot(x, row * step + plane * lower + 40, step * 0.55)
    return Panel(places, rows * step + planes * lower + 40, bows=True)


def _circles(fabric: Dragonfly, switches: Sequence[Switch]) -> Panel:
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
    return Panel(places, 2 * (radius + small) + 60)
