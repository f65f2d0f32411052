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

The busiest rank counts, and the slowest host that writes or reads. A card's port is full duplex, and its memory carries
reads and writes together. Starting copies, doorbells and latencies are left out, and so is what is waited for: a plan
of small blocks is far above its bound. all_reduce is that of direct reads in two shots, which reads least.

A second bound adds what every plan spends beside its bytes: the call's launch and the first copy's start, and from a
write to its read, in which no rank's link moves any of these bytes, a doorbell, the read's start and its latency. Where
the cards bound a call, they may move other bytes meanwhile.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from cxlemu.plan import Call
from cxlemu.topology import Space, Topology


class BlocksMoved(NamedTuple):
    written: Callable[[int], float]  # by the rank that writes most
    read: Callable[[int], float]  # by the rank that reads most
    all_written: Callable[[int], float]  # by all ranks
    all_read: Callable[[int], float]
    writers: str = "all"  # which ranks write so much: all, the root, or the others
    readers: str = "all"


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
    "broadcast": BlocksMoved(_one, _one, _one, _others, "root", "others"),
    "gather": BlocksMoved(_one, _others, _others, _others, "others", "root"),
    "reduce": BlocksMoved(_one, _one, _others, _others, "others", "root"),
    "reduce_scatter": _IN_PAIRS,
    "scatter": BlocksMoved(_others, _one, _others, _others, "root", "others"),
}


class LowerBound(NamedTuple):
    ns: float  # least time for the bytes that must move, in nanoseconds
    by: str  # what that is spent on: "writes", "reads" or "cards"
    started_ns: float  # the same, with what no plan hides: its launch, first start, a doorbell, and the read behind it


def lower_bound(topology: Topology, call: Call, space: Space) -> LowerBound | None:
    """Compute the least times of a call through a space's cards; None where no bytes move or there are clusters."""
    moves = MOVES.get(call.collective)
    if moves is None or not call.nbytes or call.ranks < 2 or call.cluster > 1 or space.owned:
        return None
    cards, costs = topology.cards_of(space), space.costs or topology.costs
    one_way, totals = (topology.carried_gbytes_per_s(cards, both_ways=both) for both in (False, True))
    links = _slowest_links(topology, call, cards[-1])
    writes, reads = (
        min((rate for rate in (links[who], engine) if rate is not None), default=totals)
        for who, engine in ((moves.writers, costs.to_pool_gbytes_per_s), (moves.readers, costs.from_pool_gbytes_per_s))
    )
    ns, by = max(
        (call.nbytes * moves.written(call.ranks) / writes, "writes"),
        (call.nbytes * moves.read(call.ranks) / reads, "reads"),
        (call.nbytes * max(moves.all_written(call.ranks), moves.all_read(call.ranks)) / one_way, "cards"),
        (call.nbytes * (moves.all_written(call.ranks) + moves.all_read(call.ranks)) / totals, "cards"),
    )
    launched_ns = (costs.call_ns or 0) + (costs.copy_ns or 0)
    between_ns = (costs.doorbell_ring_ns or 0) + costs.observed_ns + (costs.copy_ns or 0)
    between_ns += min(topology.load_latency_ns(host, cards[-1]) for host in set(topology.place(call.ranks)))
    return LowerBound(ns, by, ns + launched_ns + (0 if by == "cards" else between_ns))


def _slowest_links(topology: Topology, call: Call, card: int) -> dict[str, float | None]:
    """Find the slowest link on the ways to a card, in GB/s: of all ranks, of the root and of the others; None: no link.

    Where all ranks move as much, those of one host share its link, the first one on the route.
    """
    places = topology.place(call.ranks)
    routes, which = topology.fabric().table(range(topology.host_count), [card])
    rates = [[link.payload_gbytes_per_s for link in route.links] for route in routes] + [[]]  # at -1: of no route

    def slowest(hosts: Counter[int], shared: bool) -> float | None:
        carried = (
            rate / (ranks if shared and hop == 0 else 1)
            for host, ranks in hosts.items()
            for hop, rate in enumerate(rates[which[host, 0]])
        )
        return min(carried, default=None)

    others = Counter(host for rank, host in enumerate(places) if rank != call.root)
    return {
        "all": slowest(Counter(places), True),
        "root": slowest(Counter([places[call.root]]), False),
        "others": slowest(others, False),
    }
