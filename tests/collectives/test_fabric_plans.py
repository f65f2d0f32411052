"""What `auto` takes on modelled fabrics, held to what any plan can be held to.

A collective takes no longer than those that it can be made of, one after the other; no call takes longer because it has
fewer bytes; and none is faster than its lower bound, of which its launch and starts are a part.
"""

import random
from dataclasses import replace
from functools import cache

import pytest

from collectives.algorithms.catalog import recipe, variants
from collectives.algorithms.modelled import candidates
from collectives.builder.slots import place
from collectives.contracts import COLLECTIVES
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.bounds import MOVES, lower_bound
from collectives.sweep.virtual.plans import model_of, planned
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.plan import RANK_ORDER, Call, Layout
from cxlemu.topology import Topology, shipped_configs
from tests.helpers.tables import with_rows

POOLS = (
    "laptop",
    "six-cards",
    "titan2-6xcz120",
    "twelve-hosts",
    "thousand-hosts",
    "pcie-8xa100",
    "one-host-four-ranks",
)
MADE_OF = {
    "all_reduce": ("reduce_scatter", "all_gather"),
    "reduce": ("reduce_scatter", "gather"),
    "reduce_scatter": ("all_to_all",),
}
FOLDING = {"reduce_scatter": 1.05, "reduce": 1.01}  # an all_to_all folds nothing, and a gather's root has all it reads
SIZES = (16 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20)
MARGIN = 1.05
SLOWER_WITH_FEWER = 1.25  # a variant is chosen by a threshold, and a call near it may take the slower one


@cache
def topology(name: str) -> Topology:
    return Topology.load(name)


def places(*ranks: int) -> list[tuple[str, int]]:
    """Each topology with each number of ranks for which it has hosts."""
    return [
        (name, n)
        for name in POOLS
        for n in ranks
        if n <= topology(name).host_count * topology(name).hosts.ranks_per_host
    ]


@cache
def time_and_bound(name: str, collective: str, ranks: int, size: int, dtype: str = "f32") -> tuple[int, float]:
    its = COLLECTIVES[collective]
    whole = its.input_blocks != "ranks" and its.output_blocks != "ranks"
    nbytes = size if whole else size // ranks // 64 * 64
    call = Call(collective, "auto", ranks, nbytes, dtype, "sum" if its.reduces else "none")
    plan, _ = planned(topology(name), Case(call, in_place=False))
    bound = lower_bound(topology(name), plan.call, topology(name).pool_space)
    return simulate(
        model_of(topology(name), ranks), [VirtualCall(plan)]
    ).time_ns, 0.0 if bound is None else bound.started_ns


@pytest.mark.each_value_once
@pytest.mark.deep(rows=lambda name, ranks: (name, ranks) not in (("six-cards", 3), ("thousand-hosts", 32)))
@pytest.mark.parametrize(("name", "ranks"), places(3, 4, 8, 32, 64))
@pytest.mark.parametrize("collective", MADE_OF)
def test_none_is_slower_than_those_that_it_can_be_made_of(collective: str, name: str, ranks: int) -> None:
    margin = MARGIN * FOLDING.get(collective, 1.0)
    for size in SIZES:
        parts = [time_and_bound(name, its, ranks, size)[0] for its in MADE_OF[collective]]
        assert time_and_bound(name, collective, ranks, size)[0] <= margin * sum(parts), (size, parts)


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", MOVES)
@pytest.mark.parametrize("slow", [0, 2])
def test_the_slowest_host_that_must_move_bytes_bounds_a_call(collective: str, slow: int) -> None:
    """Two hosts at 40 GB/s and one at 2, which is the root or is not; a rank moves 20 GB/s at most."""
    its, moves = COLLECTIVES[collective], MOVES[collective]
    machine = one_slow_host(slow)
    nbytes = (16 << 20) // 3 // 64 * 64
    call = Call(collective, "auto", 3, nbytes, "f32", "sum" if its.reduces else "none")
    bound = lower_bound(machine, call, machine.pool_space)
    assert bound is not None
    for who, blocks in ((moves.writers, moves.written(3)), (moves.readers, moves.read(3))):
        if who == "all" or (who == "root") == (slow == 0):
            assert bound.ns >= blocks * nbytes / 2
    plan, _ = planned(machine, Case(call, in_place=False))
    assert simulate(model_of(machine, 3), [VirtualCall(plan)]).time_ns >= bound.started_ns


def test_a_slow_host_may_read_less_than_others_and_what_lies_in_the_pool_has_no_bound() -> None:
    machine, nbytes = one_slow_host(2), (16 << 20) // 3 // 64 * 64
    call = Call("all_reduce", "rabenseifner", 3, nbytes, "f32", "sum")
    plan, _ = planned(machine, Case(call, in_place=False))
    bound = lower_bound(machine, plan.call, machine.pool_space)
    assert bound is not None and nbytes / 2 <= bound.ns
    assert bound.started_ns <= simulate(model_of(machine, 3), [VirtualCall(plan)]).time_ns < 2 * (2 / 3) * nbytes / 2
    plan, _ = planned(machine, Case(replace(call, algorithm="zero_copy"), in_place=False))
    assert lower_bound(machine, plan.call, machine.pool_space) is None


