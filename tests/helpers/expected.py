"""What collectives must compute, in plain NumPy: independent of plans, contracts and cxlemu.plan.reduction."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call, Plan

NOTHING = np.empty(0, np.uint8)
COLLECTIVES = (
    "all_gather", "broadcast", "gather", "scatter", "all_reduce", "reduce_scatter", "reduce", "all_to_all", "barrier",
    "send",
)  # fmt: skip
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
OPS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor")


def input_bytes(call: Call, rank: int) -> int:
    if call.collective == "barrier" or (call.collective in ("broadcast", "scatter", "send") and rank != call.root):
        return 0
    return call.nbytes * (call.ranks if call.collective in ("scatter", "reduce_scatter", "all_to_all") else 1)


def some_inputs(call: Call, rng: np.random.Generator) -> list[Bytes]:
    """Any bytes, as many as each rank puts in."""
    return [rng.integers(0, 256, input_bytes(call, rank), np.uint8) for rank in range(call.ranks)]


def assert_right(world: Any, program: Sequence[tuple[Plan, Sequence[Bytes]]]) -> None:
    """Run calls one after another in a lockstep world, and look at every rank's output."""
    for (plan, inputs), outputs in zip(program, world.calls(program), strict=True):
        for got, wanted in zip(outputs, expected(plan.call, inputs), strict=True):
            assert got.tobytes() == wanted.tobytes()


def expected(call: Call, inputs: Sequence[Bytes]) -> list[Bytes]:
    """Every rank's output; of ranks that get nothing, zero bytes."""

    def to_rank(rank: int) -> list[Bytes]:
        """Block ``rank`` of everyone's input."""
        return [x[rank * call.nbytes :][: call.nbytes] for x in inputs]

    ranks, root = range(call.ranks), call.root
    match call.collective:
        case "all_gather":
            return [np.concatenate(inputs) for _ in ranks]
        case "broadcast":
            return [inputs[root] for _ in ranks]
        case "gather":
            return [np.concatenate(inputs) if rank == root else NOTHING for rank in ranks]
        case "scatter":
            return [to_rank(rank)[root] for rank in ranks]
        case "all_to_all":
            return [np.concatenate(to_rank(rank)) for rank in ranks]
        case "all_reduce":
            return [fold(call, inputs) for _ in ranks]
        case "reduce":
            return [fold(call, inputs) if rank == root else NOTHING for rank in ranks]
        case "reduce_scatter":
            return [fold(call, to_rank(rank)) for rank in ranks]
        case "send":
            return [inputs[root] if rank == (root + 1) % call.ranks else NOTHING for rank in ranks]
        case "barrier":
            return [NOTHING for _ in ranks]
    raise AssertionError(call.collective)


def fold(call: Call, operands: Sequence[Bytes]) -> Bytes:
    """In rank order; on clusters each of them by itself first."""
    if call.cluster == 1:
        return fold_left(operands, call.dtype, call.redop)
    of_each = "sum" if call.redop == "avg" else call.redop
    starts = range(0, call.ranks, call.cluster)
    partial = [fold_left(operands[start : start + call.cluster], call.dtype, of_each) for start in starts]
    return fold_left(partial, call.dtype, call.redop, count=call.ranks)


def fold_left(operands: Sequence[Bytes], dtype: str, op: str, *, count: int | None = None) -> Bytes:
    """In this order; 16-bit floats are rounded after every step. ``count``: of an average, if not that of operands."""
    arrays = [np.frombuffer(operand.tobytes(), DTYPES[dtype]) for operand in operands]
    with np.errstate(all="ignore"):
        result = reduce(lambda a, b: _combine(a, b, op), arrays)
        if op == "avg":
            result = _divide(result, count or len(arrays))
    return np.frombuffer(result.tobytes(), np.uint8)


def _combine(a: NDArray[Any], b: NDArray[Any], op: str) -> NDArray[Any]:
    if a.dtype.kind == "b":
        x, y = a.view(np.uint8) != 0, b.view(np.uint8) != 0
        return x | y if op in ("sum", "max", "bor") else x ^ y if op == "bxor" else x & y
    if a.dtype.kind == "c":
        parts = [z.view(a.real.dtype).reshape(-1, 2).T for z in (a, b)]
        (p, q), (r, s) = parts
        re, im = (p * r - q * s, p * s + q * r) if op == "prod" else (p + r, q + s)
        return np.ascontiguousarray(np.stack([re, im], axis=1)).view(a.dtype).reshape(-1)
    if op in ("band", "bor", "bxor"):
        return {"band": a & b, "bor": a | b, "bxor": a ^ b}[op]
    wide = np.dtype(np.float32) if a.dtype in (DTYPES["f16"], DTYPES["bf16"]) else a.dtype
    x, y = a.astype(wide), b.astype(wide)
    if op in ("sum", "avg"):
        return (x + y).astype(a.dtype)
    if op == "prod":
        return (x * y).astype(a.dtype)
    chosen = np.where((x < y) if op == "min" else (x > y), x, y)
    return np.where(x != x, x, chosen).astype(a.dtype)  # NaN wins: that of x here, that of y already


def _divide(total: NDArray[Any], count: int) -> NDArray[Any]:
    if total.dtype.kind == "c":
        return _divide(total.view(total.real.dtype), count).view(total.dtype)
    if total.dtype.kind == "u":
        return total // np.array(count, np.uint64).astype(total.dtype) if count < 128 else total // count
    if total.dtype == DTYPES["bf16"] or total.dtype.kind == "f":
        wide = np.dtype(np.float64 if total.dtype.itemsize == 8 else np.float32)
        return (total.astype(wide) / wide.type(count)).astype(total.dtype)
    unsigned = total.view(f"u{total.dtype.itemsize}")  # magnitudes: that of the least number fits only here
    magnitude = np.where(total < 0, 0 - unsigned, unsigned) // unsigned.dtype.type(count)
    result: NDArray[Any] = np.where(total < 0, 0 - magnitude, magnitude)
    return result.astype(unsigned.dtype).view(total.dtype)


def same(got: Bytes, wanted: Bytes, dtype: str = "u8") -> bool:
    """Bit for bit, but for what IEEE 754 leaves open: which NaN it is, and which zero min and max choose."""
    if got.tobytes() == wanted.tobytes():
        return True
    if DTYPES[dtype].kind in "iub" or got.nbytes != wanted.nbytes:
        return False
    part = {"c64": DTYPES["f32"], "c128": DTYPES["f64"]}.get(dtype, DTYPES[dtype])
    a, b = (np.frombuffer(x.tobytes(), part).astype(np.float64) for x in (got, wanted))
    return np.array_equal(a, b, equal_nan=True)
