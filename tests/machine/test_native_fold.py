"""The C kernels against cxlemu.plan.reduction, bit for bit: the definition is the oracle.

Of a NaN only that it is one: which operand's payload survives, IEEE 754 leaves open, and compilers do as well (they
may swap the operands of a sum). Which of two zeros min and max choose, it leaves open too; there both choose the later.
"""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cxlemu import _native
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPE_NAMES, DTYPES, RedOp
from cxlemu.plan.reduction import fold, folds
from tests.helpers.tables import with_rows

OPS = (RedOp.SUM, RedOp.PROD, RedOp.MIN, RedOp.MAX)
FOLDS = [(dtype, op) for dtype in DTYPES for op in RedOp if op is not RedOp.AVG and folds(dtype, op.name.lower())]
DIVISORS = (*range(1, 10), 300)
GUARD = 0x5A


def folded(dtype: str, op: RedOp, operands: list[Bytes], divisor: int = 1) -> Bytes:
    a, b, c = (*operands, None)[:3]
    assert a is not None and b is not None
    out = np.full(a.nbytes, GUARD, np.uint8)
    _native.fold(DTYPE_NAMES.index(dtype), op, out, a, b, c, divisor)
    return out


def same(got: Bytes, wanted: Bytes, dtype: str) -> bool:
    """Bit for bit, but for the bits of a NaN."""
    its = {"c64": DTYPES["f32"], "c128": DTYPES["f64"]}.get(dtype, DTYPES[dtype])
    if its.kind in "iub":
        return bool(np.array_equal(got, wanted))
    nan, also_nan = (np.isnan(x.view(its)) for x in (got, wanted))
    bits, other_bits = (x.view(f"u{its.itemsize}") for x in (got, wanted))
    return bool(np.all(np.where(nan | also_nan, nan & also_nan, bits == other_bits)))


def check(dtype: str, op: RedOp, operands: list[Bytes], divisor: int = 1) -> None:
    wanted = fold(DTYPE_NAMES.index(dtype), op, operands, divisor)
    assert same(folded(dtype, op, operands, divisor), wanted, dtype)


def random_bits(dtype: str, count: int, seed: int = 0) -> Bytes:
    return np.random.default_rng([seed, count]).integers(0, 256, count * DTYPES[dtype].itemsize, np.uint8)


def all_pairs(left: NDArray[Any], right: NDArray[Any]) -> list[Bytes]:
    return [np.tile(left, len(right)).view(np.uint8), np.repeat(right, len(left)).view(np.uint8)]


# --- every bit pattern --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_all_pairs_of_bytes(dtype: str, op: RedOp) -> None:
    every = np.arange(256, dtype=np.uint8)
    check(dtype, op, all_pairs(every, every))


@pytest.mark.each_value_once
@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("dtype", ["u8", "i8"])
def test_avg_of_all_pairs_of_bytes(dtype: str, divisor: int) -> None:
    every = np.arange(256, dtype=np.uint8)
    check(dtype, RedOp.AVG, all_pairs(every, every), divisor)


def notable(exponent_bits: int, mantissa_bits: int) -> NDArray[np.uint16]:
    """64 patterns: zeros, least and greatest subnormals and normals, one and its neighbours, infinities, NaNs."""
    one = ((1 << exponent_bits - 1) - 1) << mantissa_bits
    infinity, least = ((1 << exponent_bits) - 1) << mantissa_bits, 1 << mantissa_bits
    positive = [0, 1, 2, 3, least - 1, least, least + 1, one - 1, one, one + 1, one | least >> 1, one + least]
    positive += [infinity - 1, infinity, infinity + 1, infinity | least >> 1]
    chosen = [*positive, *(0x8000 | bits for bits in positive)]
    others = np.random.default_rng(1).choice(np.setdiff1d(np.arange(1 << 16), chosen), 64 - len(chosen), replace=False)
    return np.array([*chosen, *others], np.uint16)


@pytest.mark.each_value_once
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(("dtype", "exponent_bits", "mantissa_bits"), [("f16", 5, 10), ("bf16", 8, 7)])
def test_all_16_bit_floats_with_64_of_them(dtype: str, exponent_bits: int, mantissa_bits: int, op: RedOp) -> None:
    """Every conversion to and from f32, and rounding at every exponent: subnormal results, ties, overflow."""
    others = notable(exponent_bits, mantissa_bits)
    assert len(set(others.tolist())) == 64
    check(dtype, op, all_pairs(np.arange(1 << 16, dtype=np.uint16), others))


@pytest.mark.each_value_once
@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_avg_of_all_16_bit_floats(dtype: str, divisor: int) -> None:
    every = np.arange(1 << 16, dtype=np.uint16)
    check(dtype, RedOp.AVG, all_pairs(every, every[:1]), divisor)


# --- random bits, lengths, places ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "op"), FOLDS)
def test_random_bits(dtype: str, op: RedOp) -> None:
    operands = [random_bits(dtype, 1 << 15, seed) for seed in range(3)]
    check(dtype, op, operands[:2])
    check(dtype, op, operands)


