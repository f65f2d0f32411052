"""The symmetric heap: arrays that live in the pool, which collectives publish where they lie instead of copying them.

    x = comm.heap.empty(1 << 22, np.float32)  # every rank makes the same arrays in the same order
    x[:] = ...
    comm.all_reduce(x)

Every array has the same place in each rank's own strip of the heap, and each strip lies on one card, as an array must.
An array is freed when it and all views of it were garbage collected. As that happens at other times on other ranks, its
place is used again when all ranks have let it go, which they tell each other whenever they make an array.

`comm.heap.local.empty` makes an array that only this rank knows of, without the others and in microseconds
(local_heap.py). `auto` treats it as any other array; `variant="zero_copy"` publishes it where it lies, which each rank
tells its peers by its doorbells.

In a call that chooses by itself all ranks pass the same array of their communicator's heap, or none does: ranks that
differ get a MismatchError, as for any other argument. Another communicator treats it as any other array.

Where NumPy's stores are this host's stores to the pool (shm, dax) the arrays are views of a card. Behind the emulated
cache NumPy's stores would go past the cache: there an array is private memory, and the call itself stores it to its
place in the heap, in full. Results are the same, and so is the plan; only the copy is not saved.
"""

from __future__ import annotations

import ctypes
import gc
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives.communicator.arrays import Array
from collectives.communicator.heap.heap_blocks import HeapBlock, Leak, caller, shape_of
from collectives.communicator.heap.heap_memory import Backing, StripMemory
from collectives.communicator.heap.local_heap import LocalBlocks, LocalHeap, size_class
from collectives.contracts import COLLECTIVES, buffers
from cxlemu.capacity.first_fit import FirstFit
from cxlemu.engines.streams import NO_PLACE
from cxlemu.errors import ArgumentError, MismatchError, PoolError
from cxlemu.memory.protocol import LINE_BYTES, Bytes
from cxlemu.plan import Call, InHeap
from cxlemu.pool.home import Home
from cxlemu.rounding import round_up
from cxlemu.units import counted, format_bytes
from cxlemu.unshared import Unshared

NAMED_LEAKS = 5
Changes: TypeAlias = NDArray[np.int64]  # one number
TRIMS = -1  # in place of a size: the rank asks for no array, but trims


