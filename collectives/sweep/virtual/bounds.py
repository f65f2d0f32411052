"""The least time that a collective takes on a pool, by the bytes that must move: to compare plans with.

For N ranks and blocks of m bytes in private buffers, a rank writes and reads at least, and all ranks together move
through the cards:

    collective      a rank writes   a rank reads     all write    all read
    all_gather      m               (N - 1) m        N m          N (N - 1) m
    all_reduce      m               m                N m          2 (N - 1) m
    all_to_all      (N - 1) m       (N - 1) m        N (N - 1) m  N (N - 1) m
    broadcast       m               m                m            (N - 1) m
    gather          m               (N - 1) m        (N - 1) m    (N - 1) m
    reduce          m               m                (N - 1) m    (N - 1) m
    reduce_scatter  (N - 1) m       m                N (N - 1) m  N (N - 1) m
    scatter         (N - 1) m       m                (N - 1) m    (N - 1) m

The busiest rank counts, and the slowest host that writes or reads. A card's port is full duplex, and its memory carries
reads and writes together. Starting copies, doorbells and latencies are left out, and so is what is waited for: a plan
of small blocks is far above its bound. In all_reduce and reduce_scatter, ranks on fast links may read for slow ones, so
all reads together count as well, on all links at once.

A second bound adds what every plan spends beside its bytes: the call's launch and the first copy's start, and from a
write to its read, in which no rank's link moves any of these bytes, a doorbell, the read's start and its latency. Where
the cards bound a call, they may move other bytes meanwhile.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cxlemu.plan import Call
from cxlemu.topology import Route, Space, Topology
from cxlemu.topology.endpoints import members
from cxlemu.topology.fields import Link


class BlocksMoved(NamedTuple):
    written: Callable[[int], float]  # by the rank that writes most
    read: Callable[[int], float]  # by the rank that reads most
    all_written: Callable[[int], float]  # by all ranks
    all_read: Callable[[int], float]
    writers: str = "all"  # which ranks write so much: all, the root, or the others
    readers: str = "all"
    apart: bool = True  # no rank can read less because another one reads more


def _one(ranks: int) -> float:
    return 1.0


def _others(ranks: int) -> float:
    return ranks - 1.0


def _in_pairs(ranks: int) -> float:
    return float(ranks * (ranks - 1))


_IN_PAIRS = BlocksMoved(_others, _others, _in_pairs, _in_pairs)
MOVES = {
    "all_gather": BlocksMoved(_one, _others, float, _in_pairs),
    "all_reduce": BlocksMoved(_one, _one, float, lambda ranks: 2.0 * (ranks - 1), apart=False),
    "all_to_all": _IN_PAIRS,
    "broadcast": BlocksMoved(_one, _one, _one, _others, "root", "others"),
    "gather": BlocksMoved(_one, _others, _others, _others, "others", "root"),
    "reduce": BlocksMoved(_one, _one, _others, _others, "others", "root"),
    "reduce_scatter": _IN_PAIRS._replace(read=_one, apart=False),
    "scatter": BlocksMoved(_others, _one, _others, _others, "root", "others"),
}


class LowerBound(NamedTuple):
    ns: float  # least time for the bytes that must move, in nanoseconds
    by: str  # what that is spent on: "writes", "reads" or "cards"
    started_ns: float  # the same, with what no plan hides: its launch, first start, a doorbell, and the read behind it


def lower_bound(topology: Topology, call: Call, space: Space) -> LowerBound | None:
    """Compute the least times of a call through a space's cards; None where no bytes move, there are clusters, or
    arrays lie in the pool: what is written or read there depends on the variant."""
    moves = MOVES.get(call.collective)
    if moves is None or not call.nbytes or call.ranks < 2 or call.cluster > 1 or space.owned or call.heap is not None:
        return None
    cards, costs = topology.cards_of(space), space.costs or topology.costs
    one_way, totals = (topology.carried_gbytes_per_s(cards, both_ways=both) for both in (False, True))
    writers, readers = (_movers(topology, call, who) for who in (moves.writers, moves.readers))
    routes, taken = topology.fabric().table(range(topology.host_count), cards)
    writes, _ = _rates(routes, taken, writers, costs.to_pool_gbytes_per_s or totals)
    reads, all_reads = _rates(routes, taken, readers, costs.from_pool_gbytes_per_s or totals)
    ns, by = max(
        (call.nbytes * moves.written(call.ranks) / writes, "writes"),
        (call.nbytes * moves.read(call.ranks) / reads, "reads"),
        (0.0 if moves.apart else call.nbytes * moves.all_read(call.ranks) / all_reads, "reads"),
        (call.nbytes * max(moves.all_written(call.ranks), moves.all_read(call.ranks)) / one_way, "cards"),
        (call.nbytes * (moves.all_written(call.ranks) + moves.all_read(call.ranks)) / totals, "cards"),
    )
    launched_ns = (costs.call_ns or 0) + (costs.copy_ns or 0)
    ways_ns = np.array([*(2.0 * route.latency_ns for route in routes), inf])  # the last one: no route
    loads_ns = ways_ns[taken[list(set(topology.place(call.ranks)))]]
    loads_ns += [topology.card(card).latency_ns for card in cards]
    between_ns = (costs.doorbell_ring_ns or 0) + costs.observed_ns + (costs.copy_ns or 0) + float(loads_ns.min())
    return LowerBound(ns, by, ns + launched_ns + (0 if by == "cards" else between_ns))


def _movers(topology: Topology, call: Call, who: str) -> Counter[int]:
    """Count on each host the ranks whose bytes share its link: all, or one, where ranks but the root move the same."""
    places = topology.place(call.ranks)
    if who in ("root", "others"):
        return Counter({host for rank, host in enumerate(places) if (rank == call.root) == (who == "root")})
    return Counter(places)


def _rates(
    routes: Sequence[Route], taken: NDArray[np.int32], movers: Counter[int], engine: float
) -> tuple[float, float]:
    """Find the rate of the slowest rank and that of all, in GB/s; ``engine``: of a rank's copies."""

    @cache
    def links(numbers: tuple[int, ...], ranks: int) -> float:
        """At most what a host's own links carry, and at most what lies behind each on the ways to all cards."""
        behind: defaultdict[tuple[Link, int], float] = defaultdict(float)
        for card, number in enumerate(numbers):
            if number >= 0 and (route := routes[number].links):
                rest = min((link.payload_gbytes_per_s for link in route[1:]), default=inf)
                behind[route[0], -1 if route[1:] else card] += rest  # each host has a link to each card of its own
        own = {link: ranks if any(_is_of_ranks(end) for end in link.ends) else 1 for link, _ in behind}
        return sum(min(link.payload_gbytes_per_s * own[link], rest) for (link, _), rest in behind.items()) or inf

    rates = {host: min(links(tuple(taken[host].tolist()), ranks), ranks * engine) for host, ranks in movers.items()}
    return min(rate / movers[host] for host, rate in rates.items()), sum(rates.values())


def _is_of_ranks(end: str) -> bool:
    some = members(end)
    return some is not None and some.kind == "rank"
