"""How large a communicator's ring is: a choice, kept apart from what the ring means (cxlemu.plan.layout)."""

from __future__ import annotations

from dataclasses import replace

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout
from cxlemu.plan.layout import DATA_ALIGN_BYTES

SLOTS = 4  # deep enough that a writer seldom waits for its slowest reader
REGION_BYTES = 16 << 20  # all slots on all cards
MIN_DOORBELLS_PER_RANK = 64


def layout_for(
    ranks: int, cards: int, card_bytes: int, interleave_bytes: int, *, region_bytes: int = REGION_BYTES
) -> Layout:
    """A ring of about ``region_bytes`` of data that takes at most ``card_bytes`` of every card.

    Raises ArgumentError when the cards cannot hold the doorbells and a line per rank and slot.
    """
    doorbells = max(MIN_DOORBELLS_PER_RANK, 2 * ranks)  # all-to-all needs one per peer, and some for chunks
    bare = Layout(ranks, cards, SLOTS, 0, doorbells, interleave_bytes)
    per_slot = min((card_bytes - bare.data_offset) // SLOTS, region_bytes // (SLOTS * cards))
    granule = interleave_bytes if per_slot >= interleave_bytes else LINE_BYTES
    slot_card_bytes = per_slot // granule * granule
    layout = replace(bare, slot_card_bytes=max(slot_card_bytes, 0))
    if (
        slot_card_bytes * cards < ranks * LINE_BYTES
        or layout.extent_bytes > card_bytes // DATA_ALIGN_BYTES * DATA_ALIGN_BYTES
    ):
        need = bare.data_offset + SLOTS * -(-ranks // cards) * LINE_BYTES
        raise ArgumentError(
            f"a communicator of {ranks} ranks needs at least {need} bytes on each of {cards} cards, "
            f"there are {max(card_bytes, 0)}: give the pool larger cards or make fewer communicators"
        )
    return layout
