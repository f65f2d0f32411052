"""Assumed figures of a topology, one at a time by a quarter: what a table would be if one of them were wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.document import Key
from cxlemu.topology.intervals import changed, value_at
from studies.published.rows import Row

FACTORS = (0.75, 1.25)
UNITS = ("_ns", "_gbytes_per_s")  # bytes are not varied: blocks and granules are powers of two
OF_ACCELERATORS = ("half_rate_tile", "tile_ns", "memory_efficiency")

AS_ASSUMED = "as assumed"
Otherwise = dict[str, dict[str, tuple[float, float]]]  # by assumed figure and row: with less of it, with more

Described = TypeVar("Described", Topology, Accelerator)


def assumed(described: Topology | Accelerator) -> Iterator[tuple[Key, str]]:
    """Yield the key and the name of each figure, a time or a rate, that a file assumes."""
    for key, standing in described.provenance.items():
        last = str(key[-1])
        if (
            standing.kind == "assumed"
            and (last.endswith(UNITS) or last in OF_ACCELERATORS)
            and value_at(described, key)
        ):
            yield key, ".".join(str(part) for part in key)


def varied(described: Described, key: Key, factor: float) -> Described:
    """Return a topology or an accelerator with one figure times a factor.

    Times and sizes stay whole, shares at most 1.
    """
    value, last = value_at(described, key), str(key[-1])
    more = round(value * factor) if isinstance(value, int) or last.endswith("_ns") else value * factor
    return changed(described, {key: min(more, 1.0) if last.endswith("_efficiency") else more})


def predictions(rows: Iterable[Row]) -> dict[str, float]:
    """Return our values of a table's rows, without those that were put in."""
    return {row.figure: row.ours for row in rows if row.kind != "config"}


def beside(less: dict[str, float], more: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return each row's values with less and with more of an assumed figure."""
    return {figure: (less[figure], more[figure]) for figure in less}