@pytest.mark.parametrize("collective", MOVES)
def test_one_link_to_each_card_is_all_there_is_to_bound_a_call(collective: str) -> None:
    text = shipped_configs()["laptop"].read_text()
    link = "  - {name: bus, ends: [hosts, cards], gbytes_per_s: 2, latency_ns: 20}\n"
    text = text[: text.index("switches:")] + "links:\n" + link + text[text.index("spaces:") :]
    machine = Topology.parse(text.encode(), "bus.yaml")
    its = COLLECTIVES[collective]
    call = Call(collective, "auto", 2, 1 << 20, "f32", "sum" if its.reduces else "none")
    bound = lower_bound(machine, call, machine.pool_space)
    assert bound is not None and bound.ns >= (1 << 20) / (2 * machine.pool_card_count)


def test_a_bound_waits_for_the_nearest_card_of_any_host_that_takes_part() -> None:
    """Four hosts and four cards, each with a link of its own, whose latencies are drawn."""
    dice, text = random.Random(5), shipped_configs()["laptop"].read_text()
    for count in (
        '  count: {value: 2, assumed: "the fewest that share',
        '  count: {value: 2, assumed: "the fewest that int',
    ):
        text = text.replace(count, count.replace("2", "4"))
    for _ in range(20):
        links = "".join(
            f"  - {{name: l{end}, ends: [{end}, titan2], gbytes_per_s: 8, latency_ns: {dice.randrange(1, 99)}}}\n"
            for end in (f"{kind}{number}" for kind in ("host", "card") for number in range(4))
        )
        drawn = text[: text.index("  - name: host-x16")] + links + text[text.index("spaces:") :]
        machine = Topology.parse(drawn.encode(), "drawn.yaml")
        for ranks in (2, 3, 4):
            bound = lower_bound(machine, Call("broadcast", "auto", ranks, 1 << 20, "f32", "none"), machine.pool_space)
            nearest_ns = min(machine.load_latency_ns(host, card) for host in range(ranks) for card in range(4))
            assert bound is not None and bound.by != "cards"
            spent_ns = 20000 + 2 * 5000 + 1500 + machine.costs.observed_ns  # call, two copies, a doorbell rung and seen
            assert bound.started_ns == bound.ns + spent_ns + nearest_ns


def one_slow_host(slow: int) -> Topology:
    hosts = [
        f"{{name: fast, ends: [{'host1-2' if slow == 0 else 'host0-1'}, titan2], gbytes_per_s: 40, latency_ns: 20}}"
    ]
    hosts.append(f"{{name: slow, ends: [host{slow}, titan2], gbytes_per_s: 2, latency_ns: 20}}")
    text = shipped_configs()["laptop"].read_text().replace("  count: {value: 2,", "  count: {value: 3,", 1)
    before, _, rest = text.partition("  - name: host-x16")
    links = "".join(f"  - {link}\n" for link in hosts)
    return Topology.parse((before + links + rest[rest.index("  - name: card-x8") :]).encode(), "slow.yaml")


@pytest.mark.deep(rows=lambda name, ranks: (name, ranks) != ("six-cards", 3))
@pytest.mark.parametrize(("name", "ranks"), places(3, 8, 32))
@pytest.mark.parametrize("collective", MOVES)
def test_none_is_faster_than_its_bound(collective: str, name: str, ranks: int) -> None:
    for size in SIZES:
        time_ns, bound_ns = time_and_bound(name, collective, ranks, size)
        assert time_ns >= bound_ns, size


@pytest.mark.deep
@pytest.mark.parametrize(("name", "ranks"), places(3, 8, 32))
@pytest.mark.parametrize("collective", MOVES)
def test_none_is_slower_with_fewer_bytes(collective: str, name: str, ranks: int) -> None:
    sizes = [4 << k for k in range(10, 25, 2)]
    times = [time_and_bound(name, collective, ranks, size)[0] for size in sizes]
    slower = [
        (sizes[k], round(times[k] / least, 2))
        for k in range(len(sizes) - 1)
        if times[k] > SLOWER_WITH_FEWER * (least := min(times[k + 1 :]))
    ]
    assert not slower


def test_direct_reads_in_two_shots_meet_their_bound() -> None:
    """All ranks once turned to the same card at once, and took six times as long."""
    time_ns, bound_ns = time_and_bound("thousand-hosts", "all_reduce", 128, 64 << 20)
    assert time_ns <= 1.25 * bound_ns  # which leaves out requests


@with_rows(
    (2, 64 << 20, "all"),
    (3, 64 << 20, "two_shot_apart"),
    (3, 256 << 20, "two_shot_staged"),
    (4, 16 << 20, "two_shot_apart"),
    (4, 12 << 20, "two_shot_staged-3"),
    (8, 15 << 20, "two_shot_batched-1"),
    (8, 16 << 20, "two_shot_apart-6"),
    (32, 32 << 20, "two_shot_batched-1"),
)
def test_auto_leaves_the_root_out_where_a_vector_is_worth_many_starts(ranks: int, nbytes: int, variant: str) -> None:
    thousand = topology("thousand-hosts")
    call = Call("reduce", "auto", ranks, nbytes, "f32", "sum")
    assert planned(thousand, Case(call, in_place=False))[1].variant == variant


