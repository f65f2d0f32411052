"""Assumed figures of a topology, one at a time by a quarter: what a table would be if one of them were wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cxlemu.topology import Topology
from cxlemu.topology.document import Key

FACTORS = (0.75, 1.25)
UNITS = ("_ns", "_gbytes_per_s")  # bytes are not varied: blocks and granules are powers of two


def assumed(topology: Topology) -> Iterator[tuple[Key, str]]:
    """Yield the key and the name of each figure, a time or a rate, that the topology's file assumes.

    Args:
        topology: A topology as loaded. Figures of 0, and those that its bill has, are left out.
    """
    for key, standing in topology.provenance.items():
        if standing.kind == "assumed" and str(key[-1]).endswith(UNITS) and _at(topology, key):
            yield key, ".".join(str(part) for part in key)


def varied(topology: Topology, key: Key, factor: float) -> Topology:
    """Return the topology with one figure times a factor; times stay whole nanoseconds.

    Args:
        topology: The topology.
        key: The figure's key in its file.
        factor: How many times as much.
    """
    value = _at(topology, key)
    changed: Topology = _with(topology, key, round(value * factor) if str(key[-1]).endswith("_ns") else value * factor)
    return changed


def _at(node: Any, key: Key) -> Any:
    for part in key:
        node = node[part] if isinstance(part, int) else getattr(node, part, None)
        if node is None:
            return None
    return node


def _with(node: Any, key: Key, value: Any) -> Any:
    if not key:
        return value
    first, rest = key[0], key[1:]
    if isinstance(first, int):
        return (*node[:first], _with(node[first], rest, value), *node[first + 1 :])
    return node.model_copy(update={first: _with(getattr(node, first), rest, value)})
