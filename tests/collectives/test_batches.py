"""Batches: the blocks of consecutive ranks in one copy, and when `auto` takes them."""

from collections.abc import Sequence
from itertools import product

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.algorithms.choose import choose
from collectives.algorithms.modelled import Copies
from collectives.builder.batches import BATCH_RANKS, Batches, RankBatch
from collectives.builder.slots import Chunk
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import model_of, planned
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout, Op, Plan
from cxlemu.topology import Topology
from faults.prove import prove
from faults.verdict import Verdict
from tests.helpers.tables import with_rows

BATCHED = ("all_gather", "gather", "scatter")
TWO_SHOTS = ("all_reduce", "reduce")
THOUSAND = Topology.load("thousand-hosts")
RANKS = 2 * BATCH_RANKS + 3  # two whole batches, and a short one


def made(collective: str, nbytes: int, root: int = 0, slot_card_bytes: int = 1 << 16) -> Plan:
    layout = Layout(RANKS, 3, 4, slot_card_bytes, 2 * RANKS, 256)
    call = Call(collective, "batched-1", RANKS, nbytes, "u8", root=root)
    return build(recipe(collective, "batched-1"), layout, call)


def copies(plan: Plan, rank: int, op: Op) -> int:
    return sum(i.op == op for stream in plan.part(rank).streams for i in stream.instructions)


def test_a_batch_is_one_run_or_two_beside_a_rank_that_is_left_out() -> None:
    batch = RankBatch(0, range(4, 8), ())
    assert batch.runs(3) == [range(4, 8)] == batch.runs(8)
    assert batch.runs(4) == [range(5, 8)] and batch.runs(7) == [range(4, 7)]
    assert batch.runs(5) == [range(4, 5), range(6, 8)]
    assert RankBatch(0, range(4, 5), ()).runs(4) == []


def test_a_copy_moves_the_blocks_of_a_batch() -> None:
    gathered = made("all_gather", 192)
    assert [copies(gathered, rank, Op.READ) for rank in (0, 1, RANKS - 1)] == [3, 4, 3]
    assert copies(made("gather", 192), 0, Op.READ) == 3
    assert copies(made("scatter", 192), 0, Op.WRITE) == 3


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", [*BATCHED[:2], *TWO_SHOTS])
@pytest.mark.parametrize("nbytes", [192, 200, 832])
def test_columns_of_batches_say_what_each_of_them_would(
    monkeypatch: pytest.MonkeyPatch, collective: str, nbytes: int
) -> None:
    """All blocks whole, a short one, in places of their own size or not, in one round or in several, cut or not."""

    def one_by_one(self: Batches, batches: Sequence[RankBatch], chunk: Chunk) -> None:
        for batch in batches:
            self.retrieve_batch(batch, chunk)

    ranks = 3 * BATCH_RANKS + 1
    op, nbytes = ("sum", nbytes * ranks - 64) if collective in TWO_SHOTS else ("none", nbytes)
    slots = (1 << (16 if collective in TWO_SHOTS else 13), 1 << 20)
    for slot_card_bytes, chunks in product(slots, (1, 2)):
        name = f"{'two_shot_' * (collective in TWO_SHOTS)}batched-{chunks}"
        layout = Layout(ranks, 3, 2, slot_card_bytes, 2 * ranks, 256)
        call = Call(collective, name, ranks, nbytes, "f32", op, root=BATCH_RANKS)
        columns = build(recipe(collective, name), layout, call).digest
        with monkeypatch.context() as patch:
            patch.setattr(Batches, "retrieve_batches", one_by_one)
            assert build(recipe(collective, name), layout, call).digest == columns


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", BATCHED)
@pytest.mark.parametrize("nbytes", [192, 200, 3000])
def test_they_are_right_with_broken_lines_in_several_rounds_and_with_any_root(collective: str, nbytes: int) -> None:
    plan = made(collective, nbytes, root=BATCH_RANKS + 1, slot_card_bytes=1 << 14)
    assert (plan.rounds > 1) == (nbytes == 3000)
    assert prove(plan).verdict is Verdict.OK


def test_a_slot_without_a_line_for_each_block_is_refused_with_a_sentence() -> None:
    assert made("all_gather", 64, slot_card_bytes=768).part(0).streams
    with pytest.raises(ArgumentError, match="too small for 35 x 1 blocks"):
        made("all_gather", 64, slot_card_bytes=704).part(0)


