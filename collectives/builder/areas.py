"""Where blocks and their doorbells lie: in a round's slot, or, with zero copy, where the arrays lie in the heap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from collectives import contracts
from collectives.builder.part import Part
from collectives.builder.placement import place
from collectives.builder.record_rows import Ints
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Kind, Operand, Region
from cxlemu.rounding import round_up


class Chunk(NamedTuple):
    """A part of every block that is published under one doorbell (one per line in the line style).

    A round without data is one chunk of no bytes.
    """

    seq: int  # the round, relative to the call's first epoch
    number: int  # in its round
    offset: int  # from the start of the block
    nbytes: int
    slot_offset: int  # from the start of the block's place in the slot


@dataclass(frozen=True)
class Areas:
    """Where this loop's blocks lie: a region per writer, a doorbell per (block, chunk) or per (bell, chunk).

    In the heap, block k is bytes [k * ``nbytes``, (k + 1) * ``nbytes``) of its writer's input; one that is no part of
    the input is the writer's slice of the output or, where that is private, has a place in the slots.
    """

    region_of: dict[int, int]  # writer -> region id, in the slots
    block_bytes: int  # a block's place in its writer's area
    doorbells_per_block: int
    nbytes: int = 0  # a whole block's, over all rounds
    placed_in_heap: int = 0  # so many blocks are parts of the input
    input_of: dict[int, int] = field(default_factory=dict)  # writer -> region id, in the heap
    output_of: dict[int, int] = field(default_factory=dict)
    blocks: int = 0  # so many a writer
    bells: int = 0  # so many a rank and chunk
    first_bell: int = 0  # where these begin: after doorbells of the blocks, where those carry the blocks themselves


@dataclass
class Placed(Part):
    """Places blocks, and finds them again."""

    _areas: Areas = field(init=False, default_factory=lambda: Areas({}, 0, 0))

    @property
    def areas(self) -> Areas:
        """Of the loop that is under way, or was the last one."""
        return self._areas

    @property
    def grain(self) -> int:
        """Bytes that travel as one: parts of a chunk that are published by themselves begin at multiples of it."""
        return PAYLOAD_BYTES if self.spec.in_lines else LINE_BYTES

    def _plan_areas(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int = 0, bells: int = 0
    ) -> tuple[int, int, Areas]:
        """(how much of a block fits a round, chunk size or 0 for "as many as doorbells", the areas)."""
        piece, step, areas = self._placed(nbytes, writers, blocks, spread, chunk_bytes, bells)
        first_bell = blocks if self.spec.in_lines and bells else 0
        return piece, step, replace(areas, blocks=blocks, bells=bells or blocks, first_bell=first_bell)

    def _doorbells_of(self, count: int, what: str) -> int:
        """How many chunks they give each of so many. Raises ArgumentError where they do not suffice."""
        doorbells = self.layout.doorbells_per_rank // count
        if doorbells < 1:
            raise ArgumentError(
                f"{self.call}: {count} {what} a rank need as many doorbells, the layout has "
                f"{self.layout.doorbells_per_rank} per rank"
            )
        return doorbells

    def _placed(
        self, nbytes: int, writers: list[int], blocks: int, spread: str, chunk_bytes: int, bells: int
    ) -> tuple[int, int, Areas]:
        if self.spec.in_lines:
            doorbells = self._doorbells_of(blocks + bells, "blocks and bells" if bells else "blocks")
        else:
            doorbells = self._doorbells_of(bells or blocks, "bells" if bells else "blocks")
        if self.spec.in_lines:  # every line carries its own flag and up to 56 bytes; a round is one chunk
            piece = doorbells * PAYLOAD_BYTES
            return piece, piece, Areas({}, 0, doorbells)
        placement = spread if self.spec.interleaved else "sequential"
        chunks = min(self.spec.chunks, doorbells)
        if self.spec.zero_copy:
            return self._plan_heap_areas(nbytes, writers, blocks, placement, chunks)
        regions, room = place(self.layout, len(writers), blocks, nbytes, placement)
        piece, step = room, min(chunk_bytes, room)
        if step:
            chunks = min(room // round_up(step, LINE_BYTES), doorbells)
            piece = chunks * step
        return piece, step, Areas(self._table(writers, regions), room, chunks)

    def _plan_heap_areas(
        self, nbytes: int, writers: list[int], blocks: int, placement: str, chunks: int
    ) -> tuple[int, int, Areas]:
        heap = self.call.heap
        assert heap is not None  # catalog.build sees to it
        inputs = [
            (heap.input + writer * heap.step, contracts.buffers(self.call, writer)[0].nbytes) for writer in writers
        ]
        input_of = self._table(writers, [self._in_heap(w, *at) for w, at in zip(writers, inputs, strict=True)])
        placed_in_heap = min(blocks, max(-(-size // nbytes) for _, size in inputs))
        piece = round_up(nbytes, LINE_BYTES)
        if placed_in_heap == blocks:
            return piece, 0, Areas({}, 0, chunks, nbytes, placed_in_heap, input_of)
        if heap.output is not None:
            outputs = [self._in_heap(w, heap.output, contracts.buffers(self.call, w)[1].nbytes) for w in writers]
            return piece, 0, Areas({}, 0, chunks, nbytes, placed_in_heap, input_of, self._table(writers, outputs))
        regions, piece = place(self.layout, len(writers), blocks - placed_in_heap, nbytes, placement)
        return piece, 0, Areas(self._table(writers, regions), piece, chunks, nbytes, placed_in_heap, input_of)

    def _table(self, writers: list[int], regions: Iterable[Region]) -> dict[int, int]:
        """New regions, one for each writer: their ids."""
        first = len(self._regions)
        self._regions.extend(regions)
        return {writer: first + index for index, writer in enumerate(writers)}

    def _in_heap(self, writer: int, at: int, nbytes: int) -> Region:
        strip = self.layout.heap_strip(writer)
        if not 0 <= at <= strip.nbytes - nbytes:
            raise ArgumentError(
                f"{self.call}: {nbytes} bytes at {at} do not lie in the heap, which has {strip.nbytes} bytes a rank: "
                f"make the communicator with a larger heap_bytes"
            )
        return Region(strip.card, 1, LINE_BYTES, strip.offset, at, nbytes, heap=True)

    def _area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        areas = self._areas
        if block < areas.placed_in_heap:
            return Operand(Kind.REGION, areas.input_of[writer], 0, block * areas.nbytes + chunk.offset)
        if areas.output_of:
            return Operand(Kind.REGION, areas.output_of[writer], 0, writer * areas.nbytes + chunk.offset)
        offset = (block - areas.placed_in_heap) * areas.block_bytes + chunk.slot_offset
        return Operand(Kind.REGION, areas.region_of[writer], chunk.seq, offset)

    def _in_slot(self, block: int) -> bool:
        return not self.spec.in_lines and block >= self._areas.placed_in_heap and not self._areas.output_of

    def _regions_of(self, writers: Ints) -> Ints:
        return np.array([self._areas.region_of[writer] for writer in writers.tolist()], np.int64)

    def _doorbell(self, chunk: Chunk, writer: int, block: int, line: int = 0) -> int:
        index = block * self._areas.doorbells_per_block + chunk.number + line
        return self.layout.published(writer, index)

    def _flag(self, chunk: Chunk, writer: int, bell: int) -> int:
        """A doorbell that stands for no block."""
        return self._doorbell(chunk, writer, self._areas.first_bell + bell)
