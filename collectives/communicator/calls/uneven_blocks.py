"""One side of an uneven call: an array with this rank's blocks, or a list of arrays, as one array of bytes in a row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from collectives.communicator.arrays import Array, check_distinct
from collectives.communicator.calls.arguments import Staging, as_array, made_like
from cxlemu.accelerator.arrays import ViewedArray, address_array, device_view, row_of
from cxlemu.accelerator.device import DeviceView
from cxlemu.errors import ArgumentError
from cxlemu.numbers import as_int

Counts = Sequence[int] | None
UNKNOWN = -1  # bytes


class BlocksGiven(NamedTuple):
    """What this rank sends, or takes: an array with its blocks, or a list with one array for each."""

    given: Any  # what the user passed, or None
    role: str  # the argument's name, for messages
    blocks: int  # how many blocks it has
    counts: Counts = None  # elements of each block, or None
    displs: Counts = None  # where each block begins, in elements, or None: one after another


class Blocks:
    """One side of a call, looked at: how many bytes each block has, and where they come from or go to."""

    def __init__(self, side: BlocksGiven, dtype: np.dtype[Any] | None = None, *, moved: bool = False) -> None:
        self._side, self.several = side, False
        self._view: DeviceView | None = None  # `_whole` then stands for it, by its address
        self._whole: Array | None = None
        self._parts: list[Array] | None = None
        self.dtype: np.dtype[Any] | None = None
        self.nbytes: list[int] | None = None
        self.even_nbytes = UNKNOWN  # of each block, where an array divides into blocks and nothing says how
        self._kin = side.given[0] if isinstance(side.given, (list, tuple)) and side.given else side.given
        if side.given is None:
            if side.displs is not None:
                raise ArgumentError(f"displacements of {side.role} say where its blocks lie: pass {side.role}")
            if side.counts is not None and dtype is not None:
                self.nbytes = [count * dtype.itemsize for count in numbers_of(side.counts, side, "counts")]
            return
        if isinstance(side.given, (list, tuple)):
            self._take_list(list(side.given), moved=moved)
        else:
            self._view = device_view(side.given, side.role)
            self._take_array(as_array(side.given, side.role) if self._view is None else address_array(self._view))

    def _take_list(self, given: list[Any], *, moved: bool) -> None:
        side = self._side
        if len(given) != side.blocks or side.counts is not None or side.displs is not None:
            raise ArgumentError(
                f"{side.role} is a list of {len(given)} arrays: pass one for each of {side.blocks} ranks, without "
                f"counts and displacements"
            )
        if any(device_view(part, side.role) is not None for part in given):
            raise ArgumentError(f"{side.role} is a list of arrays on a device: pass one that has its blocks in a row")
        parts = [as_array(part, side.role) for part in given]
        self.several = any(part.dtype != parts[0].dtype for part in parts)
        if self.several and not moved:
            raise ArgumentError(f"{side.role} is a list of arrays of several dtypes: pass arrays of one")
        for part in parts:
            self._check_dtype(part)
        self._parts, self.nbytes = parts, [part.nbytes for part in parts]
        self.dtype = np.dtype(np.uint8) if self.several else parts[0].dtype

    def _take_array(self, array: Array) -> None:
        side = self._side
        self._check_dtype(array)
        self._whole, self.dtype = array, array.dtype
        if side.counts is not None:
            counts = numbers_of(side.counts, side, "counts")
            self.nbytes = [count * array.dtype.itemsize for count in counts]
        elif side.blocks == 1:
            self.nbytes = [array.nbytes]
        elif array.size % side.blocks == 0 and side.displs is None:
            self.even_nbytes = array.nbytes // side.blocks

    def _check_dtype(self, array: Array) -> None:
        if array.dtype.hasobject:
            raise ArgumentError(f"{self._side.role} has Python objects, which other processes cannot read")

    def new_like(self, nbytes: int) -> Any:
        """Make a new array of ``nbytes`` bytes where this one lives: of whole rows of this one, or else of one axis."""
        shape = self._shape_like(nbytes)
        assert self.dtype is not None
        return made_like(self._kin, shape, self.dtype) if self._view is None else self._view.kin.like(shape)

    def _shape_like(self, nbytes: int) -> tuple[int, ...]:
        assert self.dtype is not None
        example = self._whole if self._parts is None else self._parts[0]
        rest = example.shape[1:] if example is not None and example.ndim else ()
        count, row = nbytes // max(self.dtype.itemsize, 1), int(np.prod(rest, dtype=np.int64))
        return (count // row, *rest) if row and count % row == 0 else (count,)

    def packed(self, nbytes: Sequence[int], staging: Staging, *, result: bool) -> Array | ViewedArray:
        """Return the blocks in one array: the user's, a part of it, or a private one that is staged."""
        side = self._side
        assert self.dtype is not None
        item = self.dtype.itemsize
        if self._parts is None:
            assert self._whole is not None
            counts = [count // max(item, 1) for count in nbytes]
            parts, first = self._cut(self._whole, counts)
            if self._view is not None:
                if first is None:
                    raise ArgumentError(f"{side.role} lives on a device, where blocks follow each other, without gaps")
                return row_of(self._view, first, sum(counts))
            if first is not None:
                return self._whole.reshape(-1)[first : first + sum(counts)]
            places = sorted((part.ctypes.data, part.nbytes) for part in parts if part.nbytes)
            if result and any(offset + size > after for (offset, size), (after, _) in pairwise(places)):
                raise ArgumentError(f"displacements of {side.role}: blocks overlap in {list(side.displs or ())}")
        else:
            parts = self._parts
            if [part.nbytes for part in parts] != list(nbytes):
                raise ArgumentError(
                    f"{side.role} has arrays of {[p.nbytes for p in parts]} bytes, not of {list(nbytes)}"
                )
        private, offset = np.empty(sum(nbytes) // max(item, 1) * item, np.uint8), 0
        for part in parts:
            if result and not part.flags.writeable:
                raise ArgumentError(f"{side.role} is read-only: the result cannot be written to it")
            if result and not part.flags.c_contiguous:
                check_distinct(part, side.role)
            place = private[offset : offset + part.nbytes].view(part.dtype).reshape(part.shape)
            offset += part.nbytes
            if part.size:
                (staging.after if result else staging.before).append((part, place) if result else (place, part))
        return private.view(self.dtype)

    def _cut(self, array: Array, counts: list[int]) -> tuple[list[Array], int | None]:
        """Cut an array into blocks; also return the element from which on they follow each other, if they do."""
        side, total = self._side, sum(counts)
        offsets = [sum(counts[:k]) for k in range(len(counts))]
        if side.displs is None:
            if total != array.size:
                raise ArgumentError(
                    f"{side.role} has {array.size} elements, but the blocks have {' + '.join(map(str, counts))}: pass "
                    f"an array of {total}, or displacements"
                )
            displs = offsets
        else:
            displs = numbers_of(side.displs, side, "displacements")
        if not array.flags.c_contiguous:
            if side.displs is None and len(counts) == 1:
                return [array], None
            raise ArgumentError(f"{side.role} of shape {array.shape} is not contiguous: pass np.ascontiguousarray")
        for offset, count in zip(displs, counts, strict=True):
            if offset + count > array.size:
                raise ArgumentError(f"{side.role} has {array.size} elements, but a block has {count} from {offset} on")
        flat = array.reshape(-1)
        parts = [flat[offset : offset + count] for offset, count in zip(displs, counts, strict=True)]
        first = next((offset for offset, count in zip(displs, counts, strict=True) if count), 0)
        if all(displs[k] == first + offsets[k] for k, count in enumerate(counts) if count):
            return parts, first
        return parts, None


def numbers_of(given: Sequence[int], side: BlocksGiven, what: str) -> list[int]:
    """Return counts or displacements as a list. Raises ArgumentError where they are no number of 0 or more a block."""
    try:
        numbers = [as_int(number) for number in given]
    except TypeError:
        numbers = []
    sound = [number for number in numbers if number is not None and number >= 0]
    if not len(sound) == len(numbers) == side.blocks:
        raise ArgumentError(
            f"{what} of {side.role} are {side.blocks} whole numbers of elements from 0 on, not {given!r}"
        )
    return sound
