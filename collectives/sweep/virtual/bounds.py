"""The least time that a collective takes on a pool, by the bytes that must move: to compare plans with.

For N ranks and blocks of m bytes in private buffers, a rank writes and reads at least, and all ranks together move
through the cards:

    collective      a rank writes   a rank reads     all write    all read
    all_gather      m               (N - 1) m        N m          N (N - 1) m
    all_reduce      m               2 (N - 1) m / N  N m          2 (N - 1) m
    all_to_all      (N - 1) m       (N - 1) m        N (N - 1) m  N (N - 1) m
    broadcast       m               m                m            (N - 1) m
    gather          m               (N - 1) m        (N - 1) m    (N - 1) m
    reduce          m               m                (N - 1) m    (N - 1) m
    reduce_scatter  (N - 1) m       (N - 1) m        N (N - 1) m  N (N - 1) m
    scatter         (N - 1) m       m                (N - 1) m    (N - 1) m

The busiest rank counts. A card's port is full duplex, and its memory carries reads and writes together. Starting
copies, doorbells and latencies are left out, and so is what is waited for: a plan of small blocks is far above its
bound. all_reduce is that of direct reads in two shots, which reads least.

A second bound adds what every plan spends beside its bytes: the call's launch and the first copy's start, and from a
write to its read, in which no rank's link moves any of these bytes, a doorbell, the read's start and its latency. Where
the cards bound a call, they may move other bytes meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from cxlemu.plan import Call
from cxlemu.topology import Space, Topology


class BlocksMoved(NamedTuple):
    """What must move, in blocks, given the number of ranks."""

    written: Callable[[int], float]  # by the rank that writes most
    read: Callable[[int], float]  # by the rank that reads most
    all_written: Callable[[int], float]  # by all ranks
    all_read: Callable[[int], float]


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return ranks - 1.0


def _in_pairs(ranks: int) -> float:
    return float(ranks * (ranks - 1))


_IN_PAIRS = BlocksMoved(_others, _others, _in_pairs, _in_pairs)
MOVES = {
    "all_gather": BlocksMoved(_one, _others, float, _in_pairs),
    "all_reduce": BlocksMoved(_one, lambda ranks: 2 * (ranks - 1) / ranks, float, lambda ranks: 2.0 * (ranks - 1)),
    "all_to_all": _IN_PAIRS,
    "broadcast": BlocksMoved(_one, _one, _one, _others),
    "gather": BlocksMoved(_one, _others, _others, _others),
    "reduce": BlocksMoved(_one, _one, _others, _others),
    "reduce_scatter": _IN_PAIRS,
    "scatter": BlocksMoved(_others, _one, _others, _others),
}
SYMMETRIC = frozenset({"all_gather", "all_reduce", "all_to_all", "reduce_scatter"})  # all ranks move as much


class LowerBound(NamedTuple):
    """The least times of a call."""

    ns: float  # least time for the bytes that must move, in nanoseconds
    by: str  # what that is spent on: "writes", "reads" or "cards"
    started_ns: float  # the same, with what no plan hides: its launch, first start, a doorbell, and the read behind it


def lower_bound(topology: Topology, call: Call, space: Space) -> LowerBound | None:
    """Compute the least times of a call through a space's cards; None where no bytes move or there are clusters."""
    moves = MOVES.get(call.collective)
    if moves is None or not call.nbytes or call.ranks < 2 or call.cluster > 1 or space.owned:
        return None
    cards, costs = topology.cards_of(space), space.costs or topology.costs
    route = topology.fabric().route(0, cards[-1])
    links = [link.payload_gbytes_per_s for link in route.links] if route is not None else []
    if call.collective in SYMMETRIC:  # ranks of one host share its link, the first one on the route
        links[:1] = [rate / max(Counter(topology.place(call.ranks)).values()) for rate in links[:1]]
    one_way, totals = (topology.carried_gbytes_per_s(cards, both_ways=both) for both in (False, True))
    writes, reads = (min([*links, *([rate] if rate is not None else [])], default=totals) for rate in (
        costs.to_pool_gbytes_per_s, costs.from_pool_gbytes_per_s
    ))  # fmt: skip
    ns, by = max(
        (call.nbytes * moves.written(call.ranks) / writes, "writes"),
        (call.nbytes * moves.read(call.ranks) / reads, "reads"),
        (call.nbytes * max(moves.all_written(call.ranks), moves.all_read(call.ranks)) / one_way, "cards"),
        (call.nbytes * (moves.all_written(call.ranks) + moves.all_read(call.ranks)) / totals, "cards"),
    )
    launched_ns = (costs.call_ns or 0) + (costs.copy_ns or 0)
    between_ns = (costs.doorbell_ring_ns or 0) + costs.observed_ns + (costs.copy_ns or 0)
    between_ns += topology.load_latency_ns(0, cards[-1])
    return LowerBound(ns, by, ns + launched_ns + (0 if by == "cards" else between_ns))
