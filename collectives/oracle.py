"""What goes into a checked call, and what must come out: plain NumPy that knows nothing of plans.

As in nccl-tests, inputs are such that every reduction is exact in whatever order it is folded, so that a
result is right bit by bit or wrong:

- bytes that are only moved take all 256 values;
- integers take all values in sums, minima and maxima (sums wrap) and all odd ones in products, so that no
  later factor hides an earlier one;
- floats take whole numbers small enough for their sum, and in products signed ones and twos;
- averages take multiples of the number of ranks where the dtype has room for their sum; where it has not, the
  exact sum is divided once: floats round, integers truncate toward zero.

Inputs differ by seed, rank and element, and at every element from call to call, so that what an earlier call
left behind is wrong. ``serial`` numbers the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Call

Array = NDArray[Any]

# Whole numbers up to 2^bits and their negatives are exact (i64: and their differences).
_EXACT_BITS = {"u8": 8, "i8": 7, "i32": 31, "i64": 62, "f16": 11, "bf16": 8, "f32": 24, "f64": 53}
_MOST_TWOS = 12  # in one product: 2^12 is exact in every float dtype


def check_exact(call: Call) -> None:
    """Raises ArgumentError where the sum of any numbers but zeros could be inexact."""
    wraps = call.redop == "sum" and not _is_float(call.dtype)
    if call.redop in ("sum", "avg") and not wraps and _steps(call)[0] == 0:
        most = (1 << _EXACT_BITS[call.dtype]) - 1
        raise ArgumentError(
            f"{call.redop} of {call.dtype} over {call.ranks} ranks cannot be checked bit by bit: "
            f"take at most {most} ranks or a wider dtype"
        )


def _steps(call: Call) -> tuple[int, int]:
    """(how many steps from zero an input may be, the size of a step)."""
    top = (1 << _EXACT_BITS[call.dtype]) - 1
    if call.redop not in ("sum", "avg"):
        return top, 1
    step = call.ranks if call.redop == "avg" and call.ranks**2 <= top else 1
    return top // (step * call.ranks), step


def takes_input(call: Call, rank: int) -> bool:
    collective = COLLECTIVES[call.collective]
    return collective.moves_data and (rank == call.root or not collective.rooted_input)


def gives_output(call: Call, rank: int) -> bool:
    collective = COLLECTIVES[call.collective]
    return collective.moves_data and (rank == call.root or not collective.rooted_output)


def inputs(call: Call, rank: int, seed: int, serial: int) -> Array | None:
    """A rank's input as one row per block, or None where the call takes none from this rank."""
    collective = COLLECTIVES[call.collective]
    if not takes_input(call, rank):
        return None
    blocks = call.ranks if collective.input_blocks == "ranks" else 1
    shape, dtype = (blocks, call.nbytes // DTYPES[call.dtype].itemsize), DTYPES[call.dtype]
    random = np.random.default_rng((seed, rank))
    if not collective.reduces:
        moved = random.integers(0, 256, (blocks, call.nbytes), np.uint8)
        moved += np.uint8(serial % 256)
        return moved.view(dtype)
    raw = random.integers(0, 2**62, shape, np.int64)
    if call.redop == "prod":
        return _factors(call, raw, rank, serial)
    if call.redop != "avg" and not _is_float(call.dtype):
        return (raw + serial).astype(dtype)  # its low bits
    top, step = _steps(call)
    bottom = 0 if call.dtype == "u8" else -top
    return (((raw + serial) % (top - bottom + 1) + bottom) * step).astype(dtype)


def _factors(call: Call, raw: Array, rank: int, serial: int) -> Array:
    if not _is_float(call.dtype):
        return (raw + 2 * serial | 1).astype(DTYPES[call.dtype])
    sign = 1 - 2 * ((raw + serial) % 2)
    element = np.arange(raw.size).reshape(raw.shape)
    may_be_two = (rank + element) % -(-call.ranks // _MOST_TWOS) == 0
    return (sign * np.where(may_be_two, 1 + (raw // 2 + serial) % 2, 1)).astype(DTYPES[call.dtype])


def expected(call: Call, rank: int, seed: int, serial: int) -> Array | None:
    """A rank's output as one row per block, or None where the call gives none to this rank."""
    collective = COLLECTIVES[call.collective]
    if not gives_output(call, rank):
        return None

    def block(source: int, number: int) -> Array:
        theirs = inputs(call, source, seed, serial)
        assert theirs is not None
        return theirs[number : number + 1]

    own = rank if collective.input_blocks == "ranks" else 0
    if collective.rooted_input:
        return block(call.root, own)
    if not collective.reduces:
        return np.concatenate([block(source, own) for source in range(call.ranks)])
    return _reduced(call, lambda source: block(source, own))


def _reduced(call: Call, block: Callable[[int], Array]) -> Array:
    """Combined in a type that holds every partial result exactly; int64 wraps as all narrower integers do."""
    combine = {"prod": np.multiply, "min": np.minimum, "max": np.maximum}.get(call.redop, np.add)
    wide = np.float64 if _is_float(call.dtype) else np.int64
    total: Array = block(0).astype(wide)
    for source in range(1, call.ranks):
        total = combine(total, block(source).astype(wide))
    if call.redop == "avg":
        total = total / call.ranks if _is_float(call.dtype) else np.sign(total) * (abs(total) // call.ranks)
    return np.asarray(total.astype(DTYPES[call.dtype]))


def wrong_elements(got: Array, right: Array) -> NDArray[np.intp]:
    """The places, in the order of memory, at which not all bits are the same."""
    bits = f"u{right.dtype.itemsize}"
    return np.flatnonzero(got.reshape(-1).view(bits) != right.reshape(-1).view(bits))


def _is_float(dtype: str) -> bool:
    return dtype[0] in "fb"  # f16, f32, f64, bf16