class SymmetricHeap(Unshared):
    """Makes a communicator's arrays in the pool, as `comm.heap`. Every method that makes an array is collective.

    Those of ``local`` are not: they make arrays of this rank alone.
    """

    def __init__(
        self,
        memory: Bytes,
        mapped: bool,
        rank: int,
        ranks: int,
        all_gather: Callable[[Array], Array],
        backing: Backing | None = None,
    ) -> None:
        self.memory = memory
        self.nbytes = memory.nbytes  # per rank
        self._mapped, self._rank, self._ranks, self._all_gather = mapped, rank, ranks, all_gather
        self._home = Home()
        self._room = FirstFit(memory.nbytes)
        self._made = 0
        self._made_alone = 0
        self._alone = LocalBlocks(memory.nbytes)
        self.local = LocalHeap(self)
        self.pages = StripMemory(memory.nbytes, backing)
        self._reached = 0  # up to where all ranks have memory: the same on all
        self._floor = memory.nbytes
        self._blocks: dict[int, HeapBlock] = {}  # by number, until all ranks have freed it
        # Shared with finalizers, which run at any moment: each does one atomic step on either.
        self.arrays = self._live = dict[int, HeapBlock]()  # by address
        self._dropped: deque[int] = deque()  # numbers that no other rank knows of yet
        self.changes = np.zeros(1, np.int64)  # how often an array was made or dropped, for C, which keeps calls on them

    # --- making arrays ----------------------------------------------------------------------------------------

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Make an array in the pool, as np.empty does. Collective: every rank asks for equally many bytes."""
        shape, of = self._asked(shape, dtype)
        with self._alone.lock:
            block = self._agree(shape, of)
        return self._made_at(block, of, _drop, self._dropped)

    def alone(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> Array:
        """Make an array of this rank alone, as `LocalHeap.empty`."""
        shape, of = self._asked(shape, dtype)
        nbytes = prod(shape) * of.itemsize
        room = size_class(nbytes)
        with self._alone.lock:
            offset = self._alone.take(room, self._end)
            if offset is None:
                raise ArgumentError(self._exhausted_alone(nbytes, room))
            try:
                self.pages.reach_down(offset)
            except PoolError as error:
                self._alone.dropped.append((offset, room))
                self._trim_alone()
                raise ArgumentError(f"there is no memory for {nbytes} bytes in the heap: {error}") from error
            self._made_alone += 1
        block = HeapBlock(self._made_alone, offset, room, shape, str(of), nbytes, caller(), local=True)
        return self._made_at(block, of, _drop_alone, self._alone.dropped)

    def _asked(self, shape: int | tuple[int, ...], dtype: DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any]]:
        self._home.check()
        shape, of = shape_of(shape), np.dtype(dtype)
        if of.hasobject:
            raise ArgumentError(f"arrays of {of} hold Python objects, which other hosts cannot read")
        return shape, of

    def _made_at(self, block: HeapBlock, of: np.dtype[Any], drop: Callable[..., None], dropped: deque[Any]) -> Array:
        memory = (ctypes.c_ubyte * block.room).from_buffer(self.memory, block.at)  # type: ignore[arg-type]
        array: Array = np.ndarray(block.shape, of, buffer=memoryview(memory))
        address = ctypes.addressof(memory)
        self._live[address] = block
        self.changes += 1
        # On the memory, not on the array: its views keep the memory, not the array.
        weakref.finalize(memory, drop, self._live, self.changes, dropped, address).atexit = False
        return array

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike = np.float64) -> Array:
        """Make an array in the pool, filled with zeros. Collective: see `empty`."""
        return self.full(shape, 0, dtype)

    def full(self, shape: int | tuple[int, ...], value: Any, dtype: DTypeLike = np.float64) -> Array:
        """Make an array in the pool, filled with ``value``. Collective: see `empty`."""
        array = self.empty(shape, dtype)
        array.fill(value)
        return array

    def _agree(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> HeapBlock:
        nbytes = prod(shape) * dtype.itemsize
        room = round_up(max(nbytes, 1), LINE_BYTES)
        self._exchange(nbytes)
        offset = self._take(room)
        for _ in range(2):  # a thread's collection does nothing while another's runs, and that one may end later
            if offset is None:  # so on every rank: they all know the same
                gc.collect()
                self._alone.trim()
                self._exchange(nbytes)
                offset = self._take(room)
        if offset is None:
            raise ArgumentError(self._exhausted(nbytes))
        if offset + room > self._reached:
            self._reach(offset, room)
        block = HeapBlock(self._made, offset, room, shape, str(dtype), nbytes, caller())
        self._made += 1
        self._blocks[block.number] = block
        return block

    def _reach(self, offset: int, room: int) -> None:
        """Have memory for the block, on all ranks or on none."""
        said: PoolError | None = None
        try:
            self.pages.reach_up(offset + room)
        except PoolError as error:
            said = error
        lacking = None
        if self.pages.may_lack:
            lacking = next(iter(np.flatnonzero(self._all_gather(np.array([said is not None])))), None)
        if lacking is not None:
            self._room.give_back(offset, room)
            raise ArgumentError(f"rank {lacking} has no memory for {room} bytes in the heap" + f": {said}" * bool(said))
        self._reached = offset + room

    def _take(self, room: int) -> int | None:
        offset = self._room.take(room)
        if offset is not None and offset + room > self._floor:  # some rank has arrays of its own there
            self._room.give_back(offset, room)
            return None
        return offset

    @property
    def _end(self) -> int:
        """The end of the last array of all ranks that some rank holds."""
        return max((block.at + block.room for block in self._blocks.values()), default=0)

    # --- giving memory back -----------------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """How much memory of the pool this rank's part of the heap has; it grows with its arrays."""
        return self.pages.held_bytes

    def trim(self) -> int:
        """Give back the memory that is kept for arrays to come, as far as no array lies behind it. Collective."""
        self._home.check()
        gc.collect()
        with self._alone.lock:
            self._exchange(TRIMS)
            self._reached = self._end
            return self._trim_alone(self._end)

    def trim_alone(self) -> int:
        """Give back the memory that is kept for arrays of this rank, as `LocalHeap.trim`."""
        self._home.check()
        with self._alone.lock:
            return self._trim_alone()

    def _trim_alone(self, low: int | None = None) -> int:
        self._alone.trim()
        return self.pages.shrink(self.pages.extent.low if low is None else low, self._alone.floor)

    def _exchange(self, nbytes: int) -> None:
        """Tell all ranks what this rank freed, hear what they freed, and reuse what all ranks have freed."""
        mine = [self._dropped.popleft() for _ in range(len(self._dropped))]
        asked = self._all_gather(np.array([nbytes, len(mine), self._alone.floor], np.int64))
        self._floor = int(asked[:, 2].min())  # below which no rank has arrays of its own: the same on all
        if longest := int(asked[:, 1].max()):
            told = self._all_gather(np.array(mine + [-1] * (longest - len(mine)), np.int64))
            for rank, number in zip(*np.nonzero(told >= 0), strict=True):
                self._blocks[int(told[rank, number])].freed_by.add(int(rank))
        for block in [block for block in self._blocks.values() if len(block.freed_by) == self._ranks]:
            self._room.give_back(block.at, block.room)
            del self._blocks[block.number]
        sizes = asked[:, 0].tolist()
        if (other := next((r for r, size in enumerate(sizes) if size != sizes[0]), None)) is not None:
            asks, asks_too = (
                f"{size} bytes" if size != TRIMS else "none, to trim" for size in (sizes[0], sizes[other])
            )
            raise MismatchError(
                f"rank 0 asks the pool for an array of {asks}, rank {other} for {asks_too}: every rank "
                f"makes the same arrays in the same order"
            )

    def _exhausted_alone(self, nbytes: int, room: int) -> str:
        rooms = [block.room for block in list(self._live.values()) if block.local]
        shared = sum(block.room for block in self._blocks.values())
        return (
            f"the heap has no room for {nbytes} bytes of this rank alone, which take {room} in a row: of {self.nbytes} "
            f"bytes a rank, arrays of all ranks take {shared} and {counted(len(rooms), 'array')} of this rank "
            f"{sum(rooms)}; free some, or make the communicator with a larger heap_bytes"
        )

    def _exhausted(self, nbytes: int) -> str:
        held = sorted(self._blocks.values(), key=lambda block: -block.nbytes)
        alone = f", and arrays of single ranks take all from byte {self._floor} on" * (self._floor < self.nbytes)
        largest = f", the largest {held[0].dtype} {held[0].shape}" if held else ""
        return (
            f"the heap has no room for {nbytes} bytes: of {self.nbytes} bytes a rank {self._room.free_bytes} are free, "
            f"{self._room.largest_bytes} in a row, and it holds {counted(len(held), 'array')}{largest}{alone}; free "
            f"some, or make the communicator with a larger heap_bytes"
        )

    # --- what is held -----------------------------------------------------------------------------------------

    def leaks(self) -> list[Leak]:
        """List the arrays that this rank still holds, oldest first."""
        held = sorted(self._live.values(), key=lambda block: block.number)
        return [Leak(b.shape, b.dtype, b.nbytes, b.where, tuple(sorted(b.freed_by))) for b in held]

    def close(self) -> None:
        """Issue a ResourceWarning that names arrays which outlive their communicator; silent when no array is held."""
        if leaks := self.leaks():
            named = "; ".join(map(str, leaks[:NAMED_LEAKS])) + "; ..." * (len(leaks) > NAMED_LEAKS)
            held = f"{counted(len(leaks), 'array')} in the pool"
            text = f"rank {self._rank} still holds {held} when the communicator closes: {named}"
            warnings.warn(text, ResourceWarning, stacklevel=3)

    def __repr__(self) -> str:
        where = "private memory behind an emulated cache" if not self._mapped else "views of a card"
        free, all_of_it = format_bytes(self._room.free_bytes), format_bytes(self.nbytes)
        held = counted(len(self._live), "array")
        return f"<SymmetricHeap of rank {self._rank}: {held}, {where}; {free} of {all_of_it} free>"

    # --- zero-copy calls --------------------------------------------------------------------------------------

    @property
    def in_use(self) -> bool:
        """Whether this rank holds any array of the heap."""
        return bool(self._live)

    def holds(self, call: Call, rank: int, source: Bytes, target: Bytes, *, any_part: bool) -> bool:
        """Say whether a call's input lies in the heap.

        Ranks must agree on it: a whole array that they made together is one on every rank. With ``any_part``, also
        parts of arrays and arrays of this rank alone.
        """
        return not call.nbytes or self._find(_outer(call, rank, source, target), any_part) is not None

    def place_of(self, array: Bytes) -> int:
        """Return where an array, or part of one, begins in this rank's strip; NO_PLACE for one that is elsewhere."""
        offset = self._find(array, True)
        return NO_PLACE if offset is None else offset

    def placed_in_heap(self, call: Call, rank: int, source: Bytes, target: Bytes) -> InHeap | None:
        """Find where a call's arrays lie in each rank's strip, for a saved plan; None: the input may not be published
        there."""
        if not call.nbytes:
            return InHeap(0)
        mine, outer = buffers(call, rank)[0], _outer(call, rank, source, target)
        offset = self._find(outer, True)
        if offset is None:
            return None
        output = None
        if COLLECTIVES[call.collective].shared_result:
            output = offset if call.in_place else self._find(target, True)
        return InHeap(offset, call.nbytes if mine.inside and mine.nbytes < outer.nbytes else 0, output)

    def placed(self, array: Bytes, *, any_part: bool) -> int | None:
        """Return where an array begins in this rank's strip, or None; ``any_part``: or a part, or one of this rank
        alone."""
        return self._find(array, any_part)

    def _find(self, array: Bytes, any_part: bool) -> int | None:
        if not array.nbytes:
            return None
        address = array.ctypes.data
        block = self._live.get(address)
        if block is not None and block.nbytes == array.nbytes and (any_part or not block.local):
            return block.at
        if any_part:
            for begin, block in list(self._live.items()):
                if begin <= address and address + array.nbytes <= begin + block.nbytes:
                    return block.at + address - begin
        return None


def _outer(call: Call, rank: int, source: Bytes, target: Bytes) -> Bytes:
    """Return the whole array that a call's input lies in: in place, the output."""
    return target if buffers(call, rank)[0].inside or COLLECTIVES[call.collective].one_buffer else source


def _drop(live: dict[int, HeapBlock], changes: Changes, dropped: deque[int], address: int) -> None:
    changes += 1
    dropped.append(live.pop(address).number)


def _drop_alone(live: dict[int, HeapBlock], changes: Changes, dropped: deque[tuple[int, int]], address: int) -> None:
    changes += 1
    block = live.pop(address)
    dropped.append((block.at, block.room))
