"""Random programs on random worlds: whatever the ring, the memory and the order of steps, the bytes are right."""

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe, variants
from collectives.algorithms.choose import INTEGERS, choose
from collectives.algorithms.modelled import Copies
from collectives.builder.recipes import with_checksums
from collectives.checking.symbolic import verify
from cxlemu.choices import DTYPE_KINDS, OPS_OF_KIND
from cxlemu.errors import ArgumentError, ContractError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import DTYPES, Call, Instruction, Layout, Op, Plan, encode
from cxlemu.plan.reduction import folds
from cxlemu.topology import Topology
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import Order, in_random_order, round_robin, slow
from faults.prove.cases import prove_case
from faults.verdict import Verdict
from faults.zero_copy_calls import lent, with_heap
from tests.helpers.expected import COLLECTIVES, OPS, REDUCTIONS, expected, input_bytes, same
from tests.helpers.in_place import may_be_in_place
from tests.helpers.lockstep_orders import readers_first, writers_first
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

ROOTED = ("broadcast", "gather", "scatter", "reduce")
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)


class World(NamedTuple):
    layout: Layout
    hosts: tuple[int, ...]
    memory: MemorySpec
    order: Order


@st.composite
def worlds(draw: st.DrawFn) -> World:
    ranks, cards = draw(st.integers(1, 9)), draw(st.integers(1, 7))
    # at least what the most demanding placement needs: a line of each of ranks + 1 blocks of ranks writers
    need = 4 * -(-ranks // cards) * (ranks + 1)
    lines = 1 << need.bit_length() + draw(st.integers(-1, 1))
    interleave = draw(st.sampled_from([64, 256, 4096]))
    layout = with_heap(Layout(ranks, cards, draw(st.integers(1, 4)), lines * LINE_BYTES, 2 * ranks + 2, interleave))
    ranks_per_host = draw(st.integers(1, 3))
    seed = draw(st.integers(0, 1 << 20))
    memory = draw(
        st.sampled_from([MemorySpec("shm"), MemorySpec(), MemorySpec(seed=seed), MemorySpec(seed=seed, rates=WILD)])
    )
    order = draw(
        st.sampled_from([in_random_order(seed), round_robin(), writers_first(), readers_first(), slow(seed % ranks)])
    )
    return World(layout, tuple(rank // ranks_per_host for rank in range(ranks)), memory, order)


def plans(layout: Layout, collectives: tuple[str, ...] = COLLECTIVES) -> st.SearchStrategy[Plan]:
    """Sizes that divide nothing, from nothing to several rounds."""
    largest = 6000 if layout.ranks < 4 else 1800
    return st.builds(
        plan_of,
        st.just(layout),
        st.sampled_from(collectives),
        st.sampled_from([0, 1, 63, 64, 65, 200, 999, largest // 2, largest]),
        st.sampled_from(list(DTYPES)),
        st.sampled_from(OPS),
        st.integers(0, layout.ranks - 1),
        st.booleans(),
        st.randoms(use_true_random=False),
    )


def plan_of(
    layout: Layout, collective: str, nbytes: int, dtype: str, op: str, root: int, in_place: bool, chance: random.Random
) -> Plan:
    """About ``nbytes`` a block, in any variant, and in any number of chunks where the variant has them."""
    recipes = [recipe(collective, variant) for variant in variants(collective)]
    variant = chance.choice([its for its in recipes if its.fold_order == "rank" or dtype in INTEGERS])
    in_place = in_place and may_be_in_place(collective, variant.name)
    if variant.spec.overlap:
        variant = replace(variant, spec=replace(variant.spec, chunks=chance.randint(1, 5)))
    variant = with_checksums(variant) if chance.random() < 0.3 and variant.carries_checksums else variant
    if collective == "barrier":
        nbytes = 0
    redop = op if folds(dtype, op) else chance.choice(OPS_OF_KIND[DTYPE_KINDS[dtype]])
    redop = redop if collective in REDUCTIONS else "none"
    itemsize = DTYPES[dtype].itemsize
    size = -(-nbytes // itemsize) * itemsize
    call = Call(collective, variant.name, layout.ranks, size, dtype, redop, root, in_place)
    return build(variant, layout, lent(call, output=chance.random() < 0.5) if variant.spec.zero_copy else call)


def inputs_of(call: Call, rng: np.random.Generator) -> list[Bytes]:
    """Half of them random bits, NaN and infinity among them; half of them numbers, so that sums mean something."""
    sizes = [input_bytes(call, rank) for rank in range(call.ranks)]
    if DTYPE_KINDS[call.dtype] in ("integer", "bool") or rng.random() < 0.5:
        return [rng.integers(0, 256, size, np.uint8) for size in sizes]
    counts = [size // DTYPES[call.dtype].itemsize for size in sizes]
    return [rng.normal(0, 100, count).astype(DTYPES[call.dtype]).view(np.uint8) for count in counts]


@pytest.mark.parametrize("collective", COLLECTIVES)
@examples(50, derandomize=True)
@given(st.data())
def test_every_result_is_right_bit_for_bit(collective: str, data: st.DataObject) -> None:
    """The collective twice, and another one between."""
    world = data.draw(worlds())
    one_of, any_of = plans(world.layout, (collective,)), plans(world.layout)
    program = [data.draw(strategy) for strategy in (one_of, any_of, one_of)]
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 20)))
    inputs = [inputs_of(plan.call, rng) for plan in program]
    lockstep = Lockstep(world.layout, hosts=world.hosts, memory=world.memory, order=world.order)
    outputs = lockstep.calls(list(zip(program, inputs, strict=True)))
    for plan, given_bytes, got in zip(program, inputs, outputs, strict=True):
        wanted = expected(plan.call, given_bytes)
        for rank in range(plan.ranks):
            assert same(got[rank], wanted[rank], plan.call.dtype), f"{plan.call}, rank {rank}"


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_all_variants_add_floats_to_the_same_bits(dtype: str, ranks: int) -> None:
    layout = with_heap(Layout(ranks, 3, 2, 8192, 2 * ranks + 2, 256))
    rng = np.random.default_rng(ranks)
    inputs = [rng.normal(0, 1, 300).astype(DTYPES[dtype]).view(np.uint8) for _ in range(ranks)]
    results = set()
    for variant in (name for name in variants("all_reduce") if recipe("all_reduce", name).fold_order == "rank"):
        call = Call("all_reduce", variant, ranks, inputs[0].nbytes, dtype, "sum")
        call = lent(call) if variant == "zero_copy" else call
        outputs = Lockstep(layout).call(build(recipe("all_reduce", variant), layout, call), inputs)
        results |= {output.tobytes() for output in outputs}
    assert len(results) == 1


# --- contracts on symbols -----------------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.deep(rows=lambda ranks: ranks > 3)
@pytest.mark.parametrize("ranks", range(1, 17))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_plan_keeps_its_contract_on_symbols(collective: str, ranks: int) -> None:
    redop = "avg" if collective in REDUCTIONS else "none"
    layout = with_heap(Layout(ranks, 3, 4, 8192, 2 * ranks + 2, 256))
    for nbytes in (0,) if collective == "barrier" else (72,) if ranks > 6 else (72, 2000):
        for variant in variants(collective):
            roots = range(ranks) if collective in ROOTED and ranks < 6 else (ranks - 1,)
            for in_place, root in product((False, True), roots):
                call = Call(collective, variant, ranks, nbytes, "f32", redop, root, in_place)
                for one in [lent(call), lent(call, output=True)] if variant == "zero_copy" else [call]:
                    if not in_place or may_be_in_place(collective, variant):
                        chosen = recipe(collective, variant)
                        checked = ranks % 2 and chosen.carries_checksums
                        verify(build(with_checksums(chosen) if checked else chosen, layout, one))


MUTANT_LAYOUT = Layout(3, 2, 2, 1024, 8, 256)


def whole_plan(collective: str, variant: str = "aggregate", redop: str = "none", root: int = 0) -> Plan:
    call = Call(collective, variant, 3, 100, "u8", redop, root)
    return build(recipe(collective, variant), MUTANT_LAYOUT, call)


def changed(plan: Plan, rank: int, op: Op, change: Callable[[Instruction], Instruction | None]) -> Plan:
    """The plan with the rank's first ``op`` changed or, for None, gone."""
    part = plan.part(rank)
    [main] = part.streams
    instructions = list(main.instructions)
    index = [i.op for i in instructions].index(op)
    other = change(instructions[index])
    instructions[index : index + 1] = [] if other is None else [other]
    return plan.with_part(replace(part, streams=(replace(main, records=encode(instructions)),)))


MUTANTS: dict[str, tuple[Callable[[], Plan], str]] = {
    "reads from another offset": (
        lambda: changed(whole_plan("all_gather"), 1, Op.READ, lambda i: i._replace(a=i.a.at(64), nbytes=36)),
        r"bytes 200\.\.235 of rank 1's output are rank 2\[64\], the contract says rank 2\[0\]",
    ),
    "folds in another order": (
        lambda: changed(whole_plan("all_reduce", redop="sum"), 2, Op.REDUCE, lambda i: i._replace(b=i.c, c=i.b)),
        r"bytes 0\.\.99 of rank 2's output are rank 0\[0\] \+ rank 2\[0\] \+ rank 1\[0\], the contract says rank 0",
    ),
    "does not read": (
        lambda: changed(whole_plan("all_gather"), 1, Op.READ, lambda i: None),
        r"bytes 200\.\.299 of rank 1's output are never written",
    ),
    "has another root": (
        lambda: Plan(whole_plan("broadcast", root=1).call, MUTANT_LAYOUT, whole_plan("broadcast", root=0).build),
        r"bytes 0\.\.99 of rank 0's output are rank 0\[0\], the contract says rank 1\[0\]",
    ),
    "divides by another number": (
        lambda: changed(whole_plan("reduce", redop="avg"), 0, Op.REDUCE, lambda i: i._replace(arg=2)),
        r"bytes 0\.\.99 of rank 0's output are .* / 2, the contract says .* / 3",
    ),
    "folds a rank twice": (
        lambda: changed(whole_plan("all_reduce", redop="sum"), 0, Op.REDUCE, lambda i: i._replace(c=i.b)),
        r"bytes 0\.\.99 of rank 0's output are rank 0\[0\] \+ rank 1\[0\] \+ rank 1\[0\], the contract says",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_plan_that_computes_something_else_breaks_its_contract(mutant: str) -> None:
    make, message = MUTANTS[mutant]
    with pytest.raises(ContractError, match=message):
        verify(make())


def test_any_order_of_the_same_contributions_is_right_where_order_does_not_matter() -> None:
    """With a declared order of its own, which ranks that hold the same result must share."""
    make, _ = MUTANTS["folds in another order"]
    other = uniform(make())
    with pytest.raises(
        ContractError, match=r"of rank 2's output are rank 0\[0\] \+ rank 2\[0\] .* but rank 0 has folded"
    ):
        verify(other)
    for rank in (0, 1):
        other = changed(other, rank, Op.REDUCE, lambda i: i._replace(b=i.c, c=i.b))
    verify(other)
    make, _ = MUTANTS["folds a rank twice"]
    with pytest.raises(ContractError):
        verify(uniform(make()))


def uniform(plan: Plan) -> Plan:
    """The same plan of an algorithm that declares an order of its own."""
    return Plan(replace(plan.call, fold_order="uniform"), plan.layout, plan.build)


def test_a_slot_of_a_few_broken_granules_still_carries_a_broadcast() -> None:
    layout = Layout(2, 2, 4, 12 * LINE_BYTES, 64, 4096)
    verify(build(recipe("broadcast", "aggregate"), layout, Call("broadcast", "aggregate", 2, 1000)))


@with_rows(
    (2, (1 << 20) - 1, "all"),
    (2, 1 << 20, "two_shot"),
    (2, 64 << 20, "two_shot"),
    (3, (64 << 10) - 1, "all"),
    (3, 64 << 10, "two_shot"),
)
def test_all_reduce_folds_shares_where_vectors_are_long(ranks: int, nbytes: int, variant: str) -> None:
    chosen = choose("all_reduce", nbytes, ranks)
    assert (chosen.variant, f"on {ranks} ranks" in chosen.reason) == (variant, variant == "two_shot")


@with_rows(
    ("reduce", 4, 16 << 10, "i32", "binomial"),
    ("reduce", 4, 64 << 20, "u8", "binomial"),
    ("reduce", 4, (16 << 10) - 4, "i32", "aggregate"),
    ("reduce", 3, 1 << 20, "i32", "all"),
    ("all_reduce", 12, 16 << 10, "i64", "doubling"),
    ("all_reduce", 4, (512 << 10) - 8, "i64", "doubling"),
    ("all_reduce", 4, 512 << 10, "i64", "two_shot"),
    ("all_reduce", 3, 64 << 10, "i64", "two_shot"),
    *(("reduce", 64, 1 << 20, dtype, "all") for dtype in ("f16", "bf16", "f32", "f64")),
    *(("all_reduce", 64, 16 << 10, dtype, "all") for dtype in ("f16", "bf16", "f32", "f64")),
    ("all_gather", 64, 16 << 10, "i32", "all"),
)
def test_integers_alone_take_trees(collective: str, ranks: int, nbytes: int, dtype: str, variant: str) -> None:
    """Where floats would be other bits than with every other size and variant."""
    assert choose(collective, nbytes, ranks, dtype=dtype).variant == variant


SIX_CARDS = Topology.load("six-cards")


@with_rows(
    ("all_gather", 4, 100, "f32", "line"),
    ("all_gather", 2, 64 << 10, "f32", "all-1"),
    ("all_gather", 2, 512 << 10, "f32", "all-2"),
    ("all_gather", 2, 8 << 20, "f32", "all"),
    ("all_gather", 8, 512 << 10, "f32", "all-1"),
    ("all_reduce", 4, 64 << 10, "f32", "staged-1"),
    ("all_reduce", 4, 64 << 10, "i32", "doubling-1"),
    ("all_reduce", 4, 16 << 20, "i64", "rabenseifner"),
    ("all_reduce", 4, 16 << 20, "f32", "two_shot_staged-3"),
    ("all_reduce", 8, 16 << 20, "i32", "two_shot_staged-2"),  # six cards do not keep up with eight ranks
    ("all_reduce", 2, 16 << 20, "f32", "staged"),
    ("all_to_all", 8, 100, "bf16", "crosswise-1"),
    ("all_to_all", 8, 1 << 20, "bf16", "staggered-1"),
    ("all_to_all", 8, 8 << 20, "bf16", "staggered-3"),
    ("reduce", 8, 4 << 10, "u8", "binomial-1"),
    ("reduce", 3, 64 << 10, "u8", "all-1"),
    ("reduce", 64, 64, "i32", "two_shot_crosswise-1"),
    ("all_reduce", 8, 8, "i32", "line"),
    ("all_reduce", 16, 8, "f32", "two_shot_crosswise-1"),
    ("reduce_scatter", 4, 1 << 20, "i32", "staged-2"),
    ("reduce", 4, 4 << 20, "f32", "two_shot_staged-2"),
    ("barrier", 4, 0, "u8", "line"),
)
def test_auto_on_a_modelled_fabric_goes_by_what_copies_cost(
    collective: str, ranks: int, nbytes: int, dtype: str, variant: str
) -> None:
    copies = Copies.of(SIX_CARDS, ranks, SIX_CARDS.pool_space)
    assert copies.start_bytes == 6500 * 20  # ns to start a copy and ring, and GB/s
    assert choose(collective, nbytes, ranks, dtype=dtype, copies=copies).variant == variant


def test_a_variant_is_cut_into_fewer_chunks_where_its_name_says_so() -> None:
    assert recipe("all_reduce", "two_shot-1").spec == replace(
        recipe("all_reduce", "two_shot").spec, name="two_shot-1", chunks=1
    )
    for name in ("two_shot-0", "two_shot-4", "two_shot-01", "two_shot-", "aggregate-1", "line-1", "mine-1"):
        with pytest.raises(ArgumentError, match=f"all_reduce has no variant '{name}'.* naive, aggregate, all"):
            recipe("all_reduce", name)


@with_rows(("all_reduce", "doubling-1"), ("all_reduce", "rabenseifner-2"), ("all_to_all", "pairwise-1"))
def test_fewer_chunks_keep_the_contract(collective: str, variant: str) -> None:
    layout, chosen = Layout(5, 3, 4, 8192, 16, 256), recipe(collective, variant)
    call = Call(collective, variant, 5, 2000, "i32", "sum" if chosen.fold_order != "rank" else "none")
    plan = build(chosen, layout, call)
    verify(plan)
    assert prove_case(chosen, layout, call).verdict is Verdict.OK