@pytest.mark.each_value_once
@pytest.mark.parametrize("divisor", [*DIVISORS, 2**31 - 1])
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != "bool"])
def test_avg_of_random_bits(dtype: str, divisor: int) -> None:
    operands = [random_bits(dtype, 1 << 12, seed) for seed in range(3)]
    check(dtype, RedOp.AVG, operands[:2], divisor)
    check(dtype, RedOp.AVG, operands, divisor)


@pytest.mark.each_value_once
@pytest.mark.parametrize(("dtype", "op"), [*FOLDS, *((dtype, RedOp.AVG) for dtype in DTYPES if dtype != "bool")])
def test_any_length_at_any_address_into_any_operand(dtype: str, op: RedOp) -> None:
    """0..70 elements and more; operands off their alignment; the result in place of none or one of them."""
    divisor = 3 if op == RedOp.AVG else 1
    whole = [random_bits(dtype, 4097, seed) for seed in range(3)]
    folds_of = {many: fold(DTYPE_NAMES.index(dtype), op, whole[:many], divisor) for many in (2, 3)}
    for count, operand_count in itertools.product([*range(71), 255, 1000, 4097], (2, 3)):
        nbytes = count * DTYPES[dtype].itemsize
        given, wanted = [operand[:nbytes] for operand in whole[:operand_count]], folds_of[operand_count][:nbytes]
        for aliased in range(-1, operand_count):
            room = [np.full(nbytes + 16, GUARD, np.uint8) for _ in range(operand_count + 1)]
            views = [where[shift : shift + nbytes] for shift, where in zip((1, 2, 5, 7), room, strict=False)]
            for view, operand in zip(views, given, strict=False):
                view[:] = operand
            into = views[aliased]  # -1: the last, which is no operand
            a, b, c = (*views[:operand_count], None)[:3]
            assert a is not None and b is not None
            _native.fold(DTYPE_NAMES.index(dtype), op, into, a, b, c, divisor)
            assert same(into.copy(), wanted, dtype), (count, operand_count, aliased)
            for k, (view, operand) in enumerate(zip(views, given, strict=False)):
                assert k == aliased or np.array_equal(view, operand)
            for shift, where in zip((1, 2, 5, 7), room, strict=False):
                assert (where[:shift] == GUARD).all() and (where[shift + nbytes :] == GUARD).all()


@pytest.mark.parametrize("op", [RedOp.MIN, RedOp.MAX])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_of_two_zeros_the_later_is_chosen(dtype: str, op: RedOp) -> None:
    """The C says so on every machine; NumPy does so on x86-64, where the test compares them."""
    plus, minus = (np.full(100, zero, DTYPES[dtype]).view(np.uint8) for zero in (0.0, -0.0))
    for operands in ([plus, minus], [minus, plus], [plus, minus, plus], [minus, plus, minus]):
        assert np.array_equal(folded(dtype, op, operands), operands[-1])


# --- what is refused ----------------------------------------------------------------------------------------------


@with_rows(
    (-1, 1, (8, 8, 8), 1),
    (len(DTYPES), 1, (16, 16, 16), 1),
    (0, 0, (8, 8, 8), 1),
    (0, len(RedOp), (8, 8, 8), 1),
    (0, 1, (8, 8, 8), 0),
    (0, 1, (8, 8, 8), -1),
    (0, 1, (8, 7, 8), 1),
    (0, 1, (8, 8, 9), 1),
    (2, 1, (6, 6, 6), 1),
)
def test_a_fold_that_makes_no_sense_is_refused(
    dtype: int, op: int, lengths: tuple[int, int, int], divisor: int
) -> None:
    out, a, c = (np.zeros(nbytes, np.uint8) for nbytes in lengths)
    with pytest.raises(ValueError, match="operands differ in size, or there is no such reduction"):
        _native.fold(dtype, op, out, a, out.copy(), c, divisor)
    assert not out.any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_the_definition_has_not_the_kernels_refuse(dtype: str) -> None:
    for op in RedOp:
        operands = [random_bits(dtype, 4, seed) for seed in range(2)]
        if folds(dtype, op.name.lower()):
            check(dtype, op, operands)
            continue
        with pytest.raises(ValueError, match="there is no such reduction"):
            folded(dtype, op, operands)


@pytest.mark.parametrize("op", [op for op in RedOp if folds("bool", op.name.lower())])
def test_any_byte_but_zero_is_true_and_results_are_zeros_and_ones(op: RedOp) -> None:
    every = np.arange(256, dtype=np.uint8)
    check("bool", op, all_pairs(every, every))
    found = folded("bool", op, all_pairs(every, every))
    assert set(found.tolist()) == {0, 1}


def test_a_result_that_cannot_be_written_is_refused() -> None:
    out = np.zeros(8, np.uint8)
    out.flags.writeable = False
    with pytest.raises(TypeError, match="read-write"):
        _native.fold(0, RedOp.SUM, out, out, out, None, 1)
