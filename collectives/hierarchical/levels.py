"""Words for algorithms on two levels: inside a cluster of consecutive ranks, and across clusters.

Rank ``cluster * size + position`` exchanges inside with the ranks of its cluster and across with those that have its
position in the other clusters. Each level has blocks of its own in every round's slot: those across lie in the pool,
those inside in the memory of the rank that writes them where the layout has such memories, and else in the pool, too.
Besides publish, retrieve and fold there are words for what passes from one level to the other:

    retrieve(to=block)   WAIT, INVALIDATE, READ: to a buffer and to a block of one's own as well
    send                 FLUSH, FENCE, SIGNAL: that block is whole now

Stages of an algorithm are streams, so that while a chunk is under way on one level, the next one is on the other.
Whatever is stored to a slot but in the stream "publish" was retrieved from peers of the same round first, who had
waited until the slot was free.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from collectives.builder import SCRATCH, Areas, Builder, Chunk
from collectives.placement import place
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import NOTHING, Kind, Layout, Op, Operand, Region
from cxlemu.rounding import round_down, round_up

STREAMS = ("publish", "inside", "across", "retrieve")


class Block(NamedTuple):
    """One of this rank's blocks on a level."""

    level: Level
    number: int


class Writers(NamedTuple):
    """Ranks that write so many blocks each on a level."""

    ranks: tuple[int, ...]
    blocks: int


