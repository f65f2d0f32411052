"""What one rank of a communicator has in the room that its members share: a board, a ring with a heap, mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Self

from collectives.communicator.arrays import Array
from collectives.communicator.calls.lane import CallLane
from collectives.communicator.heap.clearing import clear_doorbells
from collectives.communicator.heap.heap import SymmetricHeap
from collectives.communicator.heap.heap_blocks import lines
from collectives.communicator.heap.heap_memory import CardPages, PrivatePages
from collectives.communicator.membership.sizing import Furnished
from collectives.communicator.membership.stay import Stay
from collectives.communicator.messages.mailboxes import MailRoom
from cxlemu.engines.peer_memory import PeerMemory
from cxlemu.memory.backend import CoherenceStep
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, board_bytes
from cxlemu.pool.ledger import Hold
from cxlemu.pool.pool import Pool
from cxlemu.world import RankContext


class Terms(NamedTuple):
    """On what terms a rank is a member of a communicator."""

    context: RankContext
    members: tuple[int, ...]  # the world ranks of all ranks, in the communicator's order
    furnished: Furnished  # its ring, heap and mailboxes
    room: Hold  # what this rank holds of the pool, for the board and these
    lane: CallLane
    deadline_s: float  # how long a call waits for its peers, in seconds
    integrity: str | None  # the checksum that travels with doorbells, or None
    head_bytes: int = 0  # how many bytes of the room, at its beginning, are not the communicator's
    # the members' processes, where arrays travel from process to process; None: through the pool
    peers: PeerMemory | None = None

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        return self.members.index(self.context.rank)


@dataclass(frozen=True)
class Premises:
    """Where a communicator lies, once this rank's doorbells there are cleared."""

    terms: Terms
    stay: Stay  # this rank's stay, which gives the room back
    base: int  # where the ring begins on every card, in bytes
    board: Board  # the members' votes
    mail: MailRoom | None  # the mailboxes; None where the room is too small for them

    @classmethod
    def move_in(cls, terms: Terms) -> Self:
        """Share out the room and clear this rank's doorbells; the room is given back if this raises."""
        context, (layout, boxes), room = terms.context, terms.furnished, terms.room
        stay = Stay(context, room, terms.lane)
        try:
            arena = Arena(room.at, room.end)
            arena.take(terms.head_bytes)
            board_room = arena.take(board_bytes(len(terms.members)))
            ring = arena.take(layout.extent_bytes)
            heap_at = ring.at + layout.heap_offset
            stay.heap = heap_at, heap_at + layout.heap_card_bytes
            mail = None if boxes is None else MailRoom(boxes, arena.take(boxes.nbytes).at)
            if context.tenancy is not None:
                context.tenancy.require_room(layout.cards, board_room.at, arena.at)
            board = context.session.board(board_room.at, len(terms.members), room.name)
            if context.pool.sparse:
                _back(context.pool, (room.at, stay.heap[0]), (stay.heap[1], arena.at))
            doorbells = [(ring.at, layout.doorbells_of(terms.rank))]
            if mail is not None:
                doorbells.append((mail.at, mail.mailboxes.doorbells_of(terms.rank)))
            stay.failed = True  # until the zeros have left this host's cache
            clear_doorbells(terms.lane.quick, context.session, doorbells)
            stay.failed = False
        except BaseException:
            stay.give_back()
            raise
        return cls(terms, stay, ring.at, board, mail)

    def heap(self, all_gather: Callable[[Array], Array]) -> SymmetricHeap:
        """Make the heap, on this rank's strip of it, and tell the stay what arrays there mean for the room.

        NumPy cannot store through an emulated cache; everywhere else its stores are this host's.
        """
        terms, context = self.terms, self.terms.context
        strip, mapped = terms.furnished.layout.heap_strip(terms.rank), context.backend.maps_cards
        offset = self._heap_at + strip.offset
        pages = CardPages(context.pool, strip.card, offset)
        memory = context.pool.cards[strip.card][offset:][: strip.nbytes] if mapped else lines(strip.nbytes)
        on_demand = pages if context.pool.sparse else None
        backing = on_demand if mapped else PrivatePages(memory, pages)
        heap = SymmetricHeap(memory, mapped, terms.rank, len(terms.members), all_gather, backing)
        self.stay.strip = pages, heap.pages.ever
        if mapped:
            self.stay.arrays = heap.arrays
            self.stay.stored = CoherenceStep.FLUSH not in context.backend.elides
        return heap

    @property
    def _heap_at(self) -> int:
        return self.base + self.terms.furnished.layout.heap_offset


def _back(pool: Pool, *parts: tuple[int, int]) -> None:
    """Take memory for parts of a room in a sparse pool. Raises PoolError where no memory is left."""
    for card, (begin, end) in product(range(len(pool.cards)), parts):
        if begin < end:
            pool.back(card, begin, end - begin)
