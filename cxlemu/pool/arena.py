"""Room in the pool, given out in the same order on every rank, so that all ranks agree without asking."""

from __future__ import annotations

from dataclasses import dataclass

from cxlemu.errors import ArgumentError

ARENA_ALIGN_BYTES = 4096


@dataclass(slots=True)
class Arena:
    """The same bytes [at, end) of every card. What is taken is not given back before the session ends."""

    at: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of every card that are left."""
        return self.end - self.at

    def take(self, nbytes: int) -> Arena:
        """Take the next ``nbytes`` of every card, rounded up to whole pages, as an arena of their own.

        If fewer are left, an ArgumentError says so, and nothing is taken.
        """
        nbytes = -(-nbytes // ARENA_ALIGN_BYTES) * ARENA_ALIGN_BYTES
        if nbytes > self.nbytes:
            raise ArgumentError(f"the pool has {self.nbytes} bytes left on every card, but {nbytes} are needed")
        taken = Arena(self.at, self.at + nbytes)
        self.at += nbytes
        return taken
