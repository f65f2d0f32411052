"""A torus as a grid and a dragonfly as a circle of groups; what is linked to their switches is written below them."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, cos, pi, sin
from typing import NamedTuple

from cxlemu.cli.topology_parts import TopologyPart, short
from cxlemu.cli.topology_shapes import MARGIN, WIDTH, DrawnBox, DrawnLink, Panel, brief
from cxlemu.topology import Switch
from cxlemu.topology.hierarchies import Dragonfly, Torus


class Spot(NamedTuple):
    """The middle of a switch, and how wide it is."""

    x: float
    y: float
    size: float


def with_words(part: TopologyPart, placed: tuple[dict[str, Spot], float], *, bows: bool = False) -> Panel:
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


def grid(fabric: Torus, switches: Sequence[Switch]) -> tuple[dict[str, Spot], float]:
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
    return places, rows * step + planes * lower + 40


def circles(fabric: Dragonfly, switches: Sequence[Switch]) -> tuple[dict[str, Spot], float]:
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
