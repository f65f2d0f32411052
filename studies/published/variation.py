"""Assumed figures of a topology or an accelerator, a quarter lower and higher: what a table would be if one were wrong.

What is fitted stays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.document import Key
from cxlemu.topology.intervals import value_at
from studies.published.rows import Row

FACTORS = (0.75, 1.25)
UNITS = ("_ns", "_gbytes_per_s")  # bytes are not varied: blocks and granules are powers of two
OF_ACCELERATORS = ("half_rate_tile", "tile_ns", "memory_efficiency")

AS_ASSUMED = "as assumed"
Otherwise = dict[str, dict[str, tuple[float, float]]]  # by assumed figure and row: with less of it, with more


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


def times(key: Key, value: float, factor: float) -> float:
    """Return a figure times a factor; a share is 1 at most."""
    return min(value * factor, 1.0) if str(key[-1]).endswith("_efficiency") else value * factor


def predictions(rows: Iterable[Row]) -> dict[str, float]:
    """Return our values of a table's rows, without those that were put in."""
    return {row.figure: row.ours for row in rows if row.kind != "config"}
