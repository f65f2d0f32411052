"""The oracle of `cxlemu run`: its inputs are exact in any order, never repeat, and give what the contracts say."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import oracle
from collectives.contracts import COLLECTIVES, postcondition
from collectives.oracle import Array
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, DTYPES, Call, RedOp
from cxlemu.reduction import fold
from tests.tiers import examples

MOVING = [name for name, collective in COLLECTIVES.items() if collective.moves_data]
REDUCING = [name for name, collective in COLLECTIVES.items() if collective.reduces]
OPS = ["sum", "prod", "min", "max", "avg"]


@st.composite
def calls(draw: st.DrawFn, names: list[str] = MOVING, most_ranks: int = 9) -> Call:
    name, dtype = draw(st.sampled_from(names)), draw(st.sampled_from(DTYPE_NAMES))
    ranks, count = draw(st.integers(1, most_ranks)), draw(st.integers(0, 40))
    op = draw(st.sampled_from(OPS)) if COLLECTIVES[name].reduces else "none"
    root = draw(st.integers(0, ranks - 1))
    return Call(name, "any", ranks, count * DTYPES[dtype].itemsize, dtype, op, root)


def as_bytes(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)


def filled(call: Call, rank: int, seed: int = 1, serial: int = 0) -> Array:
    array = oracle.inputs(call, rank, seed, serial)
    assert array is not None
    return array


@examples(150)
@given(calls(), st.integers(0, 1000), st.integers(0, 1000))
def test_the_oracle_and_the_contract_say_the_same(call: Call, seed: int, serial: int) -> None:
    for rank in range(call.ranks):
        right = oracle.expected(call, rank, seed, serial)
        if right is None:
            assert COLLECTIVES[call.collective].rooted_output
            assert rank != call.root
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


@examples(150)
@given(calls(["all_reduce"], most_ranks=64), st.randoms())
def test_every_order_of_reduction_gives_the_same_bits(call: Call, random: Random) -> None:
    right = oracle.expected(call, 0, seed=3, serial=7)
    assert right is not None
    order = list(range(call.ranks))
    random.shuffle(order)
    dtype, redop = DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()]
    divisor = call.ranks if call.redop == "avg" else 1
    folded = fold(dtype, redop, [as_bytes(filled(call, rank, 3, 7)) for rank in order], divisor)
    assert folded.tobytes() == right.tobytes()


@examples(150)
@given(calls(most_ranks=64), st.integers(0, 10**6))
def test_every_element_changes_from_call_to_call(call: Call, serial: int) -> None:
    before, after = filled(call, call.root, 1, serial), filled(call, call.root, 1, serial + 1)
    assert oracle.wrong_elements(before, after).size == before.size


@examples(100)
@given(calls(["all_reduce"]), st.data())
def test_what_one_peer_left_from_the_last_call_makes_every_sum_and_product_wrong(
    call: Call, data: st.DataObject
) -> None:
    call = replace(call, redop=data.draw(st.sampled_from(["sum", "prod"])))
    stale = data.draw(st.integers(0, call.ranks - 1))
    parts = [as_bytes(filled(call, rank, 1, 5 - (rank == stale))) for rank in range(call.ranks)]
    got = fold(DTYPE_NAMES.index(call.dtype), RedOp[call.redop.upper()], parts).view(DTYPES[call.dtype])
    right = oracle.expected(call, 0, 1, 5)
    assert right is not None
    assert oracle.wrong_elements(got, right).size == right.size


@pytest.mark.parametrize("name", MOVING)
def test_inputs_differ_by_rank_and_by_seed(name: str) -> None:
    call = Call(name, "any", 3, 64 * 4, "f32", "sum" if COLLECTIVES[name].reduces else "none", root=1)
    taking = [rank for rank in range(3) if oracle.takes_input(call, rank)]
    seen = {filled(call, rank, seed).tobytes() for rank in taking for seed in (0, 1)}
    assert len(seen) == 2 * len(taking)


def test_an_average_that_is_no_whole_number_truncates_or_rounds_once() -> None:
    for dtype in ("i8", "bf16"):  # 20 ranks leave no room for multiples of 20
        call = Call("all_reduce", "any", 20, 64 * DTYPES[dtype].itemsize, dtype, "avg")
        totals = sum(filled(call, rank).astype(np.int64) for rank in range(20))
        assert np.any(totals % 20)
        exact = np.trunc(totals / 20) if dtype == "i8" else totals / 20
        right = oracle.expected(call, 0, 1, 0)
        assert right is not None
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
