"""What combining means, against oracles that share nothing with it: Python's integers and exact single steps."""

import struct
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from operator import add, and_, mul, or_, xor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPE_NAMES, DTYPES, RedOp
from cxlemu.plan.reduction import fold, reductions
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

INTEGERS = {
    **{f"i{bits}": (-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)},
    **{f"u{bits}": (0, (1 << bits) - 1) for bits in (8, 16, 32, 64)},
}
EXACT: dict[RedOp, Callable[[int, int], int]] = {
    RedOp.SUM: add,
    RedOp.PROD: mul,
    RedOp.MIN: min,
    RedOp.MAX: max,
    RedOp.BAND: and_,
    RedOp.BOR: or_,
    RedOp.BXOR: xor,
}


def folded(dtype: str, redop: RedOp, rows: Sequence[Sequence[float]], divisor: int = 1) -> np.ndarray:
    operands = [np.array(row).astype(DTYPES[dtype]).view(np.uint8) for row in rows]
    return fold(DTYPE_NAMES.index(dtype), redop, operands, divisor).view(DTYPES[dtype])


def wrapped(value: int, dtype: str) -> int:
    """Modulo 2^bits, into the dtype's range."""
    low, high = INTEGERS[dtype]
    return (value - low) % (high - low + 1) + low


