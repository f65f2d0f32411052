"""What a stream pays by itself, in every space, and the engines that copy and fold for it."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cxlemu.cost.resources import Resource, bytes_per_ms
from cxlemu.plan.instructions import Records
from cxlemu.topology import Costs, Topology

COST_FIELDS = (
    *("call_ns", "copy_ns", "flush_line_ns", "invalidate_line_ns", "fence_ns"),
    *("doorbell_ring_ns", "doorbell_arrival_ns", "doorbell_observe_ns", "doorbell_scan_ns", "doorbell_data_ns"),
    *("local_copy_gbytes_per_s", "reduce_gbytes_per_s"),
)
ENGINES = ("to", "from", "both", "fold")
COSTS_DTYPE = np.dtype(
    [(name, "<i8") for name in (*COST_FIELDS, "coherent", "coherence_ns", *(f"first_{way}" for way in ENGINES))]
)


def costs_of(
    topology: Topology, cards: Sequence[int], ranks: int, resources: list[Resource]
) -> tuple[Records, NDArray[np.int32]]:
    """Build the table of costs, one general row and one per space that differs, and each card's row number (int32)."""
    general = "the pool" if any(space.kind == "cxl_pool" for space in topology.spaces) else "peers"
    kinds: list[tuple[Costs, bool, int, str]] = [(topology.costs, False, 0, general)]
    of_card = np.zeros(len(cards), np.int32)
    for space in topology.spaces:
        if not space.on_cards or (space.costs is None and not space.coherent):
            continue
        chosen = np.isin(cards, topology.cards_of(space)) & (of_card == 0)
        of_card[chosen] = len(kinds)
        kinds.append((space.costs or topology.costs, space.coherent, space.coherence_ns or 0, space.name))
    rows, engines = [], {}
    for cost, coherent, coherence_ns, name in kinds:
        if id(cost) not in engines:  # spaces that share costs share engines
            engines[id(cost)] = _engines(cost, ranks, name, resources)
        values = cost.model_dump()
        row = [bytes_per_ms(values[n]) if n.endswith("_per_s") else values[n] or 0 for n in COST_FIELDS]
        rows.append((*row, coherent, coherence_ns, *engines[id(cost)]))
    return np.array(rows, COSTS_DTYPE), of_card


def _engines(cost: Costs, ranks: int, name: str, resources: list[Resource]) -> tuple[int, ...]:
    """Append every rank's copy engines to ``resources``; return the index at which each kind begins."""
    firsts = []
    for words, rate in (
        (f"to {name}", cost.to_pool_gbytes_per_s),
        (f"from {name}", cost.from_pool_gbytes_per_s),
        ("both ways" if name == "the pool" else f"{name} both ways", cost.both_gbytes_per_s),
    ):
        firsts.append(len(resources))
        resources += [Resource(f"rank{rank} {words}", "engine", rate) for rank in range(ranks)]
    if cost.fold_from_pool_gbytes_per_s is None:
        return (*firsts, firsts[1])
    firsts.append(len(resources))
    rate = cost.fold_from_pool_gbytes_per_s
    resources += [Resource(f"rank{rank} folding from {name}", "engine", rate) for rank in range(ranks)]
    return tuple(firsts)
