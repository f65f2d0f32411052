"""Building plans: pure, a rank at a time, and cheap for a rank."""

import os
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import cxlemu
from collectives.algorithms.catalog import build, recipe
from collectives.builder import Builder
from collectives.layouts import layout_for
from cxlemu.plan import Call, Gemm, InHeap, Layout, Plan
from tests.helpers.commands import python

CALL = Call("all_reduce", "two_shot", 4, 70_000, "f32", "sum")
COPY, PUBLISH_CHUNK, RETRIEVE_CHUNK, CHUNKS = 1, 4, 3, 4  # instructions, and chunks of the variant "all"


def layout(ranks: int) -> Layout:
    return layout_for(ranks, 6, 32 << 20, 64 << 10)


def made(call: Call) -> Plan:
    return build(recipe(call.collective, call.algorithm), layout(call.ranks), call)


def test_building_twice_gives_equal_plans() -> None:
    one, other = made(CALL), made(CALL)
    assert one == other
    assert one.digest == other.digest
    assert hash(one) == hash(other)


def test_plans_that_differ_are_unequal() -> None:
    assert made(CALL) != made(replace(CALL, nbytes=70_004))
    one = made(CALL)
    assert one != one.with_part(replace(one.part(2), events=99))
    assert one == one.with_part(one.part(2))


@pytest.mark.parametrize("seed", ["0", "1", "4711"])
def test_plans_are_equal_across_processes(seed: str) -> None:
    """With other hash seeds, so that no order of a set or of hashes is in a plan."""
    program = (
        "from collectives.layouts import layout_for\n"
        "from collectives.algorithms.catalog import build, recipe\n"
        "from cxlemu.plan import Call\n"
        f"call = {CALL!r}\n"
        "plan = build(recipe(call.collective, call.algorithm), layout_for(4, 6, 32 << 20, 64 << 10), call)\n"
        "print(plan.digest, call.tag())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(cxlemu.__file__).parents[1])}
    done = python("-c", program, code=0, env=environment)
    assert done.stdout.split() == [made(CALL).digest, str(CALL.tag())]


def test_the_tables_are_the_same_whichever_rank_builds_them() -> None:
    assert len({made(CALL).build(rank)[0] for rank in range(CALL.ranks)}) == 1


def test_records_are_read_only() -> None:
    records = made(CALL).part(0).streams[0].records
    with pytest.raises(ValueError, match="read-only"):
        records["op"] = 0


def test_a_part_is_built_by_its_own_builder_alone_and_once() -> None:
    ranks_built: list[int] = []

    class Counted(Builder):
        def __post_init__(self) -> None:
            ranks_built.append(self.rank)
            super().__post_init__()

    counted = replace(recipe(CALL.collective, CALL.algorithm), builder=Counted)
    plan = build(counted, layout(CALL.ranks), CALL)
    assert ranks_built == []
    plan.part(2)
    assert plan.part(2) is plan.part(2)
    assert plan.rounds >= 1  # the shared tables need nobody else either
    assert ranks_built == [2]


@pytest.mark.parametrize("rank", [0, 1])
def test_broadcast_costs_a_rank_the_same_however_many_ranks_there_are(rank: int) -> None:
    def cost(ranks: int) -> int:
        return made(Call("broadcast", "all", ranks, 1 << 16)).part(rank).instruction_count

    done = 1  # the last SIGNAL
    root = COPY + 1 + CHUNKS * PUBLISH_CHUNK + done  # WAIT_ALL before
    expected = root if rank == 0 else CHUNKS * RETRIEVE_CHUNK + done
    assert [cost(ranks) for ranks in (2, 3, 8, 32)] == [expected] * 4


def test_all_gather_costs_a_rank_a_wait_an_invalidate_and_a_read_for_each_peers_chunk() -> None:
    def cost(ranks: int) -> int:
        return made(Call("all_gather", "all", ranks, 1 << 14)).part(0).instruction_count

    own = COPY + 1 + CHUNKS * PUBLISH_CHUNK + 1
    for ranks in (2, 3, 8, 32):
        assert cost(ranks) == own + (ranks - 1) * CHUNKS * RETRIEVE_CHUNK


def test_tags_differ_where_calls_differ_in_one_argument() -> None:
    call = Call("reduce", "all", 4, 4096, "f32", "sum", 1)
    others = {
        "collective": ["all_reduce", "broadcast", "gather"],
        "algorithm": ["naive", "aggregate", "line"],
        "ranks": [2, 3, 5, 8],
        "nbytes": [0, 4, 4092, 4100, 8192],
        "dtype": ["i32", "f64", "bf16"],
        "redop": ["min", "max", "avg", "prod"],
        "root": [0, 2, 3],
        "heap": [InHeap(0), InHeap(64), InHeap(64, 4096), InHeap(64, output=0)],
        "cluster": [2, 4],
        "fold_order": ["uniform"],
        "counts": [(4096, 0, 64, 64), (0, 4096, 64, 64)],
        "gemm": [Gemm(8, 8, 8), Gemm(8, 8, 16), Gemm(8, 8, 8, order="natural")],
    }
    assert set(others) | {"in_place"} == {field.name for field in fields(Call)}
    for name, values in others.items():
        changed = [replace(call, **{name: value}) for value in values]
        assert len({one.tag() for one in [call, *changed]}) == len(values) + 1, name
        assert all(0 <= one.tag() < 1 << 16 for one in changed)
    assert replace(call, in_place=True).tag() == call.tag()  # one rank may call in place and its peer not


def test_a_mutant_shares_what_was_not_changed() -> None:
    plan = made(CALL)
    part = plan.part(1)
    mutant = plan.with_part(replace(part, streams=part.streams[:1]))
    assert mutant.part(0) is plan.part(0)
    assert mutant.part(1).instruction_count < part.instruction_count
    assert mutant.frame == plan.frame
    assert np.array_equal(plan.part(1).streams[0].records, mutant.part(1).streams[0].records)
