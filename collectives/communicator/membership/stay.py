"""One rank's stay in the room of a communicator: it lets go when nothing that it wrote can arrive any more."""

from __future__ import annotations

from collections.abc import Callable, Sized
from dataclasses import dataclass, field

from collectives.communicator.calls.lane import CallLane
from collectives.communicator.heap.heap_memory import BothEnds, CardPages
from cxlemu.errors import RunError
from cxlemu.pool.home import Home
from cxlemu.pool.ledger import Hold
from cxlemu.world import RankContext


@dataclass
class Stay:
    """One rank's stay in a room, from its hold to giving it back."""

    context: RankContext  # the rank and its part of the ledger
    room: Hold
    lane: CallLane  # what writes there
    failed: bool = False  # a call failed, so that stores of this rank may still be in its host's cache
    settle_too: Callable[[], None] = lambda: None  # fences what other lanes of the communicator wrote
    arrays: Sized = ()  # arrays in the room that the user still holds, and can still store to
    heap: tuple[int, int] | None = None  # where the heap is on every card, which other ranks have strips of
    strip: tuple[CardPages, BothEnds] | None = None  # this rank's strip, and what arrays have ever taken of it
    stored: bool = False  # numPy stores there without a flush
    home: Home = field(default_factory=Home)  # the process that stays there

    def fail(self) -> None:
        """Note that a call failed."""
        self.failed = True

    def drop(self) -> None:
        """Give the room back for a communicator that was dropped, perhaps with calls under way."""
        self.failed = True
        self.give_back()

    def give_back(self) -> None:
        """Let the room go, or do so later where arrays in it are still held; twice is fine. A forked child has none."""
        if self.home.left:
            return
        if len(self.arrays):
            self.context.rooms.later(self.give_back)
            return
        memory, room = self.lane.quick, self.room
        try:
            if self.failed:
                begin, behind = self.heap or (room.end, room.end)
                for card in range(len(self.context.pool.cards)):
                    memory.invalidate(card, room.at, begin - room.at)
                    memory.invalidate(card, behind, room.end - behind)
            if self.strip is not None and (self.stored or self.failed):
                place, ever = self.strip
                ever.each(lambda offset, nbytes: memory.invalidate(place.card, place.at + offset, nbytes))
            self.lane.settle()
            self.settle_too()
            if self.strip is not None and not self.failed:  # else a peer may be in the call that failed here
                self.strip[1].each(self.strip[0].give_back)
        except RunError:
            return  # hardware that failed holds back what was written: the room stays taken
        self.context.rooms.release(room.name)
