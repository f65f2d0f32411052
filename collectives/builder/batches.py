"""Batches: blocks of consecutive ranks in one copy, for fabrics on which every copy takes microseconds to start.

Blocks lie side by side in a slot, each from a line's begin on, so that a run of them is one range of the slot. It is
one range of the array as well where blocks fill their places and travel in one chunk; else it goes through scratch
memory. The last block of an array may be short, as of a vector that is cut into slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from collectives.builder.batch_carrier import BatchCarrier
from collectives.builder.part import SCRATCH
from collectives.builder.slots import Chunk
from collectives.builder.words import Builder
from collectives.builder.written import Event
from cxlemu.plan import DoorbellGroup, Op, Operand

BATCH_RANKS = 16


class RankBatch(NamedTuple):
    """Consecutive ranks whose blocks travel together.

    Attributes:
        number: Its place among the call's batches, from 0: also the bell that announces it.
        ranks: The ranks.
        groups: For each number of a chunk, the group of these ranks' doorbells: of the only bell, or of the one that
            announces what is for this rank's own batch.
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
        blocks: How many blocks have bytes of the chunk.
        last_bytes: How many bytes of it the last of them has.
    """

    blocks: int
    last_bytes: int

    def nbytes(self, place_bytes: int) -> int:
        """Return how many bytes they have side by side, each in a place of as many, from the first to the last."""
        return (self.blocks - 1) * place_bytes + self.last_bytes


@dataclass
class Batches(Builder):
    """Builds one rank's part of a plan with a Builder's words, and with words for batches."""

    carries_checksums: ClassVar[bool] = False  # a checksum covers a single block

    carrier: BatchCarrier = field(init=False)
    _room: dict[str, Operand] = field(init=False, default_factory=dict)  # of each stream, for a run of blocks
    _longest: int = field(init=False, default=0)  # of all batches

    def _new_carrier(self) -> BatchCarrier:
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
        self._longest = max(self._longest, *map(len, cut), 0)
        chunks = range(min(self.spec.chunks, self.layout.doorbells_per_rank))
        return [RankBatch(number, ranks, self._groups_of(ranks, chunks)) for number, ranks in enumerate(cut)]

    def batches_in_pairs(self) -> list[RankBatch]:
        """Cut the ranks into batches that exchange blocks with each other. Every rank asks for them, before the rounds.

        Returns:
            The batches in the order in which this rank's own batch exchanges with them: in each step the batches form
            pairs, of which one batch may be its own partner.
        """
        size = -(-self.ranks // min(self.spec.chunks, self.layout.doorbells_per_rank))
        cut = [range(self.ranks)[at : at + size] for at in range(0, self.ranks, size)]
        self._longest = max(self._longest, size)
        groups = [[self._groups_of(ranks, range(bell, bell + 1)) for bell in range(len(cut))] for ranks in cut]
        own = self.rank // size
        found = [RankBatch(number, ranks, groups[number][own]) for number, ranks in enumerate(cut)]
        return [found[(step - own) % len(cut)] for step in range(1, len(cut) + 1)]

    def _groups_of(self, ranks: range, bells: range) -> tuple[int, ...]:
        doorbells = [self.layout.published(ranks.start, bell) for bell in bells]
        first = len(self.written.groups)
        self.written.groups += [DoorbellGroup(its, len(ranks), self.layout.doorbells_per_rank) for its in doorbells]
        return tuple(range(first, len(self.written.groups)))

    def retrieve_batch(self, batch: RankBatch, chunk: Chunk, after: Event | None = None) -> None:
        """Wait for all ranks of a batch, and retrieve its peers' chunks to their blocks of the output.

        Args:
            batch: The batch, of ranks that publish one block each, or crosswise one for each rank.
            chunk: The chunk, of the round that is under way, of a loop of blocks side by side or crosswise.
            after: An event that has to come first.
        """
        if self.rank not in batch.ranks:  # of its own batch it waits for its own bell as well
            self._order(after)
        for run, area in self._arrived(batch, chunk):
            held = self._blocks(self._buffers[1].nbytes, chunk, run)
            if not held.blocks:
                continue
            self._knows_free(chunk.seq)
            nbytes = held.nbytes(self.carrier.place_bytes(chunk))
            target = self._place("retrieve", self.output(), chunk, run)
            self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=nbytes)
            self._emit("retrieve", Op.READ, dst=target, a=area, nbytes=nbytes)
            if target.id == SCRATCH:
                self._copies("retrieve", chunk, run, held, self.output(), target)

    def _arrived(self, batch: RankBatch, chunk: Chunk) -> Iterator[tuple[range, Operand]]:
        """Wait for a batch, and yield the runs of its peers, each with the place of its first block."""
        for number, run in enumerate(batch.runs(self.rank)):
            if number == 0:
                self._emit("retrieve", Op.WAIT_ALL, arg=batch.groups[chunk.number], value=chunk.seq)
            yield run, self.carrier.run_from(chunk, run.start, self.rank)

    def fold_batches(self, dst: Operand, chunk: Chunk, own: Operand, batches: list[RankBatch]) -> Event:
        """Bring what all batches have for this rank to scratch memory, crosswise, and fold it in rank order.

        Args:
            dst: The local memory for the result.
            chunk: The chunk, or this rank's part of it.
            own: This rank's contribution, in local memory.
            batches: All batches, in the order in which they are read.

        Returns:
            The event after which the result is there.
        """
        place = self.carrier.place_bytes(chunk)
        for batch in batches:
            for run, area in self._arrived(batch, chunk):
                self._knows_free(chunk.seq)
                nbytes = BlockRun(len(run), chunk.nbytes).nbytes(place)
                target = self._scratch(place, row=self.ranks).at((run.start + 1 - self.ranks) * place)
                self._emit("retrieve", Op.INVALIDATE, a=area, nbytes=nbytes)
                self._emit("retrieve", Op.READ, dst=target, a=area, nbytes=nbytes)
        self._fold_fetched(dst, chunk, own, place)
        return self._record("retrieve")

    def publish_batch(self, batch: RankBatch, chunk: Chunk) -> Event | None:
        """Publish the input's blocks for a batch's peers, under the bell of its number.

        Args:
            batch: The batch.
            chunk: The chunk, of the round that is under way, of a loop with a block for each rank.

        Returns:
            The event after which these blocks of the input may be overwritten; None where the call is not in place.
        """
        runs = [row for run in batch.runs(self.rank) for row in self.carrier.rows(run)]
        if not runs or not self._blocks(self._buffers[0].nbytes, chunk, batch.ranks).blocks:
            return None
        self._enter(chunk.seq, "publish")
        areas = []
        for run in runs:
            held = self._blocks(self._buffers[0].nbytes, chunk, run)
            if not held.blocks:
                continue
            place = self.carrier.place_bytes(chunk)
            nbytes = held.blocks * place  # a reader of a run of writers' blocks loads all between its ends
            areas.append((self.carrier.area(chunk, self.rank, run.start), nbytes))
            source = self._place("publish", self.input(), chunk, run, held.last_bytes)
            if source.id == SCRATCH:
                self._copies("publish", chunk, run, held, source, self.input())
            self._emit("publish", Op.WRITE, dst=areas[-1][0], a=source, nbytes=nbytes)
        for area, nbytes in areas:
            self._emit("publish", Op.FLUSH, a=area, nbytes=nbytes)
        if areas:
            self._emit("publish", Op.FENCE)
        self._emit("publish", Op.SIGNAL, arg=self.carrier.flag(chunk, self.rank, batch.number), value=chunk.seq)
        return self._record() if self.call.in_place else None

    def _blocks(self, array_bytes: int, chunk: Chunk, run: range) -> BlockRun:
        """Compute which blocks of a run have bytes of a chunk: the last one of an array may be short, then none."""
        left, block_bytes = array_bytes - chunk.offset - run.start * self.areas.nbytes, self.areas.nbytes
        if left <= 0:
            return BlockRun(0, 0)
        count = min(len(run), -(-left // block_bytes))
        return BlockRun(count, min(chunk.nbytes, left - (count - 1) * block_bytes))

    def _place(self, stream: str, array: Operand, chunk: Chunk, run: range, last_bytes: int | None = None) -> Operand:
        """Return where a run of blocks lies one after another as in a slot: in the array, or in scratch memory."""
        sizes = {self.areas.nbytes, chunk.nbytes, self.carrier.place_bytes(chunk), last_bytes or chunk.nbytes}
        if len(sizes) == 1:
            return array.at(run.start * self.areas.nbytes)
        if stream not in self._room:
            self._room[stream] = self.scratch(self._longest * self.carrier.place_bytes(chunk))
        return self._room[stream]

    def _copies(self, stream: str, chunk: Chunk, run: range, held: BlockRun, dst: Operand, src: Operand) -> None:
        """Copy each block's chunk of a run between an array and scratch memory, as columns."""
        rows = self._rows(stream, held.blocks, lambda: self._emit(stream, Op.COPY, dst=dst, a=src))[:, 0]
        in_array = np.array(run[: held.blocks]) * self.areas.nbytes + chunk.offset
        in_scratch = np.arange(held.blocks) * self.carrier.place_bytes(chunk)
        rows["dst"]["offset"] += in_scratch if dst.id == SCRATCH else in_array
        rows["a"]["offset"] += in_scratch if src.id == SCRATCH else in_array
        rows["nbytes"] = chunk.nbytes
        rows["nbytes"][-1] = held.last_bytes
