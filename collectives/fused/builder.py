"""The words of fused operators: those of collectives, a stream that computes, and events between the streams.

multiply   COMPUTE, for every tile of some rows
handed_on  RECORD in the stream that is ready, AWAIT in the one that needs it
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from collectives.builder import Builder, Chunk, Event, VariantSpec
from collectives.builder.slots import SlotCarrier
from collectives.fused.shapes import WEIGHTS, Shapes, buffers, shapes
from cxlemu.plan import DTYPES, Buffer, Frame, Gemm, Kernel, Kind, Op, Operand, RankPart

STYLE_OF = {
    "fused": VariantSpec("fused", overlap=True),
    "medium": VariantSpec("medium", overlap=True),
    "unfused": VariantSpec("unfused", chunks=4, overlap=True),
}
FILLED_MIN = 8  # tiles: fewer are written sooner one by one than as rows that are filled in


class _Pulled(SlotCarrier):
    """A carrier with which a tile lies in its writer's part of the ring."""

    in_columns = False  # tiles are of several sizes


class _Pushed(_Pulled):
    """A carrier with which a tile lies in its reader's part of the ring, which may be in the reader's own memory."""

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        if block < self.b.ranks:
            writer, block = block, writer
        return super().area(chunk, writer, block)


@dataclass
class FusedBuilder(Builder):
    """Builds one rank's part of a fused operator.

    Rows and shards are counted in the matrix that moves between ranks: A, or the result.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.written.streams["compute"] = []

    @cached_property
    def gemm(self) -> Gemm:
        """The product's shape, tiles, order and transport."""
        assert self.call.gemm is not None  # plans.build sees to it
        return self.call.gemm

    @cached_property
    def shapes(self) -> Shapes:
        return shapes(self.call)

    @cached_property
    def itemsize(self) -> int:
        return DTYPES[self.call.dtype].itemsize

    @cached_property
    def row_bytes(self) -> int:
        return self.nbytes // self.shard_rows

    @cached_property
    def shard_rows(self) -> int:
        return self.gemm.m // self.ranks

    @property
    def order(self) -> list[int]:
        """All ranks, in the order in which this one turns to them, as `collectives.choices.ORDERS` defines it."""
        if self.gemm.order == "natural":
            return list(range(self.ranks))
        if self.call.collective == "all_gather_gemm":
            return [(self.rank + step) % self.ranks for step in range(self.ranks)]
        if self.gemm.order == "own_last":
            return [(self.rank + 1 + step) % self.ranks for step in range(self.ranks)]
        return [(step - self.rank) % self.ranks for step in range(self.ranks)]

    def chunked(self, *, blocks: int = 1) -> Iterator[list[Chunk]]:
        """Yield rounds of communication tiles, each chunk the same part of every shard."""
        tile_bytes = self.gemm.comm_tile_rows * self.row_bytes
        return self.rounds(self.nbytes, blocks=blocks, spread="ranges", chunk_bytes=tile_bytes)

    def row_tiles(self) -> list[range]:
        """The rows of a shard, tile by tile, counted from the start of the shard. The last tile may be smaller."""
        rows, step = self.shard_rows, self.gemm.tile_rows
        return [range(first, min(first + step, rows)) for first in range(0, rows, step)]

    # Tiles are parts of a shard, or several whole shards: groups from shard 0 on, the last one perhaps smaller.

    @cached_property
    def shards_a_tile(self) -> int:
        """How many shards a compute tile spans; 1 also where a shard is several tiles."""
        return max(1, self.gemm.tile_rows // self.shard_rows)

    @property
    def first_shards(self) -> range:
        return range(0, self.ranks, self.shards_a_tile)

    def first_shard(self, shard: int) -> int:
        return shard - shard % self.shards_a_tile

    def shards_from(self, first: int) -> range:
        return range(first, min(first + self.shards_a_tile, self.ranks))

    def rows_from(self, first: int) -> range:
        """The rows of the group that begins with shard ``first``, counted in the whole matrix."""
        shards = self.shards_from(first)
        return range(shards.start * self.shard_rows, shards.stop * self.shard_rows)

    def rows_of(self, shard: int, tile: range) -> range:
        return range(shard * self.shard_rows + tile.start, shard * self.shard_rows + tile.stop)

    @property
    def sources(self) -> list[int]:
        """The peers in the order in which they are copied in: group after group, beginning with this rank's own."""
        peers = [peer for peer in self.order if peer != self.rank]
        return sorted(peers, key=lambda peer: (self.first_shard(peer) - self.first_shard(self.rank)) % self.ranks)

    def matrix(self, rows: int, columns: int) -> Operand:
        """Scratch memory for a matrix of the call's dtype."""
        return self.scratch(rows * columns * self.itemsize)

    def multiply(self, dst: Operand, a: Operand, rows: int) -> None:
        """Multiply ``rows`` of A by this rank's columns of B, tile by tile, in the stream that computes."""
        step, n = self.gemm.tile_cols, self.shapes.n
        whole, rest = divmod(n, step)
        if whole < FILLED_MIN:
            for first in range(0, whole * step, step):
                self._multiply(dst, a, rows, first, step)
        else:
            tiles = self._rows("compute", whole, lambda: self._multiply(dst, a, rows, 0, step))[:, 0]
            columns = np.arange(whole) * step * self.itemsize
            tiles["dst"]["offset"] += columns
            tiles["b"]["offset"] += columns
        if rest:
            self._multiply(dst, a, rows, n - rest, rest)

    def _multiply(self, dst: Operand, a: Operand, rows: int, first: int, columns: int) -> None:
        size, (n, k) = self.itemsize, self.shapes[4:]
        kernel = Kernel(f"gemm_{self.call.dtype}", (rows, columns, k, k, n, n))
        number = self.written.kernel(kernel)
        nbytes = ((rows - 1) * n + columns) * size
        sources = [a, Operand(Kind.BUFFER, WEIGHTS, 0, first * size)]
        self._emit("compute", Op.COMPUTE, arg=number, nbytes=nbytes, dst=dst.at(first * size), sources=sources)

    def copy_own(self, dst: Operand) -> None:
        self._emit("retrieve", Op.COPY, dst=dst, a=self.input(), nbytes=self.nbytes)

    def ready(self, stream: str) -> Event:
        """Record an event that follows everything in the stream so far."""
        return self._record(stream)

    def after(self, stream: str, event: Event | None) -> None:
        self._order(event, stream)

    def finish(self) -> tuple[Frame, RankPart]:
        frame, part = super().finish()
        return frame, replace(part, buffers=(*part.buffers, buffers(self.call)[2]))

    def _new_carrier(self) -> SlotCarrier:
        return _Pushed(self) if self.gemm.transport == "push" else _Pulled(self)

    @cached_property
    def _buffers(self) -> tuple[Buffer, Buffer]:
        return buffers(self.call)[:2]
