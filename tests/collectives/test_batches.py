"""Batches: the blocks of consecutive ranks in one copy, and when `auto` takes them."""

from __future__ import annotations

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.algorithms.choose import choose
from collectives.algorithms.modelled import Copies
from collectives.builder.batches import BATCH_RANKS, RankBatch
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.simulated import model_of
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Layout, Op, Plan
from cxlemu.topology import Topology
from faults.prove import prove
from faults.verdict import Verdict

BATCHED = ("all_gather", "gather", "scatter")
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


def test_auto_takes_them_for_scatter_where_starts_are_what_a_call_costs() -> None:
    def taken(nbytes: int, ranks: int) -> str:
        cost = Copies.of(THOUSAND, ranks, THOUSAND.pool_space)
        return choose("scatter", nbytes, ranks, dtype="f32", copies=cost).variant

    assert taken(64, 32) == taken(32 << 10, 32) == taken(64 << 10, 4) == "batched-1"
    assert taken(64 << 10, 3) == "all-1" and taken(64, 4) == "line"
    assert taken(64 << 20, 32) == "all"
    assert choose("scatter", 64 << 10, 32, dtype="f32", copies=Copies(0.0, 1.0)).variant == "all"


@pytest.mark.parametrize("collective", BATCHED)
def test_a_megabyte_on_32_ranks_takes_less_than_two_fifths_of_its_time(collective: str) -> None:
    def time_ns(variant: str) -> int:
        plan, _ = planned(THOUSAND, Case(Call(collective, variant, 32, 32 << 10, "f32"), in_place=False))
        return simulate(model_of(THOUSAND, 32), [VirtualCall(plan)]).time_ns

    assert time_ns("batched-1") < 0.4 * time_ns("all-1")
