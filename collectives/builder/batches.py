"""Batches: blocks of consecutive ranks in one copy, for fabrics on which every copy takes microseconds to start.

Blocks lie side by side in a slot, each from a line's begin on, so that a run of them is one range of the slot. It is
one range of the array as well where blocks are whole lines and travel in one chunk; else it goes through scratch
memory. The last block of an array may be short, as of a vector that is cut into slices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from collectives.builder.carriers import StagingCarrier
from collectives.builder.part import SCRATCH
from collectives.builder.slots import Areas, Chunk, Loop, Operands, RegionIds, SlotCarrier, adjacent
from collectives.builder.words import Builder
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DoorbellGroup, Kind, Op, Operand
from cxlemu.rounding import round_up

BATCH_RANKS = 16
SIDE_BY_SIDE = "side_by_side"  # a loop's spread: the blocks of all writers one after another, over all cards


class RankBatch(NamedTuple):
    """Consecutive ranks whose blocks travel together.

    Attributes:
        number: Its place among the call's batches, from 0: also the bell that announces it.
        ranks: The ranks.
        groups: For each number of a chunk, the group of these ranks' doorbells.
    """

    number: int
    ranks: range
    groups: tuple[int, ...]

    def runs(self, left_out: int) -> list[range]:
        """Return the ranks below and above one that is left out, as far as there are any."""
        first, end = self.ranks.start, self.ranks.stop
        return [run for run in (range(first, min(end, left_out)), range(max(first, left_out + 1), end)) if run]


class BlockRun(NamedTuple):
    """What the first blocks of a run of ranks have of a chunk: all of it, but for the last one, which may be short.

    Attributes:
        blocks: How many have something.
        last_bytes: What the last of them has.
    """

    blocks: int
    last_bytes: int

    def nbytes(self, chunk: Chunk) -> int:
        """Return how many bytes they have side by side, from the first to the last."""
        return (self.blocks - 1) * round_up(chunk.nbytes, LINE_BYTES) + self.last_bytes


class BatchCarrier(StagingCarrier):
    """Carries blocks in slots: side by side where a loop says so, chunk by chunk, and else as any staged variant."""

    _place_of: dict[int, int]  # of blocks side by side: a writer's place among all; else there is none

    def _placed(self, loop: Loop, placement: str, doorbells: int) -> tuple[int, int, Areas]:
        side_by_side = placement == SIDE_BY_SIDE
        self._place_of = {writer: place for place, writer in enumerate(loop.writers if side_by_side else ())}
        self.in_columns = not side_by_side
        if not side_by_side:
            return super()._placed(loop, placement, doorbells)
        region, piece = adjacent(self.b.layout, len(loop.writers), loop.blocks, loop.nbytes)
        [number] = self._table([0], [region]).values()
        region_of = RegionIds.fromkeys(loop.writers, number)
        return piece, 0, Areas(RegionIds(region_of), piece, min(self.b.spec.chunks, doorbells), loop.nbytes)

    def area(self, chunk: Chunk, writer: int, block: int) -> Operand:
        """Return where a chunk of a writer's block lies: side by side, behind that of all blocks before it."""
        if not self._place_of:
            return super().area(chunk, writer, block)
        region_of, blocks = self.areas.region_of, self.areas.blocks
        before = block + blocks * self._place_of[writer]
        at = chunk.slot_offset * blocks * len(region_of) + before * round_up(chunk.whole_bytes, LINE_BYTES)
        return Operand(Kind.REGION, region_of[writer], chunk.seq, at)

    def push(
        self, stream: str, chunk: Chunk, sources: Operands, block: int, written: bool = False, bell: int | None = None
    ) -> None:
        """Publish as in any slot, side by side whole lines: who reads a run of blocks reads all between its ends."""
        whole = round_up(chunk.nbytes, LINE_BYTES)
        if self._place_of and whole > chunk.nbytes:
            padded = self.b.scratch(whole)
            self.b._emit(stream, Op.COPY, dst=padded, a=sources[0], nbytes=chunk.nbytes)
            chunk, sources = chunk._replace(nbytes=whole), [padded]
        super().push(stream, chunk, sources, block, written, bell)


