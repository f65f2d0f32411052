"""The oracle of `cxlemu run`: inputs are exact in any order or show it, never repeat, and give what contracts say."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.checking import oracle
from collectives.checking.oracle import Array
from collectives.contracts import COLLECTIVES, buffers, postcondition
from cxlemu.choices import DTYPE_KINDS, OPS_OF_KIND
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, DTYPES, Call, RedOp
from cxlemu.plan.reduction import fold
from tests.helpers.tiers import examples

MOVING = [name for name, collective in COLLECTIVES.items() if collective.moves_data]
REDUCING = [name for name, collective in COLLECTIVES.items() if collective.reduces]


@st.composite
def calls(draw: st.DrawFn, names: list[str] = MOVING, most_ranks: int = 9) -> Call:
    name, dtype = draw(st.sampled_from(names)), draw(st.sampled_from(DTYPE_NAMES))
    ranks, count = draw(st.integers(1, most_ranks)), draw(st.integers(0, 40))
    its = COLLECTIVES[name]
    ops = [op for op in OPS_OF_KIND[DTYPE_KINDS[dtype]] if op in its.ops]
    op = draw(st.sampled_from(ops)) if its.reduces else "none"
    root = draw(st.integers(0, ranks - 1))
    return Call(name, "any", ranks, count * DTYPES[dtype].itemsize, dtype, op, root)


def as_bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def filled(call: Call, rank: int, seed: int = 1, serial: int = 0) -> Array:
    array = oracle.inputs(call, rank, seed, serial)
    assert array is not None
    return array


@examples(150)
@given(calls(), st.integers(0, 1000), st.integers(0, 1000), st.booleans())
def test_the_oracle_and_the_contract_say_the_same(call: Call, seed: int, serial: int, repeats: bool) -> None:
    """Also where large blocks repeat, which the small ones here do only with a short period."""
    with pytest.MonkeyPatch.context() as patch:
        if repeats:
            patch.setattr(oracle, "PERIOD", 6)
        agrees_with_the_contract(call, seed, serial)


def agrees_with_the_contract(call: Call, seed: int, serial: int) -> None:
    for rank in range(call.ranks):
        right = oracle.expected(call, rank, seed, serial)
        if right is None:
            assert not COLLECTIVES[call.collective].gets(rank, call.root, call.ranks)
            continue
        promised = np.empty_like(as_bytes(right))
        for piece in postcondition(call, rank):
            parts = [
                as_bytes(filled(call, source, seed, serial))[at : at + piece.nbytes]
                for source, at in piece.contributions
            ]
            dtype, redop = DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()]
            promised[piece.at : piece.at + piece.nbytes] = fold(dtype, redop, parts, piece.divisor)
        assert promised.tobytes() == right.tobytes()


@pytest.mark.parametrize(("dtype", "redop"), [("u8", "none"), ("f32", "sum"), ("i32", "max"), ("c64", "sum")])
def test_what_lies_in_a_place_at_a_distance_of_a_power_of_two_is_wrong(dtype: str, redop: str) -> None:
    count = 4 * oracle.PERIOD
    call = Call(
        "all_gather" if redop == "none" else "all_reduce", "any", 3, count * DTYPES[dtype].itemsize, dtype, redop
    )
    found = filled(call, 1).reshape(-1)
    assert found.size == count
    for power in range(count.bit_length() - 1):
        assert np.mean(found[1 << power :] == found[: -(1 << power)]) < 0.2


def test_uneven_blocks_of_complex_numbers_are_whole_elements() -> None:
    for ranks, nbytes in [(3, 8), (3, 24), (4, 32)]:
        for rank in range(ranks):
            call = Call("reduce_scatterv", "any", ranks, nbytes, "c64", "sum")
            found = oracle.expected(call, rank, 0, 0)
            assert found is not None and found.nbytes == buffers(call, rank)[1].nbytes


def in_order(call: Call, order: Sequence[int], serial: int = 7) -> Array:
    """The call's result as it is folded by the engines' definition, from the left, ranks in this order."""
    dtype, redop = DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()]
    divisor = call.ranks if call.redop == "avg" else 1
    folded = fold(dtype, redop, [as_bytes(filled(call, rank, 3, serial)) for rank in order], divisor)
    return folded.view(DTYPES[call.dtype])


@examples(150)
@given(calls(["all_reduce"], most_ranks=64), st.randoms(), st.integers(0, 9))
def test_every_order_of_reduction_gives_exact_elements_the_same_bits(call: Call, random: Random, serial: int) -> None:
    right = oracle.expected(call, 0, seed=3, serial=serial)
    assert right is not None
    order = list(range(call.ranks))
    random.shuffle(order)
    wrong = oracle.wrong_elements(in_order(call, order, serial), right)
    if not oracle.reveals_order(call):
        assert not wrong.size
    if DTYPES[call.dtype].kind != "c":  # an element of theirs has parts of both kinds
        assert not np.any((wrong + serial) % 2 == 0)


REVEALING = [
    *(("sum", "f32"), ("sum", "f64"), ("prod", "f32"), ("prod", "f64"), ("avg", "f32"), ("avg", "f64")),
    *(("sum", "c64"), ("avg", "c128"), ("prod", "c64"), ("prod", "c128")),
]


@pytest.mark.each_value_once
@pytest.mark.parametrize(("redop", "dtype"), REVEALING)
@pytest.mark.parametrize("ranks", [3, 4, 9])
def test_every_other_order_shows_in_a_few_lines(ranks: int, redop: str, dtype: str) -> None:
    """But for the first two, whose order is none: a + b is b + a."""
    call = Call("all_reduce", "any", ranks, 64 * DTYPES[dtype].itemsize, dtype, redop)
    right = oracle.expected(call, 0, 3, 7)
    assert right is not None
    for one, other in combinations(range(ranks), 2):
        order = list(range(ranks))
        order[one], order[other] = order[other], order[one]
        assert bool(oracle.wrong_elements(in_order(call, order), right).size) is ((one, other) != (0, 1)), order
    apart = oracle.expected(replace(call, cluster=2), 0, 3, 7)
    assert apart is not None and (ranks % 2 or oracle.wrong_elements(apart, right).size)


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [3, 4, 6])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_a_line_is_enough_for_most_orders_of_a_sum(ranks: int, dtype: str) -> None:
    call = Call("all_reduce", "any", ranks, 64, dtype, "sum")
    right = oracle.expected(call, 0, 3, 7)
    assert right is not None
    orders = [order for order in permutations(range(ranks)) if order[0] < order[1]][1:]
    hidden = [order for order in orders if not oracle.wrong_elements(in_order(call, order), right).size]
    assert len(hidden) * 20 <= len(orders), hidden


@examples(100)
@given(calls(["all_reduce", "reduce_scatter"], most_ranks=20), st.randoms(), st.integers(0, 9))
def test_no_order_errs_by_more_than_the_slack(call: Call, random: Random, serial: int) -> None:
    call = replace(call, fold_order="uniform")
    right, slack = (which(call, 0, 3, serial) for which in (oracle.expected, oracle.slack))
    assert right is not None and (slack is not None) is oracle.reveals_order(call)
    if slack is None or call.collective != "all_reduce":
        return
    order = list(range(call.ranks))
    random.shuffle(order)
    assert not oracle.wrong_elements(in_order(call, order, serial), right, slack).size
    stale = [as_bytes(filled(call, rank, 3, serial - (rank == 1))) for rank in order]
    dtype, redop = DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()]
    got = fold(dtype, redop, stale, call.ranks if redop is RedOp.AVG else 1).view(DTYPES[call.dtype])
    assert oracle.wrong_elements(got, right, slack).size == right.size


def test_slack_is_of_what_an_algorithm_with_its_own_order_gives_each_rank() -> None:
    call = Call("all_reduce", "any", 3, 64, "f32", "sum", fold_order="uniform")
    assert oracle.held_by_all(call) and not oracle.held_by_all(replace(call, collective="reduce"))
    assert not oracle.held_by_all(replace(call, collective="reduce_scatter"))
    assert oracle.slack(replace(call, fold_order="rank"), 0, 1, 0) is None
    assert oracle.slack(replace(call, collective="reduce"), 1, 1, 0) is None  # the root alone
    slack = oracle.slack(call, 0, 1, 0)
    assert slack is not None
    assert np.all(slack[0, ::2] == 0) and np.all(slack[0, 1::2] > 0)  # some elements are exact in any order
    parts = oracle.slack(replace(call, dtype="c64", redop="prod"), 0, 1, 0)
    assert parts is not None and parts.shape == slack.shape  # one for each part of a complex number
    right = np.array([[1.0, np.nan]], np.float32)
    assert oracle.wrong_elements(np.array([np.nan, 1.0], np.float32), right, np.ones((1, 2))).tolist() == [0, 1]


@pytest.mark.parametrize(("dtype", "part"), [("c64", np.float32), ("c128", np.float64)])
@pytest.mark.parametrize("ranks", [2, 3])
def test_a_complex_product_that_rounds_fewer_steps_is_wrong(ranks: int, dtype: str, part: type) -> None:
    """As NumPy's own product does on some machines; exact fractions say what a fused step gives."""
    call = Call("all_reduce", "any", ranks, 64 * DTYPES[dtype].itemsize, dtype, "prod")
    fused = filled(call, 0, 3).reshape(-1)
    for rank in range(1, ranks):
        other = filled(call, rank, 3).reshape(-1).tolist()
        for i, (x, y) in enumerate(zip(fused.tolist(), other, strict=True)):
            p, q, r, s = (Fraction(each) for each in (x.real, x.imag, y.real, y.imag))
            real, imag = (p * r - Fraction(float(part(q * s))), p * s + Fraction(float(part(q * r))))
            fused[i] = complex(part(real), part(imag))
    right = oracle.expected(call, 0, 3, 0)
    assert right is not None
    wrong = oracle.wrong_elements(fused, right)
    assert 16 < wrong.size <= 32 and np.all(wrong % 2 == 1)


