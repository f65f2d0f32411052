"""What goes into a checked call, and what must come out: plain NumPy that knows nothing of plans.

As in nccl-tests, inputs are such that every reduction is exact in whatever order it is folded, so that a
result is right bit by bit or wrong:

- bytes that are only moved take all 256 values;
- integers take all values in sums, minima and maxima (sums wrap) and all odd ones in products, so that no
  later factor hides an earlier one;
- floats take whole numbers small enough for their sum, and in products signed ones and twos;
- complex numbers take such floats as parts, and in products powers of 2 + i turned by right angles;
- of bools one rank's at most differs from all others', as whether any or all are true depends on that one;
- averages take multiples of the number of ranks where the dtype has room for their sum; where it has not, the
  exact sum is divided once: floats round, integers truncate toward zero.

Every other element of sums, products and averages of f32 and f64, and of numbers made of them, over three ranks or more
shows the order instead, in which it was folded (`reveals_order`); one of a complex product shows over two ranks already
that every step is rounded. There a result is right that has the bits of the declared fold: in rank order from
the left, clusters apart. Where an algorithm declares no more than that its ranks fold alike, ranks have to hold the
same bits (`held_by_all`), and no more error than any order could give them (`slack`).

Inputs differ by seed, rank and element, and at every element from call to call, so that what an earlier call
left behind is wrong. ``serial`` numbers the calls; which elements are exact alternates with it. Large blocks repeat
after `PERIOD` elements, which a check costs no more for: no power of two is a multiple of it, so that a block, a
chunk or a slice that lies in the place of another one is wrong.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import COLLECTIVES, block_sizes, buffers, postcondition
from cxlemu.choices import DTYPE_KINDS
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, RANK_ORDER, Call

Array = NDArray[Any]

# Whole numbers up to 2^bits and their negatives are exact (i64: and their differences).
_EXACT_BITS = {
    "u8": 8,
    "i8": 7,
    "u16": 16,
    "i16": 15,
    "u32": 32,
    "i32": 31,
    "u64": 62,
    "i64": 62,
    "f16": 11,
    "bf16": 8,
    "f32": 24,
    "f64": 53,
}
_PARTS = {"c64": "f32", "c128": "f64"}  # of complex numbers
_MOST_TWOS = 12  # in one product: 2^12 is exact in every float dtype
_REVEALING = {
    "f32": 128,
    "f64": 1 << 16,
    "c64": 128,
    "c128": 1 << 16,
}  # where order shows: ranks at most, so that stale bytes do as well
_LOST_BITS = 4  # of an element that is added to another rank's large one
_SHARED = 1 << 31  # seeds what ranks have in common: no rank
PERIOD = 2 * 32_771  # twice a prime: every second element shows the order


def _complex_product(a: Array, b: Array) -> Array:
    """(ac - bd) + (ad + bc)i with every step rounded; NumPy's own fuses steps on some machines."""
    real, imag = a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real
    return np.stack([real, imag], axis=-1).view(a.dtype)[..., 0]


_COMBINE: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "avg": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
_TRUTH = {
    **dict.fromkeys(("sum", "max", "bor"), np.logical_or),
    **dict.fromkeys(("prod", "min", "band"), np.logical_and),
    "bxor": np.logical_xor,
}


def check_exact(call: Call) -> None:
    """Check that the sums of a call can be compared bit by bit."""
    call = _in_parts(call)
    wraps = call.redop == "sum" and not _is_float(call.dtype)
    if call.redop in ("sum", "avg") and not wraps and _steps(call)[0] == 0:
        most = (1 << _EXACT_BITS[call.dtype]) - 1
        raise ArgumentError(
            f"{call.redop} of {call.dtype} over {call.ranks} ranks cannot be checked bit by bit: "
            f"take at most {most} ranks or a wider dtype"
        )


