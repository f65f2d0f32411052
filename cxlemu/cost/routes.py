"""The routes from every host to every card, before and after each failure."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu.topology import Route, Topology
from cxlemu.topology.failures import FabricChange, Failure


def routes_of(
    topology: Topology, cards: Sequence[int], failures: Sequence[Failure]
) -> tuple[list[Route], NDArray[np.int32], tuple[FabricChange, ...]]:
    """Find all routes before and after failures, their indices (int32; changes + 1, hosts, cards; -1: none) and
    changes."""
    known: dict[tuple[object, ...], tuple[int, Route]] = {}
    tables: list[NDArray[np.int32]] = []
    changes: list[FabricChange] = []
    times = sorted({failure.at_ns for failure in failures})
    for at_ns in [-1, *times]:
        lost = {failure.name for failure in failures if failure.at_ns <= at_ns}
        routes, taken = topology.fabric(lost).table(range(topology.host_count), cards)
        numbers = [known.setdefault(route.key, (len(known), route))[0] for route in routes]
        tables.append(np.array([*numbers, -1], np.int32)[taken])
        if at_ns >= 0:
            now = tuple(failure for failure in failures if failure.at_ns == at_ns)
            changes.append(_change(at_ns, now, tables[-2:], [route for _, route in known.values()], cards))
    return [route for _, route in known.values()], np.stack(tables), tuple(changes)


def _change(
    at_ns: int,
    failures: tuple[Failure, ...],
    tables: Sequence[NDArray[np.int32]],
    routes: Sequence[Route],
    cards: Sequence[int],
) -> FabricChange:
    before, after = tables
    ended = np.argwhere((before >= 0) & (after < 0)).tolist()
    rerouted = np.argwhere((after >= 0) & (before != after))
    one = tuple(rerouted[0]) if len(rerouted) else None
    return FabricChange(
        at_ns,
        failures,
        int((before >= 0).sum()),
        len(rerouted),
        tuple((host, cards[index]) for host, index in ended),
        None if one is None else routes[before[one]],
        None if one is None else routes[after[one]],
        (-1, -1) if one is None else (int(one[0]), cards[int(one[1])]),
    )
