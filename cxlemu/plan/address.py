"""Interleaving: logical offsets in a region <-> (card, offset on that card).

A region is dealt to its cards in granules, round-robin. A logical range is therefore contiguous on every
card, and one strided run per card says where its bytes lie locally: no transfer needs a step per granule.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, Bytes


class Address(NamedTuple):
    """A byte of the pool."""

    card: int
    offset: int  # from the start of the card's mapping


class Extent(NamedTuple):
    """``nbytes`` contiguous bytes of one card."""

    card: int
    offset: int
    nbytes: int


class StridedRun(NamedTuple):
    """Bytes that are contiguous on a card and strided locally: block k is at ``local_offset + k * stride_bytes``."""

    card: int
    card_offset: int
    local_offset: int
    block_bytes: int
    blocks: int
    stride_bytes: int

    @property
    def nbytes(self) -> int:
        """How many bytes all blocks have together."""
        return self.block_bytes * self.blocks

    def local(self, buffer: Bytes) -> Bytes:
        """Return a view of the run's bytes in a local buffer, of shape ``(blocks, block_bytes)``, no copy."""
        end = self.local_offset + (self.blocks - 1) * self.stride_bytes + self.block_bytes
        if buffer.ndim != 1 or buffer.dtype != np.uint8 or buffer.size < end:
            raise ArgumentError(
                f"a local buffer of {end} or more uint8 in one dimension is needed, "
                f"not {buffer.dtype} of shape {buffer.shape}"
            )
        step = buffer.strides[0]
        return np.lib.stride_tricks.as_strided(
            buffer[self.local_offset :], (self.blocks, self.block_bytes), (self.stride_bytes * step, step)
        )


@dataclass(frozen=True, slots=True)
class AddressMap:
    """A region that is dealt round-robin over ``cards`` consecutive cards.

    Logical offset o lies in granule i = (start + o) // granularity_bytes, which is on card
    ``first_card + i % cards`` at ``base + i // cards * granularity_bytes``.
    """

    first_card: int
    cards: int
    granularity_bytes: int
    base: int = 0
    start: int = 0

    def __post_init__(self) -> None:
        if self.cards < 1:
            raise ArgumentError(f"a region lies on at least one card, not {self.cards}")
        if self.granularity_bytes < LINE_BYTES or self.granularity_bytes % LINE_BYTES:
            raise ArgumentError(
                f"interleaving is by a positive multiple of {LINE_BYTES} bytes, not {self.granularity_bytes}"
            )
        if min(self.first_card, self.base, self.start) < 0:
            raise ArgumentError(f"first_card, base and start are 0 or more in {self}")

    def locate(self, offset: int) -> Address:
        """Return card and card offset of the logical byte at ``offset``. Raises ArgumentError where it is negative."""
        if offset < 0:
            raise ArgumentError(f"logical offset {offset} is before the region")
        granule, within = divmod(self.start + offset, self.granularity_bytes)
        return self._address(granule, within)

    def logical(self, card: int, card_offset: int) -> int:
        """Return the logical offset of a byte of a card: the inverse of `locate`."""
        granule, within = divmod(card_offset - self.base, self.granularity_bytes)
        slot = card - self.first_card
        offset = (granule * self.cards + slot) * self.granularity_bytes + within - self.start
        if not 0 <= slot < self.cards or granule < 0 or offset < 0:
            raise ArgumentError(f"offset {card_offset} of card {card} is outside the region {self}")
        return offset

    def extents(self, offset: int, nbytes: int) -> list[Extent]:
        """Return where a logical range lies: at most one extent per card, in the order of their first bytes."""
        if nbytes == 0:
            return []
        first, last = self._granules(offset, nbytes)
        pieces = []
        for granule in range(first, min(last + 1, first + self.cards)):
            begin = self.locate(max(offset, self._begin(granule)))
            last_here = last - (last - granule) % self.cards
            end = self.locate(min(offset + nbytes, self._begin(last_here + 1)) - 1)
            pieces.append(Extent(begin.card, begin.offset, end.offset + 1 - begin.offset))
        return pieces

    def runs(self, offset: int, nbytes: int) -> list[StridedRun]:
        """Split a logical range into runs, each byte in one: a broken granule, one run per card, a broken granule."""
        if nbytes == 0:
            return []
        first, last = self._granules(offset, nbytes)
        if first == last or self.cards == 1:  # contiguous on one card
            return [StridedRun(*self.locate(offset), 0, nbytes, 1, nbytes)]
        size = self.granularity_bytes
        end = offset + nbytes
        runs = []
        if (head := self._begin(first + 1) - offset) < size:
            runs.append(StridedRun(*self.locate(offset), 0, head, 1, head))
            first += 1
        tail = end - self._begin(last)
        whole_end = last + (tail == size)
        for granule in range(first, min(whole_end, first + self.cards)):
            blocks = (whole_end - 1 - granule) // self.cards + 1
            local = self._begin(granule) - offset
            runs.append(StridedRun(*self._address(granule, 0), local, size, blocks, size * self.cards))
        if tail < size:
            runs.append(StridedRun(*self.locate(end - tail), nbytes - tail, tail, 1, tail))
        return runs

    def end_on_cards(self, nbytes: int) -> int:
        """Return where the map's first ``nbytes`` end on a card, in bytes: the largest end of all cards."""
        if nbytes == 0:
            return 0
        first, last = self._granules(0, nbytes)
        end = self.locate(nbytes - 1).offset + 1
        if last > first:  # the granule before the last one is whole, and may lie beside it
            end = max(end, self._address(last - 1, self.granularity_bytes).offset)
        return end

    def _address(self, granule: int, within: int) -> Address:
        row, slot = divmod(granule, self.cards)
        return Address(self.first_card + slot, self.base + row * self.granularity_bytes + within)

    def _begin(self, granule: int) -> int:
        """Logical offset of a granule's first byte (negative for the part before ``start``)."""
        return granule * self.granularity_bytes - self.start

    def _granules(self, offset: int, nbytes: int) -> tuple[int, int]:
        """First and last granule of a range that is not empty."""
        if offset < 0 or nbytes < 0:
            raise ArgumentError(f"no range of {nbytes} bytes at logical offset {offset}")
        first = (self.start + offset) // self.granularity_bytes
        return first, (self.start + offset + nbytes - 1) // self.granularity_bytes


class RankCards(NamedTuple):
    """The cards of one rank, and how many lower ranks share them."""

    first_card: int
    cards: int
    sharers_before: int


def rank_cards(rank: int, ranks: int, cards: int) -> RankCards:
    """Return the cards that a rank writes to (N-to-N placement: CCCL, arXiv 2602.22457).

    Up to as many ranks as cards have blocks of cards, as even as possible. More ranks have one card each, shared.
    """
    if cards < 1 or not 0 <= rank < ranks:
        raise ArgumentError(f"no cards for rank {rank} of {ranks} ranks on {cards} cards")
    if ranks > cards:
        return RankCards(rank % cards, 1, rank // cards)
    first = rank * cards // ranks
    return RankCards(first, (rank + 1) * cards // ranks - first, 0)