@examples(150)
@given(calls(most_ranks=64), st.integers(0, 10**6))
def test_every_element_changes_from_call_to_call(call: Call, serial: int) -> None:
    """But for factors of one among complex numbers, and bools on which the result does not depend."""
    if COLLECTIVES[call.collective].reduces and (call.dtype == "bool" or (call.dtype[0], call.redop) == ("c", "prod")):
        call = replace(call, ranks=1, root=0, redop="prod")
    before, after = filled(call, call.root, 1, serial), filled(call, call.root, 1, serial + 1)
    assert oracle.wrong_elements(before, after).size == before.size


@examples(100)
@given(calls(["all_reduce"]), st.data())
def test_what_one_peer_left_from_the_last_call_makes_every_sum_and_product_wrong(
    call: Call, data: st.DataObject
) -> None:
    call = replace(call, redop=data.draw(st.sampled_from(["sum", "prod"])))
    if call.dtype == "bool":
        return  # of which one rank alone decides
    stale = data.draw(st.integers(0, call.ranks - 1))
    parts = [as_bytes(filled(call, rank, 1, 5 - (rank == stale))) for rank in range(call.ranks)]
    got = fold(DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()], parts).view(DTYPES[call.dtype])
    right = oracle.expected(call, 0, 1, 5)
    assert oracle.wrong_elements(got, right).size == right.size