def _in_parts(call: Call) -> Call:
    """Sums of complex numbers are sums of twice as many floats, their parts; every other call is what it is."""
    if call.dtype not in _PARTS or call.redop not in ("sum", "avg"):
        return call
    counts = call.counts
    if COLLECTIVES[call.collective].uneven and not counts:  # those of whole elements, which floats would have otherwise
        counts = tuple(block_sizes(call)[0].tolist())  # only reduce_scatterv reduces: a block for each rank
    return replace(call, dtype=_PARTS[call.dtype], counts=counts)


def _steps(call: Call) -> tuple[int, int]:
    """How many steps from zero an input may be, and the size of a step."""
    top = (1 << _EXACT_BITS[call.dtype]) - 1
    if call.redop not in ("sum", "avg"):
        return top, 1
    step = call.ranks if call.redop == "avg" and call.ranks**2 <= top else 1
    return top // (step * call.ranks) // (8 if reveals_order(call) else 1), step


def reveals_order(call: Call) -> bool:
    """Whether some of the call's results tell in which order they were folded."""
    call = _in_parts(call)
    reduces = COLLECTIVES[call.collective].reduces and call.redop in ("sum", "prod", "avg")
    return reduces and 3 <= call.ranks <= _REVEALING.get(call.dtype, 0)


def takes_input(call: Call, rank: int) -> bool:
    """Whether the call takes an input from this rank: where only the root has one, from the root alone."""
    return COLLECTIVES[call.collective].brings(rank, call.root)


def gives_output(call: Call, rank: int) -> bool:
    """Whether the call gives an output to this rank: where only one rank gets one, to that rank alone."""
    return COLLECTIVES[call.collective].gets(rank, call.root, call.ranks)


def inputs(call: Call, rank: int, seed: int, serial: int) -> Array | None:
    """Make a rank's input, a row per block, or None where it has none; ``serial``, the call's number, changes it
    all."""
    if not takes_input(call, rank):
        return None
    if (parts := _in_parts(call)) != call:
        values = inputs(parts, rank, seed, serial)
        assert values is not None
        return values.view(DTYPES[call.dtype])
    return _repeated(_period(call, rank, seed, serial), _shape(call, buffers(call, rank)[0].nbytes)[1])


def _repeated(period: Array, count: int) -> Array:
    if period.shape[1] == count:
        return period
    whole = np.empty((period.shape[0], count), period.dtype)
    for begin in range(0, count, PERIOD):
        whole[:, begin : begin + PERIOD] = period[:, : count - begin]
    return whole


def _period(call: Call, rank: int, seed: int, serial: int) -> Array:
    """Make a rank's input up to where it begins to repeat, for a call in parts that takes one from it."""
    dtype, (rows, count) = DTYPES[call.dtype], _shape(call, buffers(call, rank)[0].nbytes)
    shape = rows, min(count, PERIOD)
    random = np.random.default_rng((seed, rank))
    if not COLLECTIVES[call.collective].reduces:
        moved = random.integers(0, 256, (shape[0], shape[1] * dtype.itemsize), np.uint8)
        moved += np.uint8(serial % 256)
        return moved.view(dtype)
    raw = random.integers(0, 2**62, shape, np.int64)
    found = _exact(call, raw, rank, serial)
    if reveals_order(call) or (dtype.kind == "c" and call.ranks < 3):
        first = _first_revealing(serial)
        shown = _factors_in_order if call.redop == "prod" else _terms_in_order
        found[:, first::2] = shown(call, raw[:, first::2], rank, seed, serial)
    return found


def _first_revealing(serial: int) -> int:
    """The first of a block's elements that show the order: this one and every second one from there."""
    return 1 - serial % 2


