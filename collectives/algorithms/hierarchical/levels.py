"""Words for algorithms on two levels: inside a cluster of consecutive ranks, and across clusters.

Rank ``cluster * size + position`` exchanges inside with the ranks of its cluster and across with those that have its
position in the other clusters. Each level has blocks of its own in every round's slot: those across lie in the pool,
those inside in the memory of the rank that writes them where the layout has such memories, else in the pool.
Besides publish, retrieve and fold there are words for what passes from one level to the other:

    retrieve(to=block)   WAIT, INVALIDATE, READ: to a buffer and to a block of one's own as well
    send                 FLUSH, FENCE, SIGNAL: that block is whole now

``publish_each`` and ``retrieve_each`` are the same for many at once, made as columns.

Stages of an algorithm are streams, so that while a chunk is under way on one level, the next one is on the other.
Every store to a slot outside the stream "publish" follows a retrieve of the same round, whose publisher waited until
the slot was free.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from collectives.algorithms.hierarchical.level import Level
from collectives.algorithms.hierarchical.regions import Writers, placed
from collectives.algorithms.hierarchical.roles import Roles
from collectives.builder import SCRATCH, Areas, Chunk, Event, Ints, RegionIds
from cxlemu.errors import DeclinedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Kind, Operand
from cxlemu.rounding import round_up

HIERARCHICAL = "hierarchical"  # the variant's name
STREAMS = ("publish", "inside", "across", "retrieve")


@dataclass
class Levels(Roles):
    """Builds one rank's part of a plan on two levels."""

    takes_clusters: ClassVar[bool] = True
    carries_checksums: ClassVar[bool] = False  # what is passed on was not compared

    inside: Level = field(init=False)
    across: Level = field(init=False)
    _needs: tuple[tuple[Writers, ...], tuple[Writers, ...]] = field(init=False)
    _chunk_bytes: int = field(init=False, default=0)
    _rooms: dict[str, int] = field(init=False, default_factory=dict)
    _loose: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written.streams = {name: [] for name in STREAMS}
        self.inside = Level(self, "inside", [self.at(self.home, position) for position in range(self.size)])
        self.across = Level(self, "across", [self.at(cluster, self.position) for cluster in range(self.clusters)])

    # --- rounds and parts of them -----------------------------------------------------------------------------

    def levels(self, nbytes: int, *, inside: Sequence[Writers], across: Sequence[Writers]) -> Iterator[list[Chunk]]:
        """Yield rounds, as ``rounds`` does, in which ranks write blocks inside their cluster and across clusters."""
        self._needs = (tuple(inside), tuple(across))
        return self.rounds(nbytes, spread="ranges")

    def _plan_areas(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int = 0, bells: int = 0
    ) -> tuple[int, int, Areas]:
        layout, (inside, across) = self.layout, self._needs
        regions, piece = placed(layout, inside, across, nbytes)
        first = self.written.add_regions(regions)
        for level, needs in ((self.inside, inside), (self.across, across)):
            level.block_bytes = piece
            for group in needs:
                level.region_of |= dict(zip(group.ranks, range(first, first + len(group.ranks)), strict=True))
                first += len(group.ranks)
        chunks = min(self.spec.chunks, self._share_doorbells(*(max(w.blocks for w in needs) for needs in self._needs)))
        self._chunk_bytes = round_up(-(-min(piece, nbytes) // chunks), LINE_BYTES)
        return piece, 0, Areas(RegionIds(), piece, chunks)

    def _share_doorbells(self, inside: int, across: int) -> int:
        """How many doorbells a block has, given the numbers of blocks.

        Doorbells inside are a rank's last ones: they may lie in ranks' memories.
        """
        layout = self.layout
        own = layout.own_doorbells or layout.doorbells_per_rank * inside // (inside + across)
        a_block = min(own // inside, (layout.doorbells_per_rank - own) // across)
        if a_block < 1:
            raise DeclinedError(
                f"{self.call}: {inside} blocks a rank inside and {across} across need as many doorbells, the layout "
                f"has {own} and {layout.doorbells_per_rank - own} per rank"
            )
        self.inside.first_doorbell = layout.doorbells_per_rank - own
        return a_block

    @property
    def stride(self) -> int:
        """Bytes of each position's slice of a block; the last slices may be shorter or empty."""
        return -(-self.nbytes // (self.size * LINE_BYTES)) * LINE_BYTES

    def slice_of(self, position: int, chunk: Chunk) -> Chunk:
        """The part of a chunk of a whole slice that there is in a position's slice, which may be short or empty."""
        left = min(self.stride * (position + 1), self.nbytes) - (self.stride * position + chunk.offset)
        return chunk._replace(nbytes=min(max(left, 0), chunk.nbytes))

    def sizes_of(self, positions: Ints, chunk: Chunk) -> Ints:
        """The bytes of ``slice_of`` for each of many positions."""
        left = np.minimum(self.stride * (positions + 1), self.nbytes) - (self.stride * positions + chunk.offset)
        return np.clip(left, 0, chunk.nbytes)

    def share_of(self, cluster: int, chunk: Chunk) -> Chunk:
        """The part of a chunk, in whole lines, that one cluster takes care of; the last clusters may have none."""
        step = round_up(-(-chunk.nbytes // self.clusters), LINE_BYTES)
        offset = min(step * cluster, chunk.nbytes)
        size = min(step, chunk.nbytes - offset)
        return chunk._replace(offset=chunk.offset + offset, nbytes=size, slot_offset=chunk.slot_offset + offset)

    # --- words ------------------------------------------------------------------------------------------------

    def room(self, name: str, row: int = 0, rows: int = 1) -> Operand:
        """Scratch memory for one of ``rows`` chunks under a name, whose first use decides how many there are."""
        if name not in self._rooms:
            self._rooms[name] = self.written.scratch(rows * self._chunk_bytes)
        return Operand(Kind.BUFFER, SCRATCH, 0, self._rooms[name] + row * self._chunk_bytes)

    def kept(self, chunk: Chunk) -> Operand:
        """Scratch memory for this chunk for as long as the round has its slot."""
        a_round = self.areas.doorbells_per_block
        row = chunk.seq % self.layout.slots * a_round + chunk.number
        return self.room("kept", row, self.layout.slots * a_round)

    def record(self, stream: str) -> Event:
        return self._record(stream)

    def overwritten(self, stream: str) -> Event | None:
        """Record an event after all of the stream so far, but only in place.

        There the result will replace what the stream has read; otherwise nothing is recorded and the event is None.
        """
        return self.record(stream) if self.call.in_place else None

    def order(self, event: Event | None, stream: str) -> None:
        """Let the stream go on only after the event of another stream, if there is one."""
        self._order(event, stream)

    def _leave(self, seq: int) -> None:
        """Wait for what other streams have read and passed on to no rank, before the round is said to be done."""
        for stream in sorted(self._loose):
            self.order(self.record(stream), "retrieve")
        self._loose.clear()
        self._say_done(seq)