def folded(collective: str, nbytes: int, ranks: int, slots: int, slot_card_bytes: int, chunks: int, root: int) -> Plan:
    layout = Layout(ranks, 3, slots, slot_card_bytes, 2 * ranks, 256)
    variant = f"two_shot_batched-{chunks}"
    call = Call(collective, variant, ranks, nbytes, "f32", "sum", root=root, in_place=root > 0)
    return build(recipe(collective, variant), layout, call)


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", TWO_SHOTS)
@pytest.mark.parametrize("nbytes", [4, 64, 100, 1000, 4096, 4996])
def test_two_shots_are_right_with_short_and_empty_slices_in_any_rounds_and_chunks(collective: str, nbytes: int) -> None:
    for ranks, slots, chunks in ((2, 1, 1), (3, 2, 4), (5, 4, 1), (5, 1, 4)):
        for root in (0, ranks - 1):
            plan = folded(collective, nbytes, ranks, slots, 1 << 10, chunks, root)
            assert prove(plan).verdict is Verdict.OK, (ranks, slots, chunks, root)
            assert plan.rounds == 2 if nbytes <= 100 else plan.rounds > 2 or ranks == 2


@pytest.mark.parametrize("collective", TWO_SHOTS)
def test_two_shots_of_more_ranks_than_a_batch_has_read_their_results_in_few_copies(collective: str) -> None:
    plan = folded(collective, RANKS * 192 - 100, RANKS, 3, 1 << 18, 1, 0)
    assert prove(plan).verdict is Verdict.OK
    assert copies(plan, 0, Op.READ) == RANKS - 1 + 3
    assert copies(plan, 1, Op.READ) == RANKS - 1 + (4 if collective == "all_reduce" else 0)


def test_auto_takes_them_for_scatter_where_starts_are_what_a_call_costs() -> None:
    def taken(nbytes: int, ranks: int) -> str:
        cost = Copies.of(THOUSAND, ranks, THOUSAND.pool_space)
        return choose("scatter", nbytes, ranks, dtype="f32", copies=cost).variant

    assert taken(64, 32) == taken(32 << 10, 32) == taken(64 << 10, 4) == "batched-1"
    assert taken(64 << 10, 3) == "all-1" and taken(64, 4) == "line"
    assert taken(64 << 20, 32) == "all"
    assert choose("scatter", 64 << 10, 32, dtype="f32", copies=Copies(0.0, 1.0)).variant == "all"


@with_rows(
    ("all_gather", 32, 32 << 10, "f32", "batched-1"),
    ("all_gather", 32, 512 << 10, "f32", "all-1"),
    ("all_gather", 4, 64, "f32", "line"),
    ("gather", 32, 4 << 20, "f32", "batched-1"),
    ("gather", 4, 4 << 20, "f32", "all-3"),
    ("all_reduce", 32, 32 << 20, "f32", "two_shot_staged-1"),
    ("all_reduce", 8, 2 << 20, "i32", "two_shot_batched-1"),
    ("all_reduce", 4, 1 << 20, "f32", "two_shot_batched-1"),
    ("reduce", 4, 1 << 20, "f32", "two_shot_batched-1"),
    ("reduce", 4, 8 << 20, "f32", "two_shot_staged-2"),
)
def test_auto_takes_them_where_copies_cost_what_they_save(
    collective: str, ranks: int, nbytes: int, dtype: str, variant: str
) -> None:
    cost = Copies.of(THOUSAND, ranks, THOUSAND.pool_space)
    assert choose(collective, nbytes, ranks, dtype=dtype, copies=cost).variant == variant


def time_ns(collective: str, variant: str, nbytes: int) -> int:
    op = "sum" if collective in TWO_SHOTS else "none"
    plan, _ = planned(THOUSAND, Case(Call(collective, variant, 32, nbytes, "f32", op), in_place=False))
    return simulate(model_of(THOUSAND, 32), [VirtualCall(plan)]).time_ns


@pytest.mark.parametrize("collective", BATCHED)
def test_a_megabyte_on_32_ranks_takes_less_than_two_fifths_of_its_time(collective: str) -> None:
    assert time_ns(collective, "batched-1", 32 << 10) < 0.4 * time_ns(collective, "all-1", 32 << 10)


@pytest.mark.parametrize("collective", TWO_SHOTS)
def test_a_megabyte_folded_on_32_ranks_takes_less_than_seven_tenths_of_its_time(collective: str) -> None:
    batched, before = (time_ns(collective, f"two_shot_{its}-1", 1 << 20) for its in ("batched", "staged"))
    assert batched < 0.7 * before
