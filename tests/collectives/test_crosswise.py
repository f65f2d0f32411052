"""Crosswise: the blocks of one writer, and those for one reader, in one copy each, and when `auto` takes that."""

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.algorithms.choose import choose
from collectives.algorithms.modelled import Copies
from collectives.builder.crosswise import crosswise
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import model_of, planned
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout, Op, Plan, rules
from cxlemu.topology import Topology
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.tables import with_rows

BLOCKS = ("all_to_all", "reduce_scatter")
SLICES = ("all_reduce", "reduce")
VARIANTS = {**dict.fromkeys(BLOCKS, "crosswise"), **dict.fromkeys(SLICES, "two_shot_crosswise")}
THOUSAND = Topology.load("thousand-hosts")


def call_of(collective: str, ranks: int, nbytes: int, batches: int, root: int = 0, in_place: bool = False) -> Call:
    variant = VARIANTS[collective] + (f"-{batches}" if batches < 8 else "")
    folds = ("u8", "none") if collective == "all_to_all" else ("f32", "sum")
    return Call(collective, variant, ranks, nbytes, *folds, root=root, in_place=in_place)


def made(call: Call, cards: int, slots: int, slot_card_bytes: int) -> Plan:
    layout = Layout(call.ranks, cards, slots, slot_card_bytes, max(2 * call.ranks, 16), 256)
    return build(recipe(call.collective, call.algorithm), layout, call)


def copies(plan: Plan, rank: int, op: Op) -> int:
    return sum(i.op == op for stream in plan.part(rank).streams for i in stream.instructions)


@pytest.mark.each_value_once
@pytest.mark.parametrize(("ranks", "cards"), [(2, 1), (3, 16), (5, 2), (7, 16), (8, 6), (12, 6)])
@pytest.mark.parametrize("nbytes", [64, 200, 4000])
def test_every_block_has_one_place_which_is_in_its_row_and_in_its_column(ranks: int, cards: int, nbytes: int) -> None:
    its = crosswise(Layout(ranks, cards, 1, 1 << 20, 16, 256), nbytes)
    places = set()
    for writer in range(ranks):
        for reader in range(ranks):
            group, at = divmod(reader, its.readers)
            in_row = (writer * its.readers + at) * its.place_bytes
            row = its.rows[group].map.extents(in_row, its.place_bytes)
            assert row == its.columns[reader].map.extents(writer * its.place_bytes, its.place_bytes)
            assert in_row + its.place_bytes <= its.rows[group].nbytes
            places |= {
                (extent.card, line) for extent in row for line in range(extent.offset, extent.offset + extent.nbytes)
            }
    assert len(places) == ranks**2 * its.place_bytes and its.place_bytes >= nbytes


def test_cards_are_used_alike() -> None:
    def bytes_on_cards(ranks: int, cards: int) -> list[int]:
        its = crosswise(Layout(ranks, cards, 1, 1 << 22, 16, 256), 1 << 18)
        found = [0] * cards
        for region in its.columns:
            for extent in region.map.extents(0, region.nbytes):
                found[extent.card] += extent.nbytes
        return found

    for ranks, cards in ((8, 6), (4, 6), (12, 6), (32, 64), (8, 16)):
        found = bytes_on_cards(ranks, cards)
        assert max(found) <= 1.1 * sum(found) / cards, (ranks, cards)


def test_a_copy_moves_the_blocks_of_all_ranks_or_of_a_batch() -> None:
    plan = made(call_of("all_to_all", 8, 192, 1), 8, 1, 1 << 14)
    assert [copies(plan, rank, op) for rank in (0, 3) for op in (Op.WRITE, Op.READ)] == [1, 1, 2, 2]
    plan = made(call_of("reduce_scatter", 8, 192, 2), 8, 1, 1 << 14)
    assert [copies(plan, rank, op) for rank in (0, 5) for op in (Op.WRITE, Op.READ)] == [2, 2, 3, 3]
    plan = made(call_of("all_reduce", 8, 8 * 192, 1), 8, 2, 1 << 14)
    assert [copies(plan, 0, op) for op in (Op.WRITE, Op.READ)] == [2, 2]


def test_readers_that_are_more_than_cards_take_a_copy_for_each_group() -> None:
    plan = made(call_of("all_to_all", 8, 192, 1), 3, 1, 1 << 14)
    assert [copies(plan, rank, Op.WRITE) for rank in (0, 4)] == [3, 4]
    assert [copies(plan, rank, Op.READ) for rank in (0, 4)] == [1, 2]


SHAPES = [
    (5, 7, 2, 1 << 10, 2),
    (2, 1, 3, 1 << 13, 8),
    (3, 3, 4, 1 << 14, 1),
    (5, 7, 2, 1 << 11, 2),
    (5, 16, 2, 1 << 16, 2),
    (8, 3, 1, 1 << 12, 3),
]


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", VARIANTS)
@pytest.mark.parametrize("nbytes", [4, 64, 200, 1000, 4996, pytest.param(40_000, marks=pytest.mark.deep)])
def test_they_are_right_with_broken_lines_short_slices_and_in_several_rounds(collective: str, nbytes: int) -> None:
    rounds = set()
    for ranks, cards, slots, slot_card_bytes, batches in SHAPES:
        for root in (0, ranks - 1):
            call = call_of(collective, ranks, nbytes, batches, root if collective == "reduce" else 0, in_place=root > 0)
            plan = made(call, cards, slots, slot_card_bytes)
            rules.check(plan)
            assert prove(plan).verdict is Verdict.OK, (ranks, cards, batches, root)
            rounds.add(plan.rounds)
    assert max(rounds) > 2 or nbytes < 4000


