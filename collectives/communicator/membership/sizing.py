"""How much room a new communicator takes, and what it puts there: its ring, its heap and its mailboxes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from collectives.communicator.messages.mailboxes import SHARE, Mailboxes, mailboxes_in
from collectives.layouts import check_fits, group_layout, group_room, layout_in, ring_room, room_of, world_share
from cxlemu.errors import ArgumentError
from cxlemu.plan import Layout
from cxlemu.pool.arena import ARENA_ALIGN_BYTES, Arena
from cxlemu.pool.superblock import CARD_BYTES_MAX
from cxlemu.rounding import round_down, round_up
from cxlemu.world import RankContext


class Furnished(NamedTuple):
    """What is in a communicator's room, behind its board: the ring with the heap, then mailboxes where they fit."""

    layout: Layout
    mailboxes: Mailboxes | None

    @property
    def nbytes(self) -> int:
        """Bytes of every card, with the board."""
        return room_of(self.layout) + (0 if self.mailboxes is None else self.mailboxes.nbytes)


class Sizing(Protocol):
    """How much room to take of what is free, and what to put into it: the same on all members."""

    def wanted(self, largest_bytes: int) -> int:
        """Return how many bytes of every card to take, where ``largest_bytes``, maybe too few, are free in a row."""

    def settle(self, largest_bytes: int) -> int:
        """Return the same where no more will be free, as all members have given back what they had closed."""

    def furnish(self, room_bytes: int) -> Furnished:
        """Lay out a room of this size. Raises ArgumentError where it is too small."""


@dataclass(frozen=True)
class WorldSizing:
    """A world: up to half of the pool, in which a ring and a heap have the sizes that studies and plans assume."""

    context: RankContext
    region_bytes: int  # the data of all slots together, in bytes
    # each rank's part of the heap in bytes; None: the world's, where the room has its usual size
    heap_bytes: int | None
    layout: Layout | None  # the ring and heap to use whatever the sizes, or None

    def __post_init__(self) -> None:
        """Lay out the usual room, so that all ranks say why it is not possible, before any claims it."""
        if not isinstance(self.layout, Layout | None):
            raise ArgumentError(f"layout is a Layout, such as a saved plan's, not {self.layout!r}")
        self._usual()

    def wanted(self, largest_bytes: int) -> int:
        """Return what a world of half the pool takes."""
        return self._usual().nbytes

    def settle(self, largest_bytes: int) -> int:
        """Return what a world of half the pool takes, or half of what is left where that is less."""
        usual = self._usual().nbytes
        return usual if self.layout is not None or largest_bytes >= usual else largest_bytes // 2

    def furnish(self, room_bytes: int) -> Furnished:
        """Lay out the room: as usual where it has the usual size."""
        usual = self._usual()
        if self.layout is not None or room_bytes == usual.nbytes:
            return usual
        return self._furnished(room_bytes, self.heap_bytes)

    def _usual(self) -> Furnished:
        """Lay out half of the pool; heaps of the world's own size leave the ring as it is without them."""
        arena, room_bytes = self.context.arena, self.context.world.heap_bytes
        share = world_share(Arena(arena.at, arena.end)).nbytes
        if self.heap_bytes is not None or room_bytes is None:
            return self._furnished(share, self.heap_bytes)
        heaps = -(-self.context.ranks // self.context.outline.pool_card_count) * room_bytes
        return self._furnished(share, room_bytes, ring_room(share - heaps))

    def _furnished(self, room_bytes: int, heap_bytes: int | None, ring_bytes: int | None = None) -> Furnished:
        outline, ranks = self.context.outline, self.context.ranks
        cards, interleave = outline.pool_card_count, self.context.pool.interleave_bytes
        owned = 0 < outline.memories == len(self.context.pool.cards) - cards
        layout = self.layout
        if layout is None:
            layout = layout_in(
                room_bytes,
                ranks,
                cards,
                interleave,
                region_bytes=self.region_bytes,
                heap_bytes=heap_bytes,
                ring_room_bytes=ring_bytes,
                owned=owned,
            )
        else:
            check_fits(layout, room_bytes, ranks, cards, interleave, owned=owned)
        return Furnished(layout, mailboxes_in(room_bytes - room_of(layout), ranks, cards, interleave))


@dataclass(frozen=True)
class GroupSizing:
    """A group: no more than an eighth of what is free, where that is enough for the smallest ring."""

    ranks: int
    cards: int
    interleave_bytes: int  # the pool's interleaving granularity in bytes
    region_bytes: int  # the data of all slots together, in bytes
    heap_bytes: int | None = None  # each rank's part of the heap in bytes, or None
    head_bytes: int = 0  # what stays free at the room's beginning

    def wanted(self, largest_bytes: int) -> int:
        """Return the group's room: what `group_room` says, and up to a quarter of that for mailboxes."""
        most = round_down(max(largest_bytes - self.head_bytes, 0) // 5 * 4, ARENA_ALIGN_BYTES)
        room = group_room(most, self.ranks, self.cards, self.interleave_bytes, **self._sizes)
        return self.head_bytes + room + min(round_up(room // 4, ARENA_ALIGN_BYTES), self._most_mail)

    settle = wanted

    def furnish(self, room_bytes: int) -> Furnished:
        """Lay out the room; what is behind ring and heap is for mailboxes."""
        left = room_bytes - self.head_bytes
        room = round_down(max(left // 5 * 4, left - self._most_mail), ARENA_ALIGN_BYTES)
        layout = group_layout(room, self.ranks, self.cards, self.interleave_bytes, **self._sizes)
        mail = SHARE * (left - room_of(layout))
        return Furnished(layout, mailboxes_in(mail, self.ranks, self.cards, self.interleave_bytes))

    @property
    def _most_mail(self) -> int:
        """What mailboxes can use of every card."""
        mailboxes = mailboxes_in(CARD_BYTES_MAX, self.ranks, self.cards, self.interleave_bytes)
        return 0 if mailboxes is None else round_up(mailboxes.nbytes, ARENA_ALIGN_BYTES)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"region_bytes": self.region_bytes, "heap_bytes": self.heap_bytes}  # type: ignore[dict-item]
