"""Turns a user's NumPy arrays into a call: which bytes, which dtype, in place or not. Refuses everything else."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.contracts import COLLECTIVES, buffers, check_counts
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import DTYPES, Call

Array = NDArray[Any]

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_NOTHING = np.empty(0, np.uint8)


class Bound(NamedTuple):
    """A call, and the bytes of this rank's two buffers, 1-D uint8 and empty where this rank has none."""

    call: Call
    input: Bytes
    output: Bytes


def dtype_name(array: Array, *, reduces: bool) -> str:
    """Return a plan's name of an array's dtype; "u8" for one without a name in a call that only moves bytes."""
    if (name := _NAMES.get(array.dtype)) is not None:
        return name
    if array.dtype.hasobject:
        raise ArgumentError(f"dtype {array.dtype} holds Python objects, which other processes cannot read")
    if reduces:
        raise ArgumentError(f"dtype {array.dtype} cannot be reduced: use one of {', '.join(map(str, _NAMES))}")
    return "u8"


def as_bytes(array: Array, role: str, *, writeable: bool = False) -> Bytes:
    """View an array's memory as bytes, without a copy."""
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{role} is a {type(array).__name__}: a NumPy array is needed")
    if not array.flags.c_contiguous:
        raise ArgumentError(f"{role} of shape {array.shape} is not contiguous: pass np.ascontiguousarray({role})")
    if writeable and not array.flags.writeable:
        raise ArgumentError(f"{role} is read-only: the result cannot be written to it")
    return np.asarray(array).reshape(-1).view(np.uint8) if array.nbytes else _NOTHING


def check_distinct(array: Array, role: str) -> None:
    """Check that every element has memory of its own. Raises ArgumentError: a result cannot be written to others."""
    span, apart = array.itemsize, True
    for step, count in sorted((abs(step), n) for step, n in zip(array.strides, array.shape, strict=True) if n > 1):
        apart, span = apart and step >= span, span + (count - 1) * step
    if apart or not array.size:
        return
    if array.nbytes <= span:  # strides alone do not say: two elements differ first in one of the axes
        parts = [array[(0,) * axis] for axis in range(array.ndim)]
        if not any(np.shares_memory(part[:1], part[1:]) for part in parts):
            return
    raise ArgumentError(f"{role} has elements that share memory, so the result cannot be written to it: pass a copy")


def bind(call: Call, rank: int, x: Array | None, out: Array | None) -> Bound:
    """Check this rank's arrays; return the call, in place where they lie in each other as in NCCL, and their bytes."""
    expected_in, expected_out = buffers(call, rank)
    source = as_bytes(x, "x") if x is not None and expected_in.nbytes else _NOTHING
    writes = not (COLLECTIVES[call.collective].one_buffer and rank == call.root)
    result = "x" if out is x else "out"  # as the user calls it
    target = as_bytes(out, result, writeable=writes) if out is not None and expected_out.nbytes else _NOTHING
    for role, array, have, need in (("x", x, source, expected_in), (result, out, target, expected_out)):
        if have.nbytes != need.nbytes:
            given = "no array" if array is None else f"{have.nbytes} bytes, shape {array.shape}"
            raise ArgumentError(
                f"{call.collective}: {role} of rank {rank} must have {need.nbytes} bytes "
                f"({need.nbytes // DTYPES[call.dtype].itemsize} x {call.dtype}), but has {given}"
            )
        if array is not None and need.nbytes and dtype_name(array, reduces=call.redop != "none") != call.dtype:
            raise ArgumentError(f"{call.collective}: {role} is {array.dtype}, but the call is of {call.dtype}")
    if x is not None and out is not None and source.nbytes and target.nbytes and x.dtype != out.dtype:
        raise ArgumentError(f"{call.collective}: out is {out.dtype}, but x is {x.dtype}")
    return Bound(_aliased(call, rank, source, target), source, target)


def _aliased(call: Call, rank: int, source: Bytes, target: Bytes) -> Call:
    """Mark the call in place where the buffers lie in each other as NCCL has it; refuse other overlaps."""
    if not source.nbytes or not target.nbytes:
        return call
    in_place = Call(**{**_fields(call), "in_place": True})
    inner, outer = buffers(in_place, rank)
    distance = source.ctypes.data - target.ctypes.data
    if distance == (inner.at if inner.inside else -outer.at):
        check_counts(in_place)
        return in_place
    if -source.nbytes < distance < target.nbytes:
        raise ArgumentError(
            f"{call.collective}: x and out of rank {rank} overlap; in place, the smaller one is the rank's own block "
            f"of the larger one"
        )
    return call


def _fields(call: Call) -> dict[str, Any]:
    return {name: getattr(call, name) for name in call.__dataclass_fields__}


def block_bytes(collective: str, ranks: int, x: Array | None, out: Array | None) -> int:
    """Compute the bytes of one block from the array that this rank has, ``out`` if ``x`` is None."""
    shape = COLLECTIVES[collective]
    for role, array, blocks in (("x", x, shape.input_blocks), ("out", out, shape.output_blocks)):
        if array is None:
            continue
        if not isinstance(array, np.ndarray):
            raise ArgumentError(f"{role} is a {type(array).__name__}: a NumPy array is needed")
        if blocks == "one":
            return array.nbytes
        if array.size % ranks:
            raise ArgumentError(
                f"{collective}: {role} has {array.size} elements, which do not divide among {ranks} ranks"
            )
        return array.nbytes // ranks
    what = "out, as x counts at the root alone" if collective == "scatter" else "x or out"
    raise ArgumentError(f"{collective}: this rank needs an array that gives its size: pass {what}")