def test_a_slot_without_a_line_for_each_pair_of_ranks_is_refused_with_a_sentence() -> None:
    call = call_of("all_to_all", 8, 64, 1)
    assert made(call, 2, 1, 4 * 8 * 64).part(0).streams
    with pytest.raises(ArgumentError, match="too small for 8 x 8 blocks"):
        made(call, 2, 1, 4 * 8 * 64 - 64).part(0)


@with_rows(
    ("all_to_all", 32, 64, "f32", "crosswise-1"),
    ("all_to_all", 32, 32 << 10, "f32", "crosswise-2"),
    ("all_to_all", 32, 512 << 10, "f32", "staggered-1"),
    ("all_to_all", 8, 256 << 10, "f32", "crosswise-3"),
    ("all_to_all", 3, 256 << 10, "f32", "staggered-1"),
    ("all_to_all", 5, 56, "f32", "line"),
    ("reduce_scatter", 32, 32 << 10, "f32", "crosswise-2"),
    ("reduce_scatter", 4, 256 << 10, "f32", "staged-1"),
    ("reduce_scatter", 4, 16 << 10, "f32", "crosswise-1"),
    ("all_reduce", 32, 64, "f32", "two_shot_crosswise-1"),
    ("all_reduce", 32, 64 << 10, "i32", "two_shot_crosswise-1"),
    ("all_reduce", 32, 1 << 20, "f32", "two_shot_crosswise-2"),
    ("all_reduce", 32, 32 << 20, "f32", "two_shot_staged-1"),
    ("all_reduce", 8, 64 << 10, "i32", "two_shot_crosswise-1"),
    ("all_reduce", 8, 8 << 10, "i32", "doubling-1"),
    ("reduce", 32, 256 << 10, "i32", "two_shot_crosswise-1"),
    ("reduce", 8, 1 << 20, "f32", "two_shot_crosswise-2"),
    ("reduce", 4, 1 << 20, "f32", "two_shot_batched-1"),
)
def test_auto_takes_them_where_copies_cost_what_they_save(
    collective: str, ranks: int, nbytes: int, dtype: str, variant: str
) -> None:
    cost = Copies.of(THOUSAND, ranks, THOUSAND.pool_space)
    assert choose(collective, nbytes, ranks, dtype=dtype, copies=cost).variant == variant


def test_auto_leaves_them_alone_where_copies_start_at_once() -> None:
    for collective in VARIANTS:
        assert "crosswise" not in choose(collective, 4096, 32, dtype="f32", copies=Copies(0.0, 1.0)).variant


@with_rows(
    ("all_to_all", 32 << 10, "pairwise-1", 0.4),
    ("reduce_scatter", 32 << 10, "staged-1", 0.4),
    ("all_reduce", 1 << 20, "two_shot_batched-1", 0.55),
    ("reduce", 1 << 20, "two_shot_batched-1", 0.5),
)
def test_a_megabyte_on_32_ranks_takes_half_of_its_time(
    collective: str, nbytes: int, before: str, at_most: float
) -> None:
    def time_ns(variant: str) -> int:
        op = "none" if collective == "all_to_all" else "sum"
        plan, _ = planned(THOUSAND, Case(Call(collective, variant, 32, nbytes, "f32", op), in_place=False))
        return simulate(model_of(THOUSAND, 32), [VirtualCall(plan)]).time_ns

    assert time_ns(f"{VARIANTS[collective]}-2") < at_most * time_ns(before)


@pytest.mark.parametrize(("nbytes", "before_us"), [(1 << 16, 132), (1 << 20, 274)])
def test_a_block_that_all_read_is_on_all_cards_chunk_by_chunk(nbytes: int, before_us: int) -> None:
    plan, _ = planned(THOUSAND, Case(Call("broadcast", "all-3", 32, nbytes, "f32"), in_place=False))
    run = simulate(model_of(THOUSAND, 32), [VirtualCall(plan)])
    cards = sum(use.resource.kind == "card" and use.resource.name.endswith("both ways") for use in run.uses)
    assert cards == min(64, nbytes // 4096) and run.time_ns < 0.6e3 * before_us


def test_blocks_are_there_sooner_where_they_are_read_in_the_order_in_which_they_are_published() -> None:
    six = Topology.load("six-cards")

    def time_ns(variant: str) -> int:
        call = Call("all_to_all", variant, 3, 344_064, "f32")
        return simulate(model_of(six, 3), [VirtualCall(planned(six, Case(call, in_place=False))[0])]).time_ns

    assert time_ns("staggered-1") < 0.85 * min(time_ns("all-1"), time_ns("pairwise-1"))
