"""Batches: blocks of consecutive ranks in one copy, for fabrics on which every copy takes microseconds to start.

Blocks lie side by side in a slot, each from a line's begin on, so that a run of them is one range of the slot. It is
one range of the array as well where blocks fill their places and travel in one chunk; else it goes through scratch
memory. The last block of an array may be short, as of a vector that is cut into slices.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import ClassVar, NamedTuple

import numpy as np

from collectives.builder.batch_carrier import BatchCarrier
from collectives.builder.part import SCRATCH, Event
from collectives.builder.slots import Chunk
from collectives.builder.words import Builder
from cxlemu.plan import DoorbellGroup, Layout, Op, Operand

BATCH_RANKS = 16


class RankBatch(NamedTuple):
    """Consecutive ranks whose blocks travel together."""

    number: int  # its place among the call's batches, from 0: also the bell that announces it
    ranks: range
    # for each number of a chunk, the group of these ranks' doorbells: of the only bell, or of the one that announces
    # what is for this rank's own batch
    groups: tuple[int, ...]

    def runs(self, left_out: int) -> list[range]:
        """Return the ranks below and above one that is left out, as far as there are any."""
        first, end = self.ranks.start, self.ranks.stop
        return [run for run in (range(first, min(end, left_out)), range(max(first, left_out + 1), end)) if run]


class BlockRun(NamedTuple):
    """What the first blocks of a run of ranks have of a chunk: all of it, but for the last one, which may be short."""

    blocks: int  # how many blocks have bytes of the chunk
    last_bytes: int  # of the chunk, in the last of these blocks

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

    def batches(self, *, left_out: int | None = None, end: int | None = None) -> tuple[RankBatch, ...]:
        """Cut the ranks into batches. Every rank asks for the same ones, once, before the rounds. None has
        ``left_out``, or a rank from ``end`` on."""
        end = self.ranks if end is None else end
        chunks = min(self.spec.chunks, self.layout.doorbells_per_rank)
        batches, groups = _cut(self.layout, left_out, end, chunks, len(self.written.groups))
        self._longest = max(self._longest, *(len(batch.ranks) for batch in batches), 0)
        self.written.groups += groups
        return batches

    def batches_in_pairs(self) -> list[RankBatch]:
        """Cut the ranks into batches; return them in the order in which this rank's own batch exchanges with them."""
        size = -(-self.ranks // min(self.spec.chunks, self.layout.doorbells_per_rank))
        cut = [range(self.ranks)[begin : begin + size] for begin in range(0, self.ranks, size)]
        self._longest = max(self._longest, size)
        groups = [[self._groups_of(ranks, range(bell, bell + 1)) for bell in range(len(cut))] for ranks in cut]
        own = self.rank // size
        found = [RankBatch(number, ranks, groups[number][own]) for number, ranks in enumerate(cut)]
        return [found[(step - own) % len(cut)] for step in range(1, len(cut) + 1)]

    def _groups_of(self, ranks: range, bells: range) -> tuple[int, ...]:
        first = len(self.written.groups)
        self.written.groups += _doorbells(self.layout, ranks, bells)
        return tuple(range(first, len(self.written.groups)))

    def retrieve_batch(self, batch: RankBatch, chunk: Chunk, after: Event | None = None) -> None:
        """Wait for all ranks of a batch, and retrieve its peers' chunks to their blocks of the output."""
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

    def retrieve_batches(self, batches: Sequence[RankBatch], chunk: Chunk) -> None:
        """Retrieve what several batches publish, one batch after another, as `retrieve_batch` does."""
        in_array = self._lies_alike({self.areas.nbytes, chunk.nbytes}, chunk)
        whole = (self._buffers[1].nbytes - chunk.offset - chunk.nbytes) // self.areas.nbytes + 1  # ranks from 0 on

        def alike(batch: RankBatch) -> int:
            is_run = self.rank not in batch.ranks and batch.ranks.stop <= whole
            return len(batch.ranks) if in_array and is_run else 0

        for size, group in groupby(batches, alike):
            run = list(group)
            if size and len(run) > 1:
                self._retrieve_alike(run, chunk)
                continue
            for batch in run:
                self.retrieve_batch(batch, chunk)

    def _retrieve_alike(self, batches: list[RankBatch], chunk: Chunk) -> None:
        """Retrieve batches that all are one run of as many whole blocks, to their places in the array: as columns."""
        rows = self._rows("retrieve", len(batches), lambda: self.retrieve_batch(batches[0], chunk))
        waited, invalidated, read = rows.T
        first = [rank_batch.ranks.start for rank_batch in batches]
        behind = self.carrier.behind_first(chunk, first)
        waited["arg"] = [rank_batch.groups[chunk.number] for rank_batch in batches]
        invalidated["a"]["offset"] += behind
        read["a"]["offset"] += behind
        read["dst"]["offset"] += (np.array(first) - first[0]) * self.areas.nbytes

    def _arrived(self, batch: RankBatch, chunk: Chunk) -> Iterator[tuple[range, Operand]]:
        """Wait for a batch, and yield the runs of its peers, each with the place of its first block."""
        for number, run in enumerate(batch.runs(self.rank)):
            if number == 0:
                self._emit("retrieve", Op.WAIT_ALL, arg=batch.groups[chunk.number], value=chunk.seq)
            yield run, self.carrier.run_from(chunk, run.start, self.rank)

    def fold_batches(self, dst: Operand, chunk: Chunk, own: Operand, batches: list[RankBatch]) -> Event:
        """Fold what all batches have for this rank, crosswise, in rank order; return the event after the result."""
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
        """Publish the input's blocks for a batch's peers; in place, return the event after which they may be
        overwritten."""
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
        if self._lies_alike({self.areas.nbytes, chunk.nbytes, last_bytes or chunk.nbytes}, chunk):
            return array.at(run.start * self.areas.nbytes)
        if stream not in self._room:
            self._room[stream] = self.scratch(self._longest * self.carrier.place_bytes(chunk))
        return self._room[stream]

    def _lies_alike(self, sizes: set[int], chunk: Chunk) -> bool:
        """Whether blocks of these sizes lie in an array as a chunk's blocks do in a slot."""
        return sizes == {self.carrier.place_bytes(chunk)}

    def _copies(self, stream: str, chunk: Chunk, run: range, held: BlockRun, dst: Operand, src: Operand) -> None:
        """Copy each block's chunk of a run between an array and scratch memory, as columns."""
        rows = self._rows(stream, held.blocks, lambda: self._emit(stream, Op.COPY, dst=dst, a=src))[:, 0]
        in_array = np.array(run[: held.blocks]) * self.areas.nbytes + chunk.offset
        in_scratch = np.arange(held.blocks) * self.carrier.place_bytes(chunk)
        rows["dst"]["offset"] += in_scratch if dst.id == SCRATCH else in_array
        rows["a"]["offset"] += in_scratch if src.id == SCRATCH else in_array
        rows["nbytes"] = chunk.nbytes
        rows["nbytes"][-1] = held.last_bytes


@lru_cache(64)  # every rank has the same ones, which in large worlds are many
def _cut(
    layout: Layout, left_out: int | None, end: int, chunks: int, first: int
) -> tuple[tuple[RankBatch, ...], tuple[DoorbellGroup, ...]]:
    """Cut ranks into batches as `Batches.batches` does; return them, and the groups of their bells from ``first``."""
    parts = [range(end)] if left_out is None else [range(min(left_out, end)), range(left_out + 1, end)]
    cut = [part[begin : begin + BATCH_RANKS] for part in parts for begin in range(0, len(part), BATCH_RANKS)]
    numbers = (tuple(range(index, index + chunks)) for index in range(first, first + len(cut) * chunks, chunks))
    batches = (RankBatch(number, *cut_out) for number, cut_out in enumerate(zip(cut, numbers, strict=True)))
    return tuple(batches), tuple(group for ranks in cut for group in _doorbells(layout, ranks, range(chunks)))


def _doorbells(layout: Layout, ranks: range, bells: range) -> list[DoorbellGroup]:
    return [DoorbellGroup(layout.published(ranks.start, bell), len(ranks), layout.doorbells_per_rank) for bell in bells]
