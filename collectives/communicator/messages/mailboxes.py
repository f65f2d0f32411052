"""Where the mailboxes of a communicator lie: a ring of slots for each ordered pair of ranks, all alike."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout
from cxlemu.plan.address import Extent
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_down

SENDER, RECEIVER = 0, 1  # the ranks of every call on a mailbox
SLOTS, SLOTS_MIN = 8, 2
SLOT_BYTES = 64 << 10  # at most: what two caches pass on to each other without memory
SEGMENT_BYTES = 4 << 20  # how much of a message one call carries, through the slots again and again
SEGMENT_ROUNDS_MAX = 128  # of one call: a plan names every instruction
SHARE = 4  # all mailboxes take at most this part of the room that the communicator leaves


@dataclass(frozen=True, slots=True)
class Mailboxes:
    ranks: int
    layout: Layout  # each pair's ring, of two ranks

    @property
    def nbytes(self) -> int:
        """Bytes of every card that all of them take together."""
        return self.ranks * (self.ranks - 1) * self.layout.extent_bytes

    def at(self, source: int, dest: int) -> int:
        """Return where the mailbox from one rank to another begins on every card, from the start of all, in bytes."""
        return (source * (self.ranks - 1) + dest - (dest > source)) * self.layout.extent_bytes

    @lru_cache(maxsize=64)  # groups of equal sizes are laid out alike  # noqa: B019
    def doorbells_of(self, rank: int) -> tuple[Extent, ...]:
        """Return every doorbell line that a rank rings in any mailbox, from the start of all."""
        extents: list[Extent] = []
        for peer in range(self.ranks):
            if peer != rank:
                extents += self._lines(SENDER, self.at(rank, peer)) + self._lines(RECEIVER, self.at(peer, rank))
        return tuple(extents)

    def _lines(self, role: int, at: int) -> list[Extent]:
        merged: list[Extent] = []
        for card, offset, nbytes in sorted(self.layout.doorbells_of(role)):
            if merged and (merged[-1].card, merged[-1].offset + merged[-1].nbytes) == (card, at + offset):
                merged[-1] = merged[-1]._replace(nbytes=merged[-1].nbytes + nbytes)
            else:
                merged.append(Extent(card, at + offset, nbytes))
        return merged


class MailRoom(NamedTuple):
    """The mailboxes of a communicator, and where they begin on every card, in bytes."""

    mailboxes: Mailboxes
    at: int


def mailboxes_in(left_bytes: int, ranks: int, cards: int, interleave_bytes: int) -> Mailboxes | None:
    """Lay out mailboxes in a share of the room left on every card; None where not even the smallest fit."""
    pairs = ranks * (ranks - 1)
    room = round_down(left_bytes // SHARE // max(pairs, 1), DATA_ALIGN_BYTES)
    for slots in (SLOTS, SLOTS // 2, SLOTS_MIN):
        bare = Layout(2, cards, slots, 0, 1, interleave_bytes)
        per_slot = min((room - bare.data_offset) // slots, SLOT_BYTES // cards)
        granule = interleave_bytes
        while LINE_BYTES < granule > per_slot:
            granule = round_down(granule // 2, LINE_BYTES)  # as blocks are placed in slots that are too small for it
        if (slot_card_bytes := round_down(per_slot, granule)) > 0:
            return Mailboxes(ranks, Layout(2, cards, slots, slot_card_bytes, 1, interleave_bytes))
    return None