@dataclass
class Levels(Builder):
    """Builds one rank's part of a plan on two levels."""

    inside: Level = field(init=False)
    across: Level = field(init=False)
    _needs: tuple[tuple[Writers, ...], tuple[Writers, ...]] = field(init=False)
    _chunk_bytes: int = field(init=False, default=0)
    _rooms: dict[str, int] = field(init=False, default_factory=dict)
    _loose: set[str] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._streams = {name: [] for name in STREAMS}
        self.inside = Level(self, "inside", [self.at(self.home, position) for position in range(self.size)])
        self.across = Level(self, "across", [self.at(cluster, self.position) for cluster in range(self.clusters)])

    # --- who is where -----------------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        """Ranks in a cluster."""
        return self.call.cluster

    @property
    def clusters(self) -> int:
        return self.ranks // self.size

    @property
    def home(self) -> int:
        """This rank's cluster."""
        return self.rank // self.size

    @property
    def position(self) -> int:
        """This rank's place in its cluster."""
        return self.rank % self.size

    @property
    def away(self) -> list[int]:
        """The other clusters, the next one first."""
        return [(self.home + step) % self.clusters for step in range(1, self.clusters)]

    @property
    def at_roots(self) -> bool:
        """Whether this rank's cluster is the root's."""
        return self.home == self.root // self.size

    @property
    def column_root(self) -> int:
        """The rank of the root's cluster that has this rank's position."""
        return self.at(self.root // self.size, self.position)

    def at(self, cluster: int, position: int) -> int:
        return cluster * self.size + position

    def all(self, blocks: int) -> Writers:
        return Writers(self.everyone, blocks)

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.ranks))

    @property
    def at_home(self) -> tuple[int, ...]:
        """The ranks of the root's cluster."""
        first = self.root // self.size * self.size
        return self.everyone[first : first + self.size]

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks of all other clusters."""
        first = self.root // self.size * self.size
        return self.everyone[:first] + self.everyone[first + self.size :]

    # --- rounds and parts of them -----------------------------------------------------------------------------

    def levels(self, nbytes: int, *, inside: Sequence[Writers], across: Sequence[Writers]) -> Iterator[list[Chunk]]:
        """Rounds, as ``rounds`` makes them, in which these ranks write so many blocks on each level."""
        self._needs = (tuple(inside), tuple(across))
        return self.rounds(nbytes, spread="ranges")

    def _plan_areas(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int = 0
    ) -> tuple[int, int, Areas]:
        layout, (inside, across) = self.layout, self._needs
        regions, piece = _placed(layout, inside, across, nbytes)
        first = len(self._regions)
        for level, needs in ((self.inside, inside), (self.across, across)):
            level.block_bytes = piece
            for group in needs:
                level.region_of |= dict(zip(group.ranks, range(first, first + len(group.ranks)), strict=True))
                first += len(group.ranks)
        self._regions.extend(regions)
        chunks = min(self.style.chunks, self._share_doorbells(*(max(w.blocks for w in needs) for needs in self._needs)))
        self._chunk_bytes = round_up(-(-min(piece, nbytes) // chunks), LINE_BYTES)
        return piece, 0, Areas({}, piece, chunks)

    def _share_doorbells(self, inside: int, across: int) -> int:
        """How many a block has, of so many blocks. Those inside are the last ones: they may lie in ranks' memories."""
        layout = self.layout
        own = layout.own_doorbells or layout.doorbells_per_rank * inside // (inside + across)
        a_block = min(own // inside, (layout.doorbells_per_rank - own) // across)
        if a_block < 1:
            raise ArgumentError(
                f"{self.call}: {inside} blocks a rank inside and {across} across need as many doorbells, the layout "
                f"has {own} and {layout.doorbells_per_rank - own} per rank"
            )
        self.inside.first_doorbell = layout.doorbells_per_rank - own
        return a_block

    @property
    def stride(self) -> int:
        """Bytes of each position's slice of a block, but for the last ones, which may be short or empty."""
        return -(-self.nbytes // (self.size * LINE_BYTES)) * LINE_BYTES

    def slice_of(self, position: int, chunk: Chunk) -> Chunk:
        """What of this chunk of a slice there is in that position's."""
        left = min(self.stride * (position + 1), self.nbytes) - (self.stride * position + chunk.offset)
        return chunk._replace(nbytes=min(max(left, 0), chunk.nbytes))

    def share_of(self, cluster: int, chunk: Chunk) -> Chunk:
        """The part of a chunk that one cluster takes care of; the last ones may have none."""
        step = round_up(-(-chunk.nbytes // self.clusters), LINE_BYTES)
        at = min(step * cluster, chunk.nbytes)
        size = min(step, chunk.nbytes - at)
        return chunk._replace(offset=chunk.offset + at, nbytes=size, slot_offset=chunk.slot_offset + at)

    # --- words ------------------------------------------------------------------------------------------------

    def room(self, name: str, row: int = 0, rows: int = 1) -> Operand:
        """Scratch memory for a chunk, under a name: one of ``rows``."""
        if name not in self._rooms:
            self._rooms[name] = self._scratch_bytes
            self._scratch_bytes += rows * self._chunk_bytes
        return Operand(Kind.BUFFER, SCRATCH, 0, self._rooms[name] + row * self._chunk_bytes)

    def kept(self, chunk: Chunk) -> Operand:
        """Scratch memory for this chunk for as long as its slot is its own."""
        a_round = self._areas.doorbells_per_block
        row = chunk.seq % self.layout.slots * a_round + chunk.number
        return self.room("kept", row, self.layout.slots * a_round)

    def record(self, stream: str) -> int:
        """An event that follows all of the stream so far."""
        self._events += 1
        self._emit(stream, Op.RECORD, arg=self._events - 1)
        return self._events - 1

    def overwritten(self, stream: str) -> int | None:
        """The same where the result will replace, in place, what the stream has read so far."""
        return self.record(stream) if self.call.in_place else None

    def order(self, event: int | None, stream: str) -> None:
        """The stream goes on only after the event."""
        if event is not None:
            self._emit(stream, Op.AWAIT, arg=event)

    def _leave(self, seq: int) -> None:
        """What was read in other streams, and passed on to nobody, is over as well."""
        for stream in sorted(self._loose):
            self.order(self.record(stream), "retrieve")
        self._loose.clear()
        self._say_done(seq)


@dataclass(eq=False)
class Level:
    """The ranks that a rank exchanges with on one level, itself among them, and its words."""

    b: Levels = field(repr=False)
    name: str
    ranks: list[int]
    first_doorbell: int = 0  # of each rank's
    region_of: dict[int, int] = field(default_factory=dict)
    block_bytes: int = 0

    @property
    def peers(self) -> list[int]:
        """Everyone else, the next one first."""
        own = self.ranks.index(self.b.rank)
        return self.ranks[own + 1 :] + self.ranks[:own]

    def block(self, number: int) -> Block:
        return Block(self, number)

    def publish(self, chunk: Chunk, src: Operand, block: int = 0, *, stream: str = "publish") -> None:
        """Put a chunk of one of this rank's blocks where its peers find it."""
        if not chunk.nbytes:
            return
        if stream == "publish":
            self.b._enter(chunk.seq, stream)
        self.store(chunk, src, block, stream=stream)
        self.send(chunk, block, stream=stream)

    def store(self, chunk: Chunk, src: Operand, block: int, *, stream: str) -> None:
        """Only store it: ``send`` follows."""
        if chunk.nbytes:
            self.b._emit(stream, Op.WRITE, dst=self._area(chunk, self.b.rank, block), a=src, nbytes=chunk.nbytes)

    def send(self, chunk: Chunk, *blocks: int, stream: str, parts: Sequence[Chunk] = ()) -> None:
        """Make what was stored of these blocks visible, and say so under the first one's doorbell.

        ``parts``: of the chunk, of which nothing else was stored.
        """
        for block in blocks:
            for part in parts or [chunk]:
                self.b._emit(stream, Op.FLUSH, a=self._area(part, self.b.rank, block), nbytes=part.nbytes)
        self.b._emit(stream, Op.FENCE)
        self.b._emit(stream, Op.SIGNAL, arg=self._doorbell(chunk, self.b.rank, blocks[0]), value=chunk.seq)

    def retrieve(
        self,
        dst: Operand,
        chunk: Chunk,
        peer: int,
        block: int = 0,
        *,
        stream: str = "retrieve",
        to: Block | None = None,
    ) -> None:
        """Get a chunk of one of a peer's blocks; ``to``: store it to a block of this rank's, too, and ``send`` that."""
        if not chunk.nbytes:
            return
        area = self._await(chunk, peer, block, stream)
        dst2 = to.level._area(chunk, self.b.rank, to.number) if to else NOTHING
        self.b._emit(stream, Op.READ, dst=dst, dst2=dst2, a=area, nbytes=chunk.nbytes)
        if to is None and stream != "retrieve":
            self.b._loose.add(stream)

    def retrieve_bundle(self, places: Sequence[Operand], chunk: Chunk, peer: int, first: int) -> None:
        """Get a chunk of each of a peer's blocks from ``first`` on, which it sent together."""
        if not chunk.nbytes:
            return
        self.b._emit("retrieve", Op.WAIT, arg=self._doorbell(chunk, peer, first), value=chunk.seq)
        for block, dst in enumerate(places, first):
            area = self._area(chunk, peer, block)
            self.b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
            self.b._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)

    def forward(
        self, dst: Operand, chunk: Chunk, peer: int, block: int = 0, *, stream: str = "retrieve", to: Block
    ) -> None:
        """Retrieve a chunk and send it on at once."""
        if chunk.nbytes:
            self.retrieve(dst, chunk, peer, block, stream=stream, to=to)
            to.level.send(chunk, to.number, stream=stream)

    def fold(
        self,
        dst: Operand,
        chunk: Chunk,
        own: Operand,
        block: int = 0,
        *,
        stream: str,
        last: bool,
        to: Block | None = None,
    ) -> None:
        """Combine this chunk of all ranks of the level in their order; ``own`` is this rank's.

        ``last``: nothing is folded in after this. ``to``: send the result as that block of this rank's.
        """
        if not chunk.nbytes:
            return
        sources = [own if rank == self.b.rank else self._area(chunk, rank, block) for rank in self.ranks]
        dst2 = to.level._area(chunk, self.b.rank, to.number) if to else NOTHING
        self.b._combine(
            dst,
            dst2,
            chunk.nbytes,
            sources,
            arrive=lambda index: self._await(chunk, self.ranks[index], block, stream),
            divide=last and self.b.call.redop == "avg",
            stream=stream,
            accumulator=self.b.room(f"{stream} sum") if len(sources) > 3 else NOTHING,
        )
        if to is not None:
            to.level.send(chunk, to.number, stream=stream)

    # --- how ------------------------------------------------------------------------------------------------------

    def _area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        offset = block * self.block_bytes + chunk.slot_offset
        return Operand(Kind.REGION, self.region_of[writer], chunk.seq, offset)

    def _doorbell(self, chunk: Chunk, writer: int, block: int) -> int:
        index = self.first_doorbell + block * self.b._areas.doorbells_per_block + chunk.number
        return self.b.layout.published(writer, index)

    def _await(self, chunk: Chunk, peer: int, block: int, stream: str) -> Operand:
        area = self._area(chunk, peer, block)
        self.b._emit(stream, Op.WAIT, arg=self._doorbell(chunk, peer, block), value=chunk.seq)
        self.b._emit(stream, Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        return area


@lru_cache(64)  # the same for all ranks
def _placed(
    layout: Layout, inside: tuple[Writers, ...], across: tuple[Writers, ...], nbytes: int
) -> tuple[tuple[Region, ...], int]:
    """A region for each writer inside, then across, and how much of a block fits."""
    if not layout.owned:
        return _in_pool(layout, (*inside, *across), nbytes)
    size, own = layout.slot_card_bytes, []
    for group in inside:
        own += [Region(layout.pool_cards + rank, 1, LINE_BYTES, 0, 0, size) for rank in group.ranks]
    regions, piece = _in_pool(layout, across, nbytes)
    return (*own, *regions), min(piece, *(round_down(size // group.blocks, LINE_BYTES) for group in inside))


def _in_pool(layout: Layout, groups: tuple[Writers, ...], nbytes: int) -> tuple[tuple[Region, ...], int]:
    """Each group's in a part of the slot of its own."""
    shares = [len(group.ranks) * group.blocks for group in groups]
    regions: list[Region] = []
    pieces = []
    for number, group in enumerate(groups):
        begin, end = (
            round_down(layout.slot_card_bytes * sum(shares[:n]) // sum(shares), LINE_BYTES)
            for n in (number, number + 1)
        )
        part = replace(layout, slot_card_bytes=end - begin)
        placed, piece = place(part, len(group.ranks), group.blocks, nbytes, "ranges")
        regions += [replace(region, base=region.base + begin) for region in placed]
        pieces.append(piece)
    return tuple(regions), min(pieces)
