"""The words of one level, and the same for many peers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from collectives.builder import Chunk, Ints
from collectives.builder.folds import FOLDED_AT_ONCE, operands
from cxlemu.plan import NOTHING, Kind, Op, Operand

if TYPE_CHECKING:
    from collectives.algorithms.hierarchical.levels import Levels


class LevelBlock(NamedTuple):
    level: Level
    number: int


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
    def each_peer(self) -> Ints:
        return np.array(self.peers, np.int64)

    @property
    def peers(self) -> list[int]:
        """All other ranks of the level, the next one first."""
        own = self.ranks.index(self.b.rank)
        return self.ranks[own + 1 :] + self.ranks[:own]

    def block(self, number: int) -> LevelBlock:
        return LevelBlock(self, number)

    def publish(self, chunk: Chunk, src: Operand, block: int = 0, *, stream: str = "publish") -> None:
        """Put a chunk of one of this rank's blocks where its peers find it; only "publish" waits for a free slot."""
        if not chunk.nbytes:
            return
        if stream == "publish":
            self.b._enter(chunk.seq, stream)
        self.store(chunk, src, block, stream=stream)
        self.send(chunk, block, stream=stream)

    def store(self, chunk: Chunk, src: Operand, block: int, *, stream: str) -> None:
        """Store a chunk to one of this rank's blocks without telling its peers: ``send`` follows."""
        if chunk.nbytes:
            self.b._emit(stream, Op.WRITE, dst=self._area(chunk, self.b.rank, block), a=src, nbytes=chunk.nbytes)

    def send(self, chunk: Chunk, *blocks: int, stream: str, parts: Sequence[Chunk] = ()) -> None:
        """Make stored blocks visible, or ``parts`` of them alone, and ring the first one's doorbell."""
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
        to: LevelBlock | None = None,
    ) -> None:
        """Get a chunk of one of a peer's blocks, and store it in the block ``to`` as well, if any: ``send`` follows."""
        if not chunk.nbytes:
            return
        area = self._await(chunk, peer, block, stream)
        dst2 = to.level._area(chunk, self.b.rank, to.number) if to else NOTHING
        self.b._emit(stream, Op.READ, dst=dst, dst2=dst2, a=area, nbytes=chunk.nbytes)
        if to is None and stream != "retrieve":
            self.b._loose.add(stream)

    def publish_each(self, chunk: Chunk, offset: Ints, blocks: Ints, *, nbytes: Ints | None = None) -> None:
        """Publish a chunk of each of many blocks in turn from the input at ``at``; empty ones are left out."""
        offset, blocks, sizes = _some(chunk, offset, blocks, nbytes)
        if len(blocks) < FOLDED_AT_ONCE:
            for start, block, size in zip(offset.tolist(), blocks.tolist(), sizes.tolist(), strict=True):
                self.publish(chunk._replace(nbytes=size), self.b.input(start), block)
            return
        self.b._enter(chunk.seq, "publish")
        rows = self.b._rows("publish", len(blocks), lambda: self._written(chunk))
        write, flush, _, signal = (rows[:, column] for column in range(4))
        write["dst"]["offset"] = flush["a"]["offset"] = blocks * self.block_bytes + chunk.slot_offset
        write["a"]["offset"] = offset
        write["nbytes"] = flush["nbytes"] = sizes
        signal["arg"] += (blocks * self.b.areas.doorbells_per_block).astype(np.int32)

    def _written(self, chunk: Chunk) -> None:
        self.store(chunk, self.b.input(), 0, stream="publish")
        self.send(chunk, 0, stream="publish")

    def retrieve_each(
        self, offset: Ints, chunk: Chunk, peers: Ints, blocks: Ints, *, nbytes: Ints | None = None
    ) -> None:
        """Retrieve a chunk of each of many blocks in turn to the output at ``at``; empty ones are left out."""
        offset, which, sizes = _some(chunk, offset, np.column_stack([peers, blocks]), nbytes)
        peers, blocks = which[:, 0], which[:, 1]
        if len(peers) < FOLDED_AT_ONCE:
            for start, (peer, block), size in zip(offset.tolist(), which.tolist(), sizes.tolist(), strict=True):
                self.retrieve(self.b.output(start), chunk._replace(nbytes=size), peer, block)
            return
        first = int(peers[0])
        rows = self.b._rows("retrieve", len(peers), lambda: self.retrieve(self.b.output(), chunk, first))
        wait, drop, read = (rows[:, column] for column in range(3))
        steps = (peers - first) * self.b.layout.doorbells_per_rank + blocks * self.b.areas.doorbells_per_block
        wait["arg"] += steps.astype(np.int32)
        drop["a"]["id"] = read["a"]["id"] = self._regions_of(peers)
        drop["a"]["offset"] = read["a"]["offset"] = blocks * self.block_bytes + chunk.slot_offset
        read["dst"]["offset"] = offset
        drop["nbytes"] = read["nbytes"] = sizes

    def retrieve_bundle(self, places: Sequence[Operand], chunk: Chunk, peer: int, first: int) -> None:
        """Get a chunk of each of several blocks that a peer sent together: the doorbell of ``first`` stands for all."""
        if not chunk.nbytes:
            return
        self.b._emit("retrieve", Op.WAIT, arg=self._doorbell(chunk, peer, first), value=chunk.seq)
        for block, dst in enumerate(places, first):
            area = self._area(chunk, peer, block)
            self.b._emit("retrieve", Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
            self.b._emit("retrieve", Op.READ, dst=dst, a=area, nbytes=chunk.nbytes)

    def forward(
        self, dst: Operand, chunk: Chunk, peer: int, block: int = 0, *, stream: str = "retrieve", to: LevelBlock
    ) -> None:
        """Retrieve a chunk and send it on at once in ``to``, this rank's block on this level or the other one."""
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
        to: LevelBlock | None = None,
    ) -> None:
        """Combine a chunk of all ranks of the level, in their order, and send the result in ``to`` as well.

        ``own`` is this rank's contribution; ``last``: nothing is folded in after this, so that avg divides.
        """
        if not chunk.nbytes:
            return
        dst2 = to.level._area(chunk, self.b.rank, to.number) if to else NOTHING
        divide = last and self.b.call.redop == "avg"
        room = self.b.room(f"{stream} sum") if len(self.ranks) > 3 else NOTHING
        if len(self.ranks) >= FOLDED_AT_ONCE:
            ranks, offset = np.array(self.ranks), np.full(len(self.ranks), block * self.block_bytes + chunk.slot_offset)
            index = self.ranks.index(self.b.rank)
            ids = self._regions_of(np.where(ranks == self.b.rank, ranks[index - 1], ranks))  # it may have none itself
            rows = operands(Kind.REGION, ids, chunk.seq, offset)
            rows[index] = own
            bells = ranks * self.b.layout.doorbells_per_rank + self._doorbell(chunk, 0, block)
            self.b._combine_rows(
                dst, dst2, chunk, rows, bells, own=index, divide=divide, stream=stream, accumulator=room
            )
        else:
            self._fold_one_by_one(dst, dst2, chunk, own, block, divide, stream, room)
        if to is not None:
            to.level.send(chunk, to.number, stream=stream)

    def _fold_one_by_one(
        self,
        dst: Operand,
        dst2: Operand,
        chunk: Chunk,
        own: Operand,
        block: int,
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        sources = [own if rank == self.b.rank else self._area(chunk, rank, block) for rank in self.ranks]
        self.b._combine(
            dst,
            dst2,
            chunk.nbytes,
            sources,
            arrive=lambda index: self._await(chunk, self.ranks[index], block, stream),
            divide=divide,
            stream=stream,
            accumulator=accumulator,
        )

    # --- how ------------------------------------------------------------------------------------------------------

    def _area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        offset = block * self.block_bytes + chunk.slot_offset
        return Operand(Kind.REGION, self.region_of[writer], chunk.seq, offset)

    def _regions_of(self, writers: Ints) -> Ints:
        return np.array([self.region_of[writer] for writer in writers.tolist()], np.int64)

    def _doorbell(self, chunk: Chunk, writer: int, block: int) -> int:
        index = self.first_doorbell + block * self.b.areas.doorbells_per_block + chunk.number
        return self.b.layout.published(writer, index)

    def _await(self, chunk: Chunk, peer: int, block: int, stream: str) -> Operand:
        area = self._area(chunk, peer, block)
        self.b._emit(stream, Op.WAIT, arg=self._doorbell(chunk, peer, block), value=chunk.seq)
        self.b._emit(stream, Op.INVALIDATE, a=area, nbytes=chunk.nbytes)
        return area


def _some(chunk: Chunk, offset: Ints, which: Ints, nbytes: Ints | None) -> tuple[Ints, Ints, Ints]:
    """``at`` and ``which`` of those that have any bytes, and how many each has."""
    sizes = np.full(len(offset), chunk.nbytes) if nbytes is None else nbytes
    return offset[sizes > 0], which[sizes > 0], sizes[sizes > 0]