@dataclass
class Batches(Builder):
    """Builds one rank's part of a plan with a Builder's words, and with words for batches."""

    carries_checksums: ClassVar[bool] = False  # one is of a single block

    def _new_carrier(self) -> SlotCarrier:
        return BatchCarrier(self)

    def batches(self, *, left_out: int | None = None, end: int | None = None) -> list[RankBatch]:
        """Cut the ranks into batches. Every rank asks for the same ones, once, before the rounds.

        Args:
            left_out: A rank that is in none of them; None: all are in one.
            end: This rank and those above it are in none of them either, as they have no block; None: all have one.

        Returns:
            The batches, in rank order.
        """
        end = self.ranks if end is None else end
        parts = [range(end)] if left_out is None else [range(min(left_out, end)), range(left_out + 1, end)]
        cut = [part[at : at + BATCH_RANKS] for part in parts for at in range(0, len(part), BATCH_RANKS)]
        return [RankBatch(number, ranks, self._groups_of(ranks)) for number, ranks in enumerate(cut)]

    def _groups_of(self, ranks: range) -> tuple[int, ...]:
        chunks = min(self.spec.chunks, self.layout.doorbells_per_rank)
        doorbells = [self.layout.published(ranks.start, chunk) for chunk in range(chunks)]
        first = len(self.written.groups)
        self.written.groups += [DoorbellGroup(its, len(ranks), self.layout.doorbells_per_rank) for its in doorbells]
        return tuple(range(first, len(self.written.groups)))

    def retrieve_batch(self, batch: RankBatch, chunk: Chunk) -> None:
        """Wait for all ranks of a batch, and retrieve its peers' chunks to their blocks of the output.

        Args:
            batch: The batch, of ranks that publish one block each.
            chunk: The chunk, of the round that is under way, of a loop of blocks side by side.
        """
        for number, run in enumerate(batch.runs(self.rank)):
            if number == 0:
                self._emit("retrieve", Op.WAIT_ALL, arg=batch.groups[chunk.number], value=chunk.seq)
            held = self._blocks(self._buffers[1].nbytes, chunk, run)
            if not held.blocks:
                continue
            self._knows_free(chunk.seq)
            area, nbytes = self.carrier.area(chunk, run.start, 0), held.nbytes(chunk)
            target = self._place(self.output(), chunk, run, nbytes)
            self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=nbytes)
            self._emit("retrieve", Op.READ, dst=target, a=area, nbytes=nbytes)
            if target.id == SCRATCH:
                self._copies("retrieve", chunk, run, held, self.output(), target)

    def publish_batch(self, batch: RankBatch, chunk: Chunk) -> None:
        """Publish the input's blocks for a batch's peers, under the bell of its number.

        Args:
            batch: The batch.
            chunk: The chunk, of the round that is under way, of a loop with a block for each rank.
        """
        areas = []
        for run in batch.runs(self.rank):
            self._enter(chunk.seq, "publish")
            held = self._blocks(self._buffers[0].nbytes, chunk, run)
            areas.append((self.carrier.area(chunk, self.rank, run.start), held.nbytes(chunk)))
            source = self._place(self.input(), chunk, run, areas[-1][1])
            if source.id == SCRATCH:
                self._copies("publish", chunk, run, held, source, self.input())
            self._emit("publish", Op.WRITE, dst=areas[-1][0], a=source, nbytes=areas[-1][1])
        for area, nbytes in areas:
            self._emit("publish", Op.FLUSH, a=area, nbytes=nbytes)
        if areas:
            self._emit("publish", Op.FENCE)
            self._emit("publish", Op.SIGNAL, arg=self.carrier.flag(chunk, self.rank, batch.number), value=chunk.seq)

    def _blocks(self, array_bytes: int, chunk: Chunk, run: range) -> BlockRun:
        """Compute which blocks of a run have bytes of a chunk: the last one of an array may be short, then none."""
        left, block_bytes = array_bytes - chunk.offset - run.start * self.areas.nbytes, self.areas.nbytes
        if left <= 0:
            return BlockRun(0, 0)
        count = min(len(run), -(-left // block_bytes))
        return BlockRun(count, min(chunk.nbytes, left - (count - 1) * block_bytes))

    def _place(self, array: Operand, chunk: Chunk, run: range, nbytes: int) -> Operand:
        """Return where a run of blocks lies one after another as in a slot: in the array, or in scratch memory."""
        block_bytes = self.areas.nbytes
        if chunk.nbytes == block_bytes and block_bytes % LINE_BYTES == 0:
            return array.at(run.start * block_bytes)
        return self._scratch(nbytes)

    def _copies(self, stream: str, chunk: Chunk, run: range, held: BlockRun, dst: Operand, src: Operand) -> None:
        """Copy each block's chunk of a run between an array and scratch memory, as columns."""
        rows = self._rows(stream, held.blocks, lambda: self._emit(stream, Op.COPY, dst=dst, a=src))[:, 0]
        in_array = np.array(run[: held.blocks]) * self.areas.nbytes + chunk.offset
        in_scratch = np.arange(held.blocks) * round_up(chunk.nbytes, LINE_BYTES)
        rows["dst"]["offset"] += in_scratch if dst.id == SCRATCH else in_array
        rows["a"]["offset"] += in_scratch if src.id == SCRATCH else in_array
        rows["nbytes"] = chunk.nbytes
        rows["nbytes"][-1] = held.last_bytes
