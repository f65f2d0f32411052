"""What one rank of a communicator has in the room that its members share: a board, a ring with a heap, mailboxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from collectives.communicator.clearing import clear_doorbells
from collectives.communicator.heap import SymmetricHeap
from collectives.communicator.heap_blocks import lines
from collectives.communicator.lane import CallLane
from collectives.communicator.messages.mailboxes import MailRoom
from collectives.communicator.sizing import Furnished
from collectives.communicator.stay import Stay
from cxlemu.memory.backend import CoherenceStep
from cxlemu.memory.protocol import Bytes
from cxlemu.pool.arena import Arena
from cxlemu.pool.board import Board, board_bytes
from cxlemu.pool.ledger import Hold
from cxlemu.world import RankContext


class Terms(NamedTuple):
    """On what terms a rank is a member of a communicator.

    Attributes:
        context: The rank's context.
        members: The world ranks of all ranks, in the communicator's order.
        furnished: Its ring, heap and mailboxes.
        room: What this rank holds of the pool, for the board and these.
        lane: What its calls run on.
        deadline_s: How long a call waits for its peers, in seconds.
        integrity: The checksum that travels with doorbells, or None.
        head_bytes: How many bytes of the room, at its beginning, are not the communicator's.
    """

    context: RankContext
    members: tuple[int, ...]
    furnished: Furnished
    room: Hold
    lane: CallLane
    deadline_s: float
    integrity: str | None
    head_bytes: int = 0

    @property
    def rank(self) -> int:
        """This rank's number in the communicator."""
        return self.members.index(self.context.rank)


@dataclass(frozen=True)
class Premises:
    """Where a communicator lies, once this rank's doorbells there are cleared.

    Attributes:
        terms: The terms.
        stay: This rank's stay, which gives the room back.
        base: Where the ring begins on every card, in bytes.
        board: The members' votes.
        mail: The mailboxes; None where the room is too small for them.
    """

    terms: Terms
    stay: Stay
    base: int
    board: Board
    mail: MailRoom | None

    @classmethod
    def move_in(cls, terms: Terms) -> Self:
        """Share out the room and clear this rank's doorbells; the room is given back if this raises.

        Raises:
            AccessError: The room lies outside this tenant's grant.
            RunError: The pool's hardware failed.
        """
        context, (layout, boxes), room = terms.context, terms.furnished, terms.room
        stay = Stay(context, room, terms.lane)
        try:
            arena = Arena(room.at, room.end)
            arena.take(terms.head_bytes)
            board_room = arena.take(board_bytes(len(terms.members)))
            ring = arena.take(layout.extent_bytes)
            mail = None if boxes is None else MailRoom(boxes, arena.take(boxes.nbytes).at)
            if context.tenancy is not None:
                context.tenancy.require_room(layout.cards, board_room.at, arena.at)
            board = context.session.board(board_room.at, len(terms.members), room.name)
            doorbells = [(ring.at, layout.doorbells_of(terms.rank))]
            if mail is not None:
                doorbells.append((mail.at, mail.mailboxes.doorbells_of(terms.rank)))
            clear_doorbells(terms.lane.quick, context.session, doorbells)
        except BaseException:
            stay.give_back()
            raise
        return cls(terms, stay, ring.at, board, mail)

    def heap_memory(self) -> tuple[Bytes, bool]:
        """This rank's strip of the heap, and whether it is a part of a card.

        NumPy cannot store through an emulated cache; everywhere else its stores are this host's.
        """
        strip = self.terms.furnished.layout.heap_strip(self.terms.rank)
        if not self.terms.context.backend.maps_cards:
            return lines(strip.nbytes), False
        return self.terms.context.pool.cards[strip.card][self._heap_at + strip.offset :][: strip.nbytes], True

    def lend(self, heap: SymmetricHeap) -> None:
        """Tell the stay which arrays keep the room, and which stores NumPy left in this host's cache."""
        backend, strip = self.terms.context.backend, self.terms.furnished.layout.heap_strip(self.terms.rank)
        if backend.maps_cards:
            self.stay.arrays = heap.arrays
            if CoherenceStep.FLUSH not in backend.elides:
                self.stay.stored = strip.card, self._heap_at + strip.offset, heap.used

    @property
    def _heap_at(self) -> int:
        return self.base + self.terms.furnished.layout.heap_offset
