"""Shipped algorithms on shipped fabrics, sampled: a call's time when a part gets faster, or when ranks are others.

Both margins are of tie-breaking and queues: requests that come in another order wait for each other otherwise.
"""

import random
from functools import cache
from itertools import product

import pytest

from collectives.algorithms.catalog import variants
from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.bounds import MOVES
from collectives.sweep.virtual.plans import planned
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import Plan
from cxlemu.topology import Topology

POOLS = {"laptop": 2, "six-cards": 4, "titan2-6xcz120": 3, "twelve-hosts": 5, "thousand-hosts": 8, "cxl-8xh100": 4}
SIZES = (64 << 10, 1 << 20, 4 << 20)
SAMPLED = 24
SLOWER_WITH_MORE = 1.05  # by at most so much, where cards, engines or links are twice as fast
RENUMBERED = 1.30  # ranks on other hosts, one each
RATES = ("read_gbytes_per_s", "write_gbytes_per_s", "total_gbytes_per_s")

Sampled = tuple[str, str, str, int]


@cache
def sample() -> list[Sampled]:
    """The same pools, collectives, variants and sizes every time."""
    every = [
        (config, collective, variant, size)
        for config, collective, size in product(POOLS, MOVES, SIZES)
        for variant in variants(collective)
    ]
    return random.Random(19).sample(every, SAMPLED)


def plan_of(topology: Topology, collective: str, variant: str, size: int, ranks: int) -> Plan:
    (case,) = Sweep((collective,), [size], variant=variant).cases(ranks)
    return planned(topology, case)[0]


def faster(topology: Topology, part: str) -> Topology:
    """The same machine with cards, with ranks' engines, or with links that are twice as fast."""
    if part == "cards":
        cards = tuple(
            group.model_copy(update={rate: 2 * getattr(group, rate) for rate in RATES}) for group in topology.cards
        )
        return topology.model_copy(update={"cards": cards})
    if part == "engines":
        rates = {
            name: value for name, value in topology.costs.model_dump().items() if name.endswith("_per_s") and value
        }
        costs = topology.costs.model_copy(update={name: 2 * value for name, value in rates.items()})
        return topology.model_copy(update={"costs": costs})
    switches, links = topology.expanded
    twice = tuple(link.model_copy(update={"gbytes_per_s": 2 * link.gbytes_per_s}) for link in links)
    return topology.model_copy(update={"switches": tuple(switches), "links": twice, "fabrics": ()})


@pytest.mark.deep
@pytest.mark.parametrize("part", ["cards", "engines", "links"])
def test_none_is_slower_with_more_bandwidth(part: str) -> None:
    slower = []
    for config, collective, variant, size in sample():
        topology, ranks = Topology.load(config), POOLS[config]
        call = [VirtualCall(plan_of(topology, collective, variant, size, ranks))]
        before, after = (simulate(CostModel.of(its, ranks), call).time_ns for its in (topology, faster(topology, part)))
        if after > SLOWER_WITH_MORE * before:
            slower.append((config, collective, variant, size, round(after / before, 3)))
    assert not slower


@pytest.mark.deep
def test_a_call_takes_about_as_long_whoever_is_which_rank() -> None:
    others, dice = [], random.Random(20)
    for config, collective, variant, size in sample():
        topology, ranks = Topology.load(config), POOLS[config]
        if topology.hosts.ranks_per_host > 1:  # ranks of a host share its link: they are not alike
            continue
        plan, model = plan_of(topology, collective, variant, size, ranks), CostModel.of(topology, ranks)
        order = tuple(dice.sample(range(ranks), ranks))
        times = [simulate(model, [VirtualCall(plan, members)]).time_ns for members in (None, order)]
        if max(times) > RENUMBERED * min(times):
            others.append((config, collective, variant, size, order, round(max(times) / min(times), 3)))
    assert not others
