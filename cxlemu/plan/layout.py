"""The geometry of a communicator's part of the pool: a ring of slots that goes on across calls.

Every card gives the communicator the same extent: done lines, then the doorbells of all slots, then their data, and
last its part of the heap, in which arrays live that need no slot (collectives/communicator/heap/heap.py).
One *round* of a collective uses one slot. Rounds are numbered by an epoch that never stops: the round with epoch e
uses slot ``e % slots``, and its doorbells show e. That one number is address and freshness at once, so a plan only
says how far it is from the epoch its call starts at, and the same plan serves every call.

Where ranks have memories of their own that some peers reach faster than the pool, these are cards as well, one a rank,
behind the pool's. Regions may lie there, and the last of a rank's published lines do, if asked for.

Two kinds of doorbell, each a 64-byte line of its own with one writer for the communicator's whole life:

- ``published[rank][index]``, one per slot: the rank has published chunk ``index`` of this round;
- ``done[rank]``, one: the rank needs nothing any more of any round up to the shown epoch.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan.address import Extent, rank_cards
from cxlemu.plan.instructions import Records
from cxlemu.rounding import round_down, round_up

# A doorbell word is an epoch and, below it, a tag of the call that rang it, so that ranks which call different things
# notice. Its lowest bit makes the number of ones even: no single bit can flip unseen. 48 bits of epoch last for 200
# days of one round every 64 ns; communicators refuse further calls after half of that (EPOCHS_END in native/core.h).
TAG_BITS = 16

DATA_ALIGN_BYTES = 4096

# Behind a payload of at most this many bytes a doorbell's line has two words for where its rank's arrays lie.
PLACES_AT = PAYLOAD_BYTES - 16


# The struct layout of native/layout.h.
LAYOUT_DTYPE = np.dtype(
    [(name, "<i4") for name in ("ranks", "cards", "slots", "doorbells_per_rank", "pool_cards", "own_doorbells")]
    + [(name, "<i8") for name in ("slot_card_bytes", "doorbells_offset", "slot_doorbell_bytes")]
    + [(name, "<i8") for name in ("data_offset", "heap_offset", "extent_bytes")]
)


def doorbell_word(epoch: int, tag: int) -> int:
    """Return the word that a doorbell shows."""
    word = epoch << TAG_BITS | tag & ~1
    return word | word.bit_count() & 1


def is_damaged(word: int) -> bool:
    """Whether no rank rings a doorbell with this word: its number of ones is odd."""
    return word.bit_count() & 1 == 1


@dataclass(frozen=True, slots=True)
class Layout:
    """How a communicator of ``ranks`` ranks uses its extent on each of ``cards`` cards."""

    ranks: int
    cards: int
    slots: int
    slot_card_bytes: int  # data bytes of one slot on one card, a multiple of 64
    doorbells_per_rank: int  # published lines of one rank in one slot
    interleave_bytes: int
    heap_card_bytes: int = 0  # the heap's bytes on one card, after the slots
    owned: bool = False  # the last cards are memories of the ranks, one each
    own_doorbells: int = 0  # how many of a rank's published lines of a slot, the last ones, lie in its own memory

    @property
    def pool_cards(self) -> int:
        """The number of cards without an owner: everything lies there but what is put into ranks' memories."""
        return self.cards - self.ranks * self.owned

    @property
    def cards_text(self) -> str:
        """The cards, for people: ``6 cards and 8 memories of ranks``."""
        return f"{self.pool_cards} cards" + f" and {self.ranks} memories of ranks" * self.owned

    @property
    def slot_bytes(self) -> int:
        """Data bytes of one slot on all cards of the pool."""
        return self.pool_cards * self.slot_card_bytes

    @property
    def published_count(self) -> int:
        """The number of published lines of one slot, and the id of the first done line."""
        return self.ranks * self.doorbells_per_rank

    @property
    def doorbell_count(self) -> int:
        """The number of doorbells.

        Their ids: ``published[rank][index]`` is ``rank * doorbells_per_rank + index``; then come ``done[rank]``.
        """
        return self.published_count + self.ranks

    def published(self, rank: int, index: int) -> int:
        """Return the id of a published line of a rank; ``index`` is the chunk that it announces."""
        return rank * self.doorbells_per_rank + index

    def done(self, rank: int) -> int:
        """Return the id of a rank's done line."""
        return self.published_count + rank

    def owner(self, doorbell: int) -> int:
        """Return the only rank that may signal this doorbell."""
        if doorbell >= self.published_count:
            return doorbell - self.published_count
        return doorbell // self.doorbells_per_rank

    def doorbell_name(self, doorbell: int) -> str:
        """Name a doorbell for people: ``published[2][0]`` or ``done[2]``."""
        if doorbell >= self.published_count:
            return f"done[{self.owner(doorbell)}]"
        return f"published[{self.owner(doorbell)}][{doorbell % self.doorbells_per_rank}]"

    @property
    def doorbells_offset(self) -> int:
        """First published line on every card, from the start of the extent: done lines come before."""
        return -(-self.ranks // self.pool_cards) * LINE_BYTES

    @property
    def slot_doorbell_bytes(self) -> int:
        """Bytes that one slot's published lines take of every card."""
        return max(-(-self.published_count // self.pool_cards), self.own_doorbells) * LINE_BYTES

    @property
    def data_offset(self) -> int:
        """First data byte of slot 0 on every card, from the start of the extent."""
        return round_up(self.doorbells_offset + self.slots * self.slot_doorbell_bytes, DATA_ALIGN_BYTES)

    @property
    def heap_offset(self) -> int:
        """First heap byte on every card, from the start of the extent."""
        return round_up(self.data_offset + self.slots * self.slot_card_bytes, DATA_ALIGN_BYTES)

    @property
    def heap_rank_bytes(self) -> int:
        """Bytes of every rank's strip of the heap."""
        return round_down(self.heap_card_bytes // -(-self.ranks // self.pool_cards), LINE_BYTES)

    @property
    def extent_bytes(self) -> int:
        """Bytes that the communicator takes of every card."""
        return round_up(self.heap_offset + self.heap_card_bytes, DATA_ALIGN_BYTES)

    def slot_offset(self, epoch: int) -> int:
        """Return where the data of this epoch's slot begins on every card, from the start of the extent."""
        return self.data_offset + epoch % self.slots * self.slot_card_bytes

    def heap_strip(self, rank: int) -> Extent:
        """Return where this rank alone writes in the heap, from ``heap_offset``: on one card, as an array needs it."""
        place = rank_cards(rank, self.ranks, self.pool_cards)
        return Extent(place.first_card, place.sharers_before * self.heap_rank_bytes, self.heap_rank_bytes)

    def doorbell_address(self, doorbell: int, epoch: int) -> tuple[int, int]:
        """Return the card of a doorbell's line and its offset in the extent; lines in the pool go round the cards."""
        if doorbell >= self.published_count:
            line, card = divmod(doorbell - self.published_count, self.pool_cards)
            return card, line * LINE_BYTES
        slot = self.doorbells_offset + epoch % self.slots * self.slot_doorbell_bytes
        if self.own_doorbells:
            rank, index = divmod(doorbell, self.doorbells_per_rank)
            if (own := index - self.doorbells_per_rank + self.own_doorbells) >= 0:
                return self.pool_cards + rank, slot + own * LINE_BYTES
        line, card = divmod(doorbell, self.pool_cards)
        return card, slot + line * LINE_BYTES

    @lru_cache(maxsize=256)  # groups of equal sizes are laid out alike  # noqa: B019
    def doorbells_of(self, rank: int) -> tuple[Extent, ...]:
        """Return every doorbell line of a rank, in all slots: what it clears before a communicator's first call."""
        extents = [Extent(*self.doorbell_address(self.done(rank), 0), LINE_BYTES)]
        pooled = self.doorbells_per_rank - self.own_doorbells
        for slot in range(self.slots):
            for index in range(min(pooled, self.pool_cards)):  # the first on each card, and those behind it
                first = self.doorbell_address(self.published(rank, index), slot)
                extents.append(Extent(*first, -(-(pooled - index) // self.pool_cards) * LINE_BYTES))
            if self.own_doorbells:
                first = self.doorbell_address(self.published(rank, pooled), slot)
                extents.append(Extent(*first, self.own_doorbells * LINE_BYTES))
        return tuple(extents)


def layout_record(layout: Layout) -> Records:
    """Return a layout as every C module reads it: one row of LAYOUT_DTYPE."""
    return np.array([tuple(getattr(layout, name) for name in LAYOUT_DTYPE.names or ())], LAYOUT_DTYPE)