UNEQUAL = """
name: unequal
hosts: {count: 5, memory: {latency_ns: 100, read_gbytes_per_s: 200, write_gbytes_per_s: 200}}
cards: {count: 3, capacity_bytes: 64GiB, latency_ns: 200, read_gbytes_per_s: 30, write_gbytes_per_s: 20,
        total_gbytes_per_s: 35}
switches: [{name: a, port_latency_ns: 100}, {name: b, level: 2, port_latency_ns: 300}]
links:
  - {name: fast, ends: [host0-2, a], gbytes_per_s: 64, latency_ns: 20}
  - {name: slow, ends: [host3-4, b], gbytes_per_s: 1, latency_ns: 20}
  - {name: trunk, ends: [a, b], gbytes_per_s: 5, latency_ns: 50}
  - {name: near, ends: [card0-1, a], gbytes_per_s: 32, latency_ns: 20}
  - {name: far, ends: [card2, b], gbytes_per_s: 16, latency_ns: 20}
spaces: [{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 4KiB}]
emulation: {card_bytes: 8MiB}
"""


@pytest.mark.each_value_once
@pytest.mark.parametrize("name", ["nvlink-8xh800", "unequal"])
@pytest.mark.parametrize("collective", MOVES)
def test_auto_takes_no_plan_that_the_model_prices_much_slower_than_another(collective: str, name: str) -> None:
    """Free starts, slow hosts behind a trunk and fast doorbells: rules took plans that are 2 to 13 times slower."""
    machine = Topology.parse(UNEQUAL.encode(), "unequal.yaml") if name == "unequal" else topology(name)
    ranks = machine.host_count * machine.hosts.ranks_per_host
    op = "sum" if COLLECTIVES[collective].reduces else "none"

    def time_us(variant: str, nbytes: int) -> float:
        case = Case(Call(collective, variant, ranks, nbytes, "i32", op), in_place=False)
        return simulate_case(machine, case)[0].time_us

    for nbytes in (64, 512, 4096):
        times = {each: time_us(each, nbytes) for each in variants(collective) if each != "zero_copy"}
        times |= {each: time_us(each, nbytes) for each in candidates(collective)}
        assert time_us("auto", nbytes) <= 1.15 * min(times.values()), (nbytes, times)


def test_floats_take_no_other_order_because_it_is_cheaper() -> None:
    machine = Topology.parse(UNEQUAL.encode(), "unequal.yaml")
    calls = [Call("all_reduce", "auto", 5, 512, dtype, "sum") for dtype in ("i32", "f32")]
    taken = [recipe("all_reduce", planned(machine, Case(call, in_place=False))[1].variant) for call in calls]
    assert (taken[0].name, taken[1].fold_order) == ("doubling-1", RANK_ORDER)


def test_where_copies_start_at_once_a_chunk_has_to_be_worth_the_way_to_a_card() -> None:
    """Of more ranks than are priced: 64 B in eight chunks took nine times as long as in one copy."""
    text = UNEQUAL.replace("count: 5", "count: 24").replace("host0-2", "host0-11").replace("host3-4", "host12-23")
    machine = Topology.parse(text.encode(), "unequal.yaml")
    case = Case(Call("all_reduce", "auto", 24, 64, "i32", "sum"), in_place=False)
    assert planned(machine, case)[1].variant == "two_shot_crosswise-1"


def test_a_root_that_folds_nothing_reads_while_others_fold() -> None:
    """A root that folds a slice, too, takes twice its bound, as it reads nearly two vectors."""
    time_ns, bound_ns = time_and_bound("thousand-hosts", "reduce", 8, 64 << 20)
    assert time_ns <= 1.45 * bound_ns


def test_writers_of_large_blocks_have_all_cards_where_ranges_would_be_of_one_card_and_of_two() -> None:
    layout = Layout(4, 6, 4, 32 << 20, 64, 64 << 10)

    def cards(writers: int, blocks: int, nbytes: int) -> list[int]:
        return [its.cards for its in place(layout, writers, blocks, nbytes, "ranges")[0]]

    assert cards(4, 1, 6 << 20) == cards(4, 4, 3 << 19) == [6] * 4
    assert cards(4, 1, (6 << 20) - 1) == cards(4, 4, (3 << 19) - 1) == [1, 2, 1, 2]
    assert cards(3, 4, 1 << 30) == [2] * 3 and cards(6, 4, 1 << 30) == [1] * 6


def test_four_ranks_on_six_cards_exchange_large_blocks_near_their_bound() -> None:
    """In ranges of one card and of two they took 1.54 times the bound."""
    time_ns, bound_ns = time_and_bound("six-cards", "all_to_all", 4, 16 << 20)
    assert time_ns <= 1.4 * bound_ns