@pytest.mark.parametrize("name", MOVING)
def test_inputs_differ_by_rank_and_by_seed(name: str) -> None:
    call = Call(name, "any", 3, 64 * 4, "f32", "sum" if COLLECTIVES[name].reduces else "none", root=1)
    taking = [rank for rank in range(3) if oracle.takes_input(call, rank) and buffers(call, rank)[0].nbytes]
    seen = {filled(call, rank, seed).tobytes() for rank in taking for seed in (0, 1)}
    assert len(seen) == 2 * len(taking)


@pytest.mark.parametrize("redop", OPS_OF_KIND["bool"])
def test_whether_any_or_all_are_true_changes_with_every_call_and_depends_on_every_rank(redop: str) -> None:
    call = Call("all_reduce", "any", 4, 8, "bool", redop)
    results = [oracle.expected(call, 0, 1, serial) for serial in (0, 1)]
    assert results[0] is not None and results[1] is not None and (results[0] != results[1]).all()
    for stale in range(4):
        parts = [as_bytes(filled(call, rank, 1, int(rank != stale))) for rank in range(4)]
        got = fold(DTYPE_NAMES.index("bool"), RedOp[redop.upper()], parts).view(np.bool_)
        assert (got != results[1]).any() or (redop == "bxor" and stale)


def test_an_average_that_is_no_whole_number_truncates_or_rounds_once() -> None:
    for dtype in ("i8", "bf16"):  # 20 ranks leave no room for multiples of 20
        call = Call("all_reduce", "any", 20, 64 * DTYPES[dtype].itemsize, dtype, "avg")
        totals = sum(filled(call, rank).astype(np.int64) for rank in range(20))
        assert np.any(totals % 20)
        exact = np.trunc(totals / 20) if dtype == "i8" else totals / 20
        right = oracle.expected(call, 0, 1, 0)
        assert right.tobytes() == exact.astype(DTYPES[dtype]).tobytes()


def test_sums_that_could_not_be_exact_are_refused() -> None:
    oracle.check_exact(Call("all_reduce", "any", 255, 8, "bf16", "sum"))
    oracle.check_exact(Call("all_reduce", "any", 5000, 8, "u8", "sum"))  # integer sums wrap
    with pytest.raises(ArgumentError, match="at most 255 ranks or a wider dtype"):
        oracle.check_exact(Call("all_reduce", "any", 256, 8, "bf16", "sum"))
    with pytest.raises(ArgumentError, match="at most 127 ranks"):
        oracle.check_exact(Call("all_reduce", "any", 128, 8, "i8", "avg"))


def test_wrong_elements_compares_bits_not_values() -> None:
    right = np.array([np.nan, 0.0, 1.0], np.float32)
    assert oracle.wrong_elements(right.copy(), right).tolist() == []
    assert oracle.wrong_elements(np.array([np.nan, -0.0, 2.0], np.float32), right).tolist() == [1, 2]
