"""Carries the blocks of many ranks so that they lie side by side, and travel in one copy.

Side by side lie the blocks of all writers, for a rank that reads many of them, or those of one writer for all readers.
Crosswise, where every rank has a block for every other, both do: those of one writer, and those for one reader.
"""

from functools import lru_cache

import numpy as np

from collectives.builder.carriers import StagingCarrier
from collectives.builder.crosswise import Crosswise, crosswise
from collectives.builder.part import Ints
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, adjacent, region_ids
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Kind, Op, Operand
from cxlemu.rounding import round_up

SIDE_BY_SIDE = "side_by_side"  # a loop's spread: the blocks of all writers one after another, over all cards
CROSSWISE = "crosswise"  # another: every writer's blocks one after another, and every reader's as well


class BatchCarrier(StagingCarrier):
    """Carries blocks in slots: side by side or crosswise where a loop says so, and else as any staged variant."""

    _place_of: dict[int, int]  # a writer's place among all, where its blocks lie side by side; other writers have none
    crossing: Crosswise | None = None  # of blocks crosswise

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        side_by_side = placement == SIDE_BY_SIDE
        self._place_of = places_of(tuple(loop.writers) if side_by_side else ())
        self.crossing = None
        self.in_columns = placement not in (SIDE_BY_SIDE, CROSSWISE)
        if placement == CROSSWISE:
            return self._crosswise(loop)
        if not side_by_side:
            return super()._placed(loop, placement, doorbells)
        region, piece = adjacent(self.b.layout, len(loop.writers), loop.blocks, loop.nbytes)
        region_of = region_ids(self.b.written.add_regions([region]), tuple(loop.writers), shared=True)
        step = min(loop.chunk_bytes, piece)
        chunks = 1 if step else min(self.b.spec.chunks, doorbells)
        return step or piece, step, Areas(region_of, piece, chunks, loop.nbytes)

    def _crosswise(self, loop: Loop) -> tuple[int, int, Areas]:
        crossed = self.crossing = crosswise(self.b.layout, loop.nbytes)
        self._first_row = self.b.written.add_regions(crossed.rows)
        self._first_column = self.b.written.add_regions(crossed.columns)
        return crossed.place_bytes, crossed.place_bytes, Areas(RegionIds(), crossed.place_bytes, 1, loop.nbytes)

    def place_bytes(self, chunk: Chunk) -> int:
        """Return how far a chunk of a block is from that of the next one."""
        return round_up(chunk.whole_bytes, LINE_BYTES) if self.crossing is None else self.crossing.place_bytes

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: behind those of all blocks before it, in a row crosswise."""
        if self.crossing is not None:
            group, offset = divmod(block, self.crossing.readers)
            before = writer * self.crossing.readers + offset
            return Operand(Kind.REGION, self._first_row + group, chunk.seq, before * self.crossing.place_bytes)
        if not self._place_of:
            return super().area(chunk, writer, block)
        region_of, blocks = self.areas.region_of, self.areas.blocks
        before = block + blocks * self._place_of[writer]
        offset = chunk.slot_offset * blocks * len(region_of) + before * self.place_bytes(chunk)
        return Operand(Kind.REGION, region_of[writer], chunk.seq, offset)

    def run_from(self, chunk: Chunk, writer: int, reader: int) -> Operand:
        """Return where a run of writers' blocks begins: crosswise their blocks for one reader, else their only ones."""
        if self.crossing is None:
            return self.area(chunk, writer, 0)
        return Operand(Kind.REGION, self._first_column + reader, chunk.seq, writer * self.crossing.place_bytes)

    def behind_first(self, chunk: Chunk, writers: list[int]) -> Ints:
        """Return how many bytes behind the first of these writers' only blocks each lies, side by side."""
        places = [self._place_of[writer] for writer in writers]
        return np.array([place - places[0] for place in places]) * self.place_bytes(chunk)

    def rows(self, run: range) -> list[range]:
        """Cut a run of readers where one writer's blocks for them are no longer side by side."""
        if self.crossing is None:
            return [run]
        size = self.crossing.readers
        ends = [*range(round_up(run.start + 1, size), run.stop, size), run.stop]
        return [range(begin, end) for begin, end in zip([run.start, *ends], ends, strict=False)]

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Publish as in any slot, but whole lines where blocks lie side by side: a reader loads all between a run's
        ends."""
        whole = round_up(chunk.nbytes, LINE_BYTES)
        if self._place_of and whole > chunk.nbytes:
            padded = self.b.scratch(whole)
            self.b._emit(stream, Op.COPY, dst=padded, a=sources[0], nbytes=chunk.nbytes)
            chunk, sources = chunk._replace(nbytes=whole), [padded]
        super().push(stream, chunk, sources, block, written, bell)


@lru_cache(64)  # the same for all ranks
def places_of(writers: tuple[int, ...]) -> dict[int, int]:
    return {writer: place for place, writer in enumerate(writers)}
