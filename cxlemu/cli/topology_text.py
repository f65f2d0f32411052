"""A topology in characters: a row of boxes for the hosts, for each level of switches and for the cards.

A generated fabric is drawn as its top switches over the groups that they join, with one box per group.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from cxlemu.cli.topology_parts import TopologyPart, parts, short
from cxlemu.topology import Switch, Topology
from cxlemu.topology.endpoints import named
from cxlemu.topology.hierarchies import AnyHierarchy, Clos, Dragonfly, LeafSpine, Torus
from cxlemu.topology.metrics import FabricMetrics, fabric_metrics
from cxlemu.units import counted, format_bytes

Box = tuple[str, ...]  # its lines of text

# by what leaves a joint: (up, down, left, right)
_JOINTS = {
    (0, 0, 1, 1): "─", (1, 1, 0, 0): "│", (1, 1, 1, 1): "┼",
    (1, 0, 0, 1): "└", (1, 0, 1, 1): "┴", (1, 0, 1, 0): "┘",
    (0, 1, 0, 1): "┌", (0, 1, 1, 1): "┬", (0, 1, 1, 0): "┐",
    (1, 1, 0, 1): "├", (1, 1, 1, 0): "┤",
}  # fmt: skip

ASCII = str.maketrans(dict.fromkeys(_JOINTS.values(), "+") | {"─": "-", "│": "|"})


def topology_text(topology: Topology, width: int) -> Iterator[str]:
    """Draw a topology in lines of at most ``width`` characters; rows that do not fit leave out their middle."""
    for number, part in enumerate(parts(topology)):
        if number:
            yield ""
        if part.fabric is None:
            yield from _drawn(topology, part, width)
        else:
            yield part.title
            yield from _fabric_drawn(topology, part, part.fabric, width)


def _drawn(topology: Topology, part: TopologyPart, width: int) -> list[str]:
    """Draw a part without a fabric.

    A bar between two rows says that they are joined; which links join what, the table of links says.
    """
    cards: list[Box] = [
        (f"card{card}", format_bytes(group.capacity_bytes))
        for numbers, group in topology.card_groups()
        for card in numbers
        if group.owner is None
    ]
    levels: list[list[Box]] = [[(switch.name,) for switch in level] for level in part.levels()]
    rows: list[list[Box]] = [
        [(f"host{host}",) for host in range(topology.host_count)],
        *levels,
        *([cards] if cards else []),
    ]
    return _stacked(rows, part.labels(), width)


# --- fabrics ----------------------------------------------------------------------------------------------------------


SwitchGroup = tuple[Box, Sequence[Switch]]  # its names, and what hangs together


def _fabric_drawn(topology: Topology, part: TopologyPart, fabric: AnyHierarchy, width: int) -> Iterator[str]:
    top, groups = _top_and_groups(part, fabric)
    row: list[Box] = [(*names, *_ends(part, switches)) for names, switches in groups]
    yield from _stacked([[(short(switch.name),) for switch in top], row] if top else [row], {}, width)
    for line in (*part.captions(), *_offered(fabric_metrics(topology, fabric))):
        yield f"  {line}"


def _top_and_groups(part: TopologyPart, fabric: AnyHierarchy) -> tuple[Sequence[Switch], list[SwitchGroup]]:
    """Return the switches that join everything below, if it is a tree, and below them what hangs together."""
    switches = part.switches
    if isinstance(fabric, LeafSpine | Clos):
        *below, top = part.levels()
        count = fabric.leaves if isinstance(fabric, LeafSpine) else fabric.levels[-1].down
        blocks = zip(*(_cut(level, count) for level in reversed(below)), strict=True)
        return top, [(tuple(map(_names, block)), [*chain(*block)]) for block in blocks]
    if isinstance(fabric, Dragonfly):
        words, count = f"g{{}}: {counted(fabric.routers, 'router')}", fabric.groups
    elif isinstance(fabric, Torus):
        *flat, count = fabric.dimensions
        plane = f"{' x '.join(map(str, flat))} switches" if flat else "a switch"
        words = f"{'xyz'[len(flat)]}={{}}: {plane}"
    else:
        return [], [((short(switch.name),), [switch]) for switch in switches]
    return [], [((words.format(index),), block) for index, block in enumerate(_cut(switches, count))]


def _cut(switches: Sequence[Switch], count: int) -> list[Sequence[Switch]]:
    return [switches[k * len(switches) // count : (k + 1) * len(switches) // count] for k in range(count)]


def _offered(metrics: FabricMetrics) -> Iterator[str]:
    yield ", ".join(_plural(count, what) for what, count in metrics.switches.items())
    if metrics.switches_between_hosts_mean is not None and metrics.oversubscription is not None:
        where = "in each, " if metrics.kind == "xlink" and metrics.switches["domain"] > 1 else ""
        mean, most = metrics.switches_between_hosts_mean, metrics.switches_between_hosts_max
        yield f"{where}from host to host over {mean:.3g} switches on average, {most} at most"
        bisection = f"{metrics.bisection_gbytes_per_s:g} GB/s, oversubscribed {metrics.oversubscription:.3g} : 1"
        yield f"{where}bisection {bisection}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun if count == 1 else {'leaf': 'leaves', 'switch': 'switches'}.get(noun, noun + 's')}"


def _ends(part: TopologyPart, switches: Sequence[Switch]) -> Iterator[str]:
    """Yield the hosts and the cards of some switches, which are numbered in a row."""
    groups = [group for switch in switches for group in part.ends_of(switch)]
    for kind in ("host", "card"):
        if numbers := [number for group in groups if group.kind == kind for number in group.numbers]:
            yield named(kind, range(numbers[0], numbers[-1] + 1))


def _names(switches: Sequence[Switch]) -> str:
    first, last = short(switches[0].name), short(switches[-1].name)
    return first if len(switches) == 1 else f"{first}-{re.findall(r'[0-9]+$', last)[0]}"


# --- boxes ------------------------------------------------------------------------------------------------------------


def _stacked(rows: Sequence[Sequence[Box]], labels: Mapping[int, Sequence[str]], width: int) -> list[str]:
    """Draw rows of boxes, all of a row joined to all of the next; ``labels`` are written below the row of a number."""
    lines: list[str] = []
    above: list[int] = []
    for index, row in enumerate(rows):
        shown = _fitted(row, width)
        middles = _middles(shown, width)
        if above:
            lines += _bar(above, middles, labels.get(index - 1, ()), width)
        lines += _boxes(shown, middles)
        above = middles
    return lines


def _inner(box: Box) -> int:
    return max(map(len, box)) + 2


def _fitted(row: Sequence[Box], width: int) -> list[Box]:
    """Return the whole row, or as many boxes from both ends as fit beside an ellipsis."""
    for kept in range(len(row), 1, -1):
        some = list(row) if kept == len(row) else [*row[: kept - 1], ("...",), row[-1]]
        if sum(_inner(box) + 3 for box in some) - 1 <= width:
            return some
    return [tuple(text[: width - 4] for text in row[0])]


def _middles(row: Sequence[Box], width: int) -> list[int]:
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
    """Draw stems of the upper row, a bar, stems of the lower row; labels beside the stems of the shorter row."""
    first, last = min(*above, *below), max(*above, *below)
    bar = "".join(
        _JOINTS[column in above, column in below, column > first, column < last]
        for column in range(first, last + 1)
        if first < last
    )
    fewer = min(above, below, key=len)
    stems = "".join("│" if column in fewer else " " for column in range(fewer[-1] + 1))
    side = [
        next((line for told in (label, label.partition(",")[0]) if len(line := f"{stems}  {told}") <= width), stems)
        for label in labels or [""]
    ]
    joined = [" " * first + bar] if bar else []
    return [*side, *joined] if fewer is above else [*joined, *side]