def toward_zero(value: int, divisor: int) -> int:
    return -(-value // divisor) if value < 0 else value // divisor


def rows_of(dtype: str) -> st.SearchStrategy[list[list[int]]]:
    low, high = INTEGERS[dtype]
    numbers = st.integers(low, high) | st.sampled_from([low, low + 1, high, high - 1])
    return st.lists(st.lists(numbers, min_size=5, max_size=5), min_size=1, max_size=4)


@pytest.mark.each_value_once
@pytest.mark.parametrize("redop", EXACT)
@pytest.mark.parametrize("dtype", INTEGERS)
@examples(25)
@given(st.data())
def test_integers_wrap(dtype: str, redop: RedOp, data: st.DataObject) -> None:
    rows = data.draw(rows_of(dtype))
    exact = [wrapped(reduce(EXACT[redop], column), dtype) for column in zip(*rows, strict=True)]
    operands = [np.array(row, DTYPES[dtype]).view(np.uint8) for row in rows]
    got = fold(DTYPE_NAMES.index(dtype), redop, operands)
    assert got.view(DTYPES[dtype]).tolist() == exact


@pytest.mark.parametrize("dtype", ["i8", "u8"])
@pytest.mark.parametrize("divisor", range(1, 10))
def test_avg_truncates_every_byte_toward_zero(dtype: str, divisor: int) -> None:
    values = list(range(INTEGERS[dtype][0], INTEGERS[dtype][1] + 1))
    got = folded(dtype, RedOp.AVG, [values], divisor)
    assert got.tolist() == [toward_zero(value, divisor) for value in values]


@pytest.mark.each_value_once
@pytest.mark.parametrize("dtype", ["i16", "u16", "i32", "u32", "i64", "u64"])
@pytest.mark.parametrize("divisor", [1, 2, 3, 7, 1024])
def test_avg_of_the_least_and_the_greatest_integers(dtype: str, divisor: int) -> None:
    low, high = INTEGERS[dtype]
    values = [low, low + 1, -divisor - 1, -divisor, -1, 0, 1, divisor, high - 1, high]
    values = [value for value in values if value >= low]
    operand = np.array(values, DTYPES[dtype]).view(np.uint8)
    got = fold(DTYPE_NAMES.index(dtype), RedOp.AVG, [operand], divisor).view(DTYPES[dtype])
    assert got.tolist() == [toward_zero(value, divisor) for value in values]


def test_avg_divides_the_wrapped_sum() -> None:
    assert folded("i8", RedOp.AVG, [[100], [100]], 2).tolist() == [-28]  # 200 wraps to -56


def as_f16(value: float) -> float:
    """The nearest 16-bit float, by the standard library."""
    return float(struct.unpack("<e", struct.pack("<e", value))[0])


def as_bf16(value: float) -> float:
    """The nearest bfloat16, ties to even: the upper half of a 32-bit float."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    bits += 0x7FFF + (bits >> 16 & 1)
    return float(struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))[0])


@pytest.mark.parametrize(("dtype", "rounded"), [("f16", as_f16), ("bf16", as_bf16)])
@examples(100)
@given(st.lists(st.integers(-2000, 2000).map(lambda n: n / 16), min_size=2, max_size=6))
def test_16_bit_floats_are_rounded_after_every_step(
    dtype: str, rounded: Callable[[float], float], numbers: list[float]
) -> None:
    numbers = [rounded(number) for number in numbers]
    wanted = reduce(lambda a, b: rounded(a + b), numbers)  # sums of these are exact in f32
    assert float(folded(dtype, RedOp.SUM, [[n] for n in numbers])[0]) == wanted


def test_rounding_at_the_end_would_be_another_result() -> None:
    assert folded("f16", RedOp.SUM, [[2048], [1], [1]]).tolist() == [2048]  # 2049 is no f16, and ties go to even
    assert folded("bf16", RedOp.SUM, [[256], [1], [1]]).astype(float).tolist() == [256]


def test_folding_goes_from_the_left() -> None:
    big = float(1 << 53)
    assert folded("f64", RedOp.SUM, [[big], [1], [1]]).tolist() == [big]
    assert folded("f64", RedOp.SUM, [[1], [1], [big]]).tolist() == [big + 2]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("redop", [RedOp.MIN, RedOp.MAX, RedOp.SUM, RedOp.PROD])
def test_nan_wins_on_either_side(dtype: str, redop: RedOp) -> None:
    nan = float("nan")
    got = folded(dtype, redop, [[nan, 1, nan, 1], [1, nan, nan, 2], [0, 0, 0, 3]]).astype(float)
    assert np.isnan(got).tolist() == [True, True, True, False]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("redop", [RedOp.MIN, RedOp.MAX])
def test_the_later_of_two_zeros_is_chosen_on_every_machine(dtype: str, redop: RedOp) -> None:
    assert np.signbit(folded(dtype, redop, [[0.0, -0.0, -0.0], [-0.0, 0.0, 0.0], [-0.0, 0.0, -0.0]])).tolist() == [
        *(True, False, True)
    ]


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
def test_infinities(dtype: str) -> None:
    inf = float("inf")
    rows = [[inf, inf, -inf], [-inf, 1, 2]]
    assert np.isnan(folded(dtype, RedOp.SUM, rows).astype(float)).tolist() == [True, False, False]
    assert folded(dtype, RedOp.MIN, rows).astype(float).tolist() == [-inf, 1, -inf]
    assert folded(dtype, RedOp.MAX, rows).astype(float).tolist() == [inf, inf, 2]


def test_avg_of_floats_divides_in_the_width_of_the_sum() -> None:
    assert folded("f32", RedOp.AVG, [[1], [1], [-1]], 3).tolist() == [float(np.float32(1) / np.float32(3))]
    assert folded("f64", RedOp.AVG, [[1], [1], [-1]], 3).tolist() == [1 / 3]
    assert folded("f16", RedOp.AVG, [[1], [1], [-1]], 3).astype(float).tolist() == [as_f16(1 / 3)]


def test_one_operand_is_itself_and_operands_stay_as_they_are() -> None:
    operands = [np.arange(8, dtype=np.uint8), np.full(8, 3, np.uint8)]
    before = [operand.copy() for operand in operands]
    fold(DTYPE_NAMES.index("u8"), RedOp.SUM, operands)
    assert fold(DTYPE_NAMES.index("u8"), RedOp.SUM, operands[:1]).tolist() == list(range(8))
    assert all((a == b).all() for a, b in zip(operands, before, strict=True))


def as_fractions(numbers: Sequence[complex]) -> list[tuple[Fraction, Fraction]]:
    return [(Fraction(z.real), Fraction(z.imag)) for z in numbers]


@pytest.mark.parametrize(("dtype", "part"), [("c64", np.float32), ("c128", np.float64)])
def test_complex_products_round_every_step(dtype: str, part: type) -> None:
    """Step by step in exact fractions, each rounded by itself: a fused step would have other bits."""
    rng = np.random.default_rng(7)
    a, b = (rng.normal(size=500) + 1j * rng.normal(size=500) for _ in "ab")
    x, y = (z.astype(DTYPES[dtype]) for z in (a, b))

    def rounded(value: Fraction) -> Fraction:
        return Fraction(float(part(float(value))))  # products of f32 are exact in f64, and so are rounded once

    got = folded(dtype, RedOp.PROD, [x.tolist(), y.tolist()])
    for z, (p, q), (r, s) in zip(got.tolist(), as_fractions(x.tolist()), as_fractions(y.tolist()), strict=True):
        assert Fraction(z.real) == rounded(rounded(p * r) - rounded(q * s))
        assert Fraction(z.imag) == rounded(rounded(p * s) + rounded(q * r))


def test_complex_sums_and_averages_are_those_of_their_parts() -> None:
    rows = [[1 + 2j, 3 - 1j], [0.5 - 4j, 1j], [2, 2 + 2j]]
    assert folded("c64", RedOp.SUM, rows).tolist() == [3.5 - 2j, 5 + 2j]
    assert folded("c128", RedOp.AVG, rows[:2], 2).tolist() == [0.75 - 1j, 1.5 + 0j]


@with_rows(
    *((redop, [False, True, True, True]) for redop in (RedOp.SUM, RedOp.MAX, RedOp.BOR)),
    *((redop, [False, False, False, True]) for redop in (RedOp.PROD, RedOp.MIN, RedOp.BAND)),
    (RedOp.BXOR, [False, True, True, False]),
)
def test_of_bools_any_or_all_are_true(redop: RedOp, wanted: list[bool]) -> None:
    rows = [[False, False, True, True], [False, True, False, True]]
    assert folded("bool", redop, rows).tolist() == wanted
    two = fold(DTYPE_NAMES.index("bool"), redop, [np.full(4, 2, np.uint8) * row for row in np.array(rows, np.uint8)])
    assert two.tolist() == wanted  # the bytes are 0 and 1, whatever truth looked like


def test_there_is_no_order_of_complex_numbers_and_there_are_no_bits_of_floats() -> None:
    assert reductions(["f32", "i16"], ["sum", "bxor"]) == [("f32", "sum"), ("i16", "sum"), ("i16", "bxor")]
    for dtypes, redops, why in (
        (["c64"], ["sum", "max"], "there is no max of c64: complex numbers have no order: use sum, prod, avg"),
        (["f32", "i32"], ["bor"], "there is no bor of f32: bitwise operations take integers and bools"),
        (["bool"], ["avg"], "there is no avg of bool"),
        (["f8"], ["sum"], "unknown dtype 'f8': choose from u8"),
    ):
        with pytest.raises(ArgumentError, match=why):
            reductions(dtypes, redops)
