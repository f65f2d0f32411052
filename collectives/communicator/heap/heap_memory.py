"""How much memory a rank's strip of the heap has, where it gets memory on demand: from both ends on, as arrays need it.

The strip's size is fixed, as it is address space that all ranks agree on. In a sparse pool memory comes with arrays:
those of all ranks grow from the beginning on, those of one rank from the end. `trim` gives back what lies between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from cxlemu import _native
from cxlemu.memory.protocol import Bytes
from cxlemu.pool.pool import Pool
from cxlemu.rounding import round_down, round_up

PAGE_BYTES = 4096


class Backing(Protocol):
    """Where a strip's memory comes from, in whole pages from its beginning; `take` raises only if it ``may_lack``."""

    may_lack: ClassVar[bool]

    def take(self, at: int, nbytes: int) -> None:
        """Take memory for these bytes, where there is none yet. Raises PoolError where no memory is left."""

    def give_back(self, at: int, nbytes: int) -> None:
        """Give the memory of these bytes back; they are zeros then."""


@dataclass(frozen=True)
class CardPages:
    """Pages of a card of a sparse pool."""

    may_lack: ClassVar[bool] = True
    pool: Pool
    card: int
    at: int  # where the strip begins there, in bytes

    def take(self, at: int, nbytes: int) -> None:
        """Take memory of the pool. Raises PoolError where no memory is left."""
        self.pool.back(self.card, self.at + at, nbytes)

    def give_back(self, at: int, nbytes: int) -> None:
        """Give it back to the system."""
        self.pool.unback(self.card, self.at + at, nbytes)


@dataclass(frozen=True)
class PrivatePages:
    """Private memory that stands for a strip behind an emulated cache, and the strip itself."""

    may_lack: ClassVar[bool] = False
    memory: Bytes  # the private memory, which the kernel backs as it is touched
    strip: CardPages  # the strip, to which calls store; the kernel backs this too as it is touched

    def take(self, at: int, nbytes: int) -> None:
        """Do nothing."""

    def give_back(self, at: int, nbytes: int) -> None:
        """Give both back to the system."""
        address = self.memory.ctypes.data
        begin, end = round_up(address + at, PAGE_BYTES), round_down(address + at + nbytes, PAGE_BYTES)
        if begin < end:
            _native.back_pages(self.memory[begin - address : end - address], False, False)
        self.strip.give_back(at, nbytes)


@dataclass(slots=True)
class BothEnds:
    """The two ends of a strip that arrays took: all of it but [``low``, ``high``)."""

    nbytes: int
    low: int = 0  # the end of the part at its beginning
    high: int = -1  # the beginning of the part at its end

    def __post_init__(self) -> None:
        self.high = self.nbytes

    @property
    def held(self) -> int:
        return self.nbytes - max(self.high - self.low, 0)

    def each(self, does: Callable[[int, int], None]) -> None:
        """Call ``does(at, nbytes)`` for each end that there is."""
        if self.low:
            does(0, self.low)
        if self.high < self.nbytes:
            does(self.high, self.nbytes - self.high)


class StripMemory:
    def __init__(self, nbytes: int, backing: Backing | None) -> None:
        self.extent, self.ever = BothEnds(nbytes), BothEnds(nbytes)
        self._backing = backing

    @property
    def may_lack(self) -> bool:
        """Whether memory comes on demand, and may not be there."""
        return self._backing is not None and self._backing.may_lack

    @property
    def held_bytes(self) -> int:
        return self.extent.nbytes if self._backing is None else self.extent.held

    def reach_up(self, end: int) -> None:
        """Have memory up to ``end``. Raises PoolError where no memory is left."""
        extent, end = self.extent, round_up(end, PAGE_BYTES)
        if end > extent.low:
            if self._backing is not None:
                self._backing.take(extent.low, end - extent.low)
            extent.low, self.ever.low = end, max(self.ever.low, end)

    def reach_down(self, begin: int) -> None:
        """Have memory from ``begin`` on. Raises PoolError where no memory is left."""
        extent, begin = self.extent, round_down(begin, PAGE_BYTES)
        if begin < extent.high:
            if self._backing is not None:
                self._backing.take(begin, extent.high - begin)
            extent.high, self.ever.high = begin, min(self.ever.high, begin)

    def shrink(self, low: int, high: int) -> int:
        """Give back the memory between ``low`` and ``high``, of which no array has any byte; return its bytes."""
        if self._backing is None:
            return 0
        extent, before = self.extent, self.held_bytes
        low, high = min(round_up(low, PAGE_BYTES), extent.low), max(round_down(high, PAGE_BYTES), extent.high)
        upper = max(low, min(extent.low, high))
        for begin, end in ((low, upper), (max(extent.high, upper), high)):
            if begin < end:
                self._backing.give_back(begin, end - begin)
        extent.low, extent.high = low, high
        return before - self.held_bytes