def _exact(call: Call, raw: Array, rank: int, serial: int) -> Array:
    """Make inputs whose reduction is exact in whatever order they are folded."""
    dtype = DTYPES[call.dtype]
    if dtype.kind == "b":
        return _truths(call, raw, rank, serial)
    if call.redop == "prod":
        return _turns(call, raw, rank, serial) if dtype.kind == "c" else _factors(call, raw, rank, serial)
    if call.redop != "avg" and not _is_float(call.dtype):
        return (raw + serial).astype(dtype)  # its low bits
    top, step = _steps(call)
    bottom = 0 if dtype.kind == "u" else -top
    return (((raw + serial) % (top - bottom + 1) + bottom) * step).astype(dtype)


def _factors(call: Call, raw: Array, rank: int, serial: int) -> Array:
    if not _is_float(call.dtype):
        return (raw + 2 * serial | 1).astype(DTYPES[call.dtype])
    sign = 1 - 2 * ((raw + serial) % 2)
    element = np.arange(raw.size).reshape(raw.shape)
    may_be_two = (rank + element) % -(-call.ranks // _MOST_TWOS) == 0
    return (sign * np.where(may_be_two, 1 + (raw // 2 + serial) % 2, 1)).astype(DTYPES[call.dtype])


def _turns(call: Call, raw: Array, rank: int, serial: int) -> Array:
    """Make complex factors: ones, and few of a kind whose powers are whole numbers without a part that is zero."""
    element = np.arange(raw.size).reshape(raw.shape)
    turns = np.array([2 + 1j, -1 + 2j, -2 - 1j, 1 - 2j])
    counts = (rank + element) % -(-call.ranks // _MOST_TWOS) == 0
    return np.where(counts, turns[(raw + serial) % 4], 1).astype(DTYPES[call.dtype])


def _truths(call: Call, raw: Array, rank: int, serial: int) -> Array:
    """Make bools whose result changes with every call: that of one rank decides it, or in bxor that of rank 0."""
    element = np.arange(raw.size).reshape(raw.shape)
    if call.redop == "bxor":
        return np.asarray((raw + (serial if rank == 0 else 0)) % 2 == 1)
    decides, result = element % call.ranks == rank, (element + serial) % 2 == 1
    others = call.redop in ("prod", "min", "band")  # what does not matter there
    return np.where(decides, result, others)


def _terms_in_order(call: Call, raw: Array, rank: int, seed: int, serial: int) -> Array:
    """Make summands that show the order: of two neighbours one has a large number and the other its negative.

    The rest have small ones, whose sum is exact. So what is added while the large one is there loses its last bits, and
    what is added before or after does not; and elements after each other have it with other ranks. Where two of them
    make a sum, order does not matter: a + b is b + a. What changes from call to call is more than all rounding.
    """
    bits, rank_bits = _EXACT_BITS[call.dtype], (call.ranks - 1).bit_length()
    small_bits, low_bits = bits - rank_bits, rank_bits + 3 + _LOST_BITS
    steps = 1 << (small_bits - 1 - low_bits)
    high, low = (raw >> low_bits) + serial, raw % (1 << low_bits) | 1
    small = (1 << (small_bits - 1)) + (high % steps << low_bits) + low
    common = np.random.default_rng((seed, _SHARED)).integers(0, 1 << 30, raw.shape)
    large = (1 << (bits + _LOST_BITS - 1)) + ((common + serial) % 4 << bits)
    first = np.arange(raw.shape[-1]) % (call.ranks - 1)  # of the two
    terms = np.where(first == rank, large, np.where(first == rank - 1, -large, small))
    return (terms * 0.5).astype(DTYPES[call.dtype])  # small ones are odd, and so none of them is a whole number


def _factors_in_order(call: Call, raw: Array, rank: int, seed: int, serial: int) -> Array:
    """Make factors that show the order: all bits of the mantissa count, so that every product is rounded.

    They are so small that products of all are finite.
    """
    bits, rank_bits = _EXACT_BITS[_PARTS.get(call.dtype, call.dtype)], (call.ranks - 1).bit_length()
    low_bits = rank_bits + 4
    steps = 1 << (bits - 1 - max(1, rank_bits - 5) - low_bits)
    part = ((((raw >> low_bits) + serial) % steps) << low_bits) + (raw % (1 << low_bits) | 1)
    sign = 1 - 2 * ((raw >> 61) % 2)
    factors = sign * (1 + part / (1 << (bits - 1)))
    if call.dtype in _PARTS:
        factors = factors + factors[..., ::-1] * (1j / (1 << max(1, rank_bits - 5)))
    return factors.astype(DTYPES[call.dtype])


def expected(call: Call, rank: int, seed: int, serial: int) -> Array | None:
    """Compute a rank's output in plain NumPy, with a row per block; None where it gets none."""
    collective = COLLECTIVES[call.collective]
    if not gives_output(call, rank):
        return None
    if (parts := _in_parts(call)) != call:
        values = expected(parts, rank, seed, serial)
        assert values is not None
        return values.view(DTYPES[call.dtype])

    if not collective.basic:
        return _by_contract(call, rank, seed, serial)
    own = rank if collective.input_blocks == "ranks" else 0
    sources = [call.root] if collective.rooted_input else range(call.ranks)
    blocks = [_period(call, source, seed, serial)[own : own + 1] for source in sources]
    values = _reduced(call, blocks) if collective.reduces else np.concatenate(blocks)
    nbytes = buffers(call, rank)[1].nbytes
    return _repeated(values, nbytes // values.itemsize // len(values)) if nbytes else values


def _shape(call: Call, nbytes: int) -> tuple[int, int]:
    """A row for each block, or a single one where blocks differ."""
    count = nbytes // DTYPES[call.dtype].itemsize
    rows = 1 if COLLECTIVES[call.collective].uneven or not call.nbytes else max(nbytes // call.nbytes, 1)
    return rows, count // rows


def _by_contract(call: Call, rank: int, seed: int, serial: int) -> Array:
    """The output as a contract promises it, piece by piece: blocks that differ, or what some ranks alone contribute."""
    dtype, nbytes = DTYPES[call.dtype], buffers(call, rank)[1].nbytes
    found = np.empty(_shape(call, nbytes), dtype)
    given: dict[int, Array] = {}
    for piece in postcondition(call, rank):
        for source, _ in piece.contributions:
            if source not in given:
                theirs = inputs(call, source, seed, serial)
                assert theirs is not None
                given[source] = theirs.reshape(-1)
        begin, count = piece.at // dtype.itemsize, piece.nbytes // dtype.itemsize
        parts = [given[source][offset // dtype.itemsize :][:count] for source, offset in piece.contributions]
        found.reshape(-1)[begin : begin + count] = _reduced(call, parts) if call.redop != "none" else parts[0]
    return found


def _reduced(call: Call, parts: Iterable[Array]) -> Array:
    """Reduce parts in their order, clusters apart.

    Integers wrap in int64 as in narrower types; f16 and bf16 are exact in f64.
    """
    dtype = DTYPES[call.dtype]
    combine = _complex_product if dtype.kind == "c" else (_TRUTH if dtype.kind == "b" else _COMBINE)[call.redop]
    exact = {"float": np.float64, "integer": np.int64, "bool": np.bool_}
    wide = dtype if call.dtype in _REVEALING else np.dtype(exact[DTYPE_KINDS[call.dtype]])
    widened = [part.astype(wide) for part in parts]
    clusters = [
        reduce(combine, widened[first : first + call.cluster]) for first in range(0, len(widened), call.cluster)
    ]
    total = reduce(combine, clusters) if call.cluster > 1 else reduce(combine, widened)
    if call.redop == "avg":
        total = total / wide.type(call.ranks) if _is_float(call.dtype) else np.sign(total) * (abs(total) // call.ranks)
    return np.asarray(total.astype(dtype))


def held_by_all(call: Call) -> bool:
    """Whether all ranks get the same reduction, and so the same bits in whatever order they fold."""
    return COLLECTIVES[call.collective].shared_result


def slack(call: Call, rank: int, seed: int, serial: int) -> Array | None:
    """By how much each element of a rank's output may differ from `expected`, f64; None: every bit is known.

    Sums and products of n numbers have, in whatever order they are made, an error of (n - 1) u / (1 - (n - 1) u) of the
    sum, or product, of their absolute values at most, where u is half the distance from 1 to the next number (Higham,
    Accuracy and Stability of Numerical Algorithms, 2002, chapters 3 and 4). So two orders differ by twice that. The
    product of two complex numbers errs by sqrt(5) u (Brent, Percival, Zimmermann, Math. Comp. 76, 2007).
    """
    call = _in_parts(call)
    if call.fold_order == RANK_ORDER or not reveals_order(call) or not gives_output(call, rank):
        return None
    combine = np.multiply if call.redop == "prod" else np.add
    contract = COLLECTIVES[call.collective]
    item, part = DTYPES[call.dtype].itemsize, _PARTS.get(call.dtype, call.dtype)
    wide = np.complex128 if part != call.dtype else np.float64
    if contract.basic:
        own = rank if contract.input_blocks == "ranks" else 0
        given = (_period(call, source, seed, serial)[own : own + 1] for source in range(call.ranks))
        total = reduce(combine, (np.abs(x.astype(wide)) for x in given))
        total = _repeated(total, buffers(call, rank)[1].nbytes // item)
    else:
        whole = (inputs(call, source, seed, serial) for source in range(call.ranks))
        sizes = [np.abs(x.astype(wide)) for x in whole if x is not None]
        total = np.zeros(_shape(call, buffers(call, rank)[1].nbytes))
        for piece in postcondition(call, rank):
            begin, count = piece.at // item, piece.nbytes // item
            parts = (sizes[source].reshape(-1)[offset // item :][:count] for source, offset in piece.contributions)
            total.reshape(-1)[begin : begin + count] = reduce(combine, parts)
    rounded = (call.ranks + 1) * 2.0 ** -_EXACT_BITS[part]  # a step more, in which avg divides
    if part != call.dtype:
        rounded *= 5**0.5
    bound = 2 * rounded / (1 - rounded) * total / (call.ranks if call.redop == "avg" else 1)
    if contract.basic:  # elsewhere blocks may begin at odd elements
        bound[:, 1 - _first_revealing(serial) :: 2] = 0
    return np.repeat(bound, item // DTYPES[part].itemsize, axis=1)  # for each part


def wrong_elements(got: Array, right: Array, slack: Array | None = None, held: Array | None = None) -> NDArray[np.intp]:
    """Return the ascending flat indices at which an output is wrong; ``held``, another rank's, must be equal in
    bits."""
    places = _other_bits(got, right)
    if slack is None:
        return places
    if got.dtype.kind == "c":  # its parts: places of either are places of both
        parts = [None if x is None else x.reshape(-1).view(x.real.dtype) for x in (got, right, held)]
        assert parts[0] is not None and parts[1] is not None
        return np.unique(wrong_elements(parts[0], parts[1], slack, parts[2]) // 2)
    with np.errstate(invalid="ignore"):
        far = np.abs(got.reshape(-1)[places].astype(np.float64) - right.reshape(-1)[places].astype(np.float64))
    places = places[~(far <= slack.reshape(-1)[places])]
    return places if held is None else np.union1d(places, _other_bits(got, held))


def _other_bits(one: Array, other: Array) -> NDArray[np.intp]:
    words = max(1, one.dtype.itemsize // 8)
    bits = f"u{one.dtype.itemsize // words}"
    differ = one.reshape(-1).view(bits) != other.reshape(-1).view(bits)
    return np.flatnonzero(differ.reshape(-1, words).any(axis=1))


def _is_float(dtype: str) -> bool:
    return DTYPE_KINDS[dtype] == "float"
