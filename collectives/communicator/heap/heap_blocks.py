"""What the heap knows of an array in the pool: its place, its size, and the line that made it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.numbers import as_int
from cxlemu.units import counted, format_bytes

MOST_ELEMENTS = 1 << 48
PAGES = __file__.removesuffix("_blocks.py")  # heap.py and this one


@dataclass(frozen=True, slots=True)
class Leak:
    """An array that this rank still holds."""

    shape: tuple[int, ...]
    dtype: str  # the name of its elements' type
    nbytes: int
    where: str  # the line that made it, FILE:LINE
    freed_by: tuple[int, ...]  # the ranks that are known to have let it go, ascending

    def __str__(self) -> str:
        freed = f", freed by {counted(len(self.freed_by), 'other rank')}" if self.freed_by else ""
        return f"{self.dtype} {self.shape} of {format_bytes(self.nbytes)} made at {self.where}{freed}"


@dataclass(frozen=True, slots=True)
class HeapBlock:
    """The place that the heap gave to one array: the same on every rank but for ``where``."""

    number: int  # the arrays' count when this one was made, from 0
    at: int  # where it begins in each rank's strip, in bytes
    room: int  # what it occupies there, in bytes: whole lines
    shape: tuple[int, ...]
    dtype: str  # the name of its elements' type
    nbytes: int
    where: str  # the line that made it, FILE:LINE
    freed_by: set[int] = field(default_factory=set)  # the ranks that are known to have let it go
    local: bool = False  # this rank made it alone


def lines(nbytes: int) -> Bytes:
    """Allocate ``nbytes`` bytes of private memory that begin at a whole line; the kernel backs it as it is touched."""
    memory = np.empty(nbytes + LINE_BYTES, np.uint8)
    begin = -memory.ctypes.data % LINE_BYTES
    return memory[begin : begin + nbytes]


def shape_of(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape as a tuple. Raises ArgumentError for what is no shape."""
    single = not isinstance(shape, Iterable) or getattr(shape, "shape", None) == ()  # an array without axes
    sizes: Iterable[Any] = (shape,) if single else shape  # type: ignore[assignment]
    numbers = tuple(-1 if (number := as_int(each)) is None else number for each in sizes)
    if min(numbers, default=0) < 0:
        raise ArgumentError(f"{shape!r} is not the shape of an array: give whole numbers, 0 or more")
    if prod(numbers) >= MOST_ELEMENTS:
        raise ArgumentError(f"an array of shape {shape!r} is larger than any heap")
    return numbers


def caller() -> str:
    """Return the line outside the heap that makes an array, FILE:LINE."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PAGES):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
