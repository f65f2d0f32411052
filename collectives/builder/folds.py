"""Folding: what came from all ranks is combined in rank order, and the result may be published again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectives.builder import misuse
from collectives.builder.part import WHOLE, Event, Ints, repeated
from collectives.builder.rounds import Rounds
from collectives.builder.slots import Chunk
from cxlemu.plan import DTYPE_NAMES, NOTHING, Flag, Instruction, Kind, Op, Operand, RedOp, encode
from cxlemu.plan.instructions import OPERAND_DTYPE, OPERAND_FIELDS, RECORD_DTYPE, Records

FOLDED_AT_ONCE = 16  # ranks from which on a fold's records are made as columns

# Whole operands are copied as what they are, bytes.
_OPERAND = np.dtype((np.void, OPERAND_DTYPE.itemsize))
_FLAT = np.dtype(
    [(name, _OPERAND if name in OPERAND_FIELDS else RECORD_DTYPE[name]) for name in RECORD_DTYPE.names or ()]
)


@dataclass
class Folds(Rounds):
    """Folds all peers' blocks, or one peer's: in chains, halving and doubling, trees."""

    def fold(
        self,
        dst: Operand,
        chunk: Chunk,
        own: Operand,
        *,
        block: int = 0,
        republish: int | None = None,
        after: Event | None = None,
    ) -> Event:
        """Combine this chunk of all ranks in rank order; ``own`` is this rank's. ``republish`` it as that block.

        ``after``: what has to happen first, as when ``dst`` is still being published. Gives the event that follows it.
        """
        if self.foreign:
            misuse.check_folds(self, "fold")
            misuse.check_place(self, "fold", chunk, self.peers[0], block, 1, None)
            if republish is not None:
                misuse.check_place(self, "fold", chunk, self.rank, republish, 1, None)
            misuse.check_local(self, "fold", dst, own)
            misuse.check_event(self, "fold", after)
        self._order(after)
        if self.ranks >= FOLDED_AT_ONCE and self.carrier.in_columns:
            self._fold_at_once(dst, chunk, own, block, republish)
        else:
            self._fold_one_by_one(dst, chunk, own, block, republish)
        return self._record("retrieve")

    def combine(
        self,
        dst: Operand,
        chunk: Chunk,
        peer: int,
        own: Operand,
        *,
        block: int = 0,
        bell: int | None = None,
        peer_left: bool = True,
        last: bool = False,
        after: Event | None = None,
    ) -> Event:
        """Fold a chunk of a peer's block with ``own`` into ``dst``, which may be the same memory; all local.

        ``peer_left``: the peer's is the left operand, as where the fold goes on from lower ranks to higher ones.
        ``last``: nothing is folded in after this, so that avg divides. ``bell``: which bell says that the block is
        there; by default its own. ``after``: what has to happen first, as when ``dst`` is still being published. Gives
        the event after which the result is there. Of an empty chunk only the signal is waited for.
        """
        if self.foreign:
            misuse.check_folds(self, "combine")
            misuse.check_peer(self, "combine", peer)
            misuse.check_place(self, "combine", chunk, peer, block, 1, bell)
            misuse.check_local(self, "combine", dst, own)
            misuse.check_event(self, "combine", after)
        self._order(after)
        theirs = self._theirs(chunk, peer, block, bell, row=1, fetched=self.carrier.fetches or not chunk.nbytes)
        if chunk.nbytes:
            self._combine(
                dst,
                NOTHING,
                chunk.nbytes,
                [theirs, own] if peer_left else [own, theirs],
                arrive=lambda _: self.carrier.await_chunk(chunk, peer, block, bell),
                divide=last and self.call.redop == "avg",
                stream="retrieve",
                accumulator=NOTHING,
            )
        return self._record("retrieve")

    def _fold_one_by_one(self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None) -> None:
        sources = [
            own
            if peer == self.rank
            else self._theirs(chunk, peer, block, None, row=peer + 1, fetched=self.carrier.fetches)
            for peer in range(self.ranks)
        ]
        stored = republish is not None and self.carrier.in_slot(republish)
        if stored and self.carrier.reads_in_place and chunk.seq >= self.layout.slots:
            self._enter(chunk.seq, "retrieve")  # not for rounds before the call: all peers have begun it
        self._reduce(dst, chunk, sources, block, republish)
        if republish is not None:
            self.carrier.push("retrieve", chunk, [dst], republish, written=self.carrier.folds_into(republish))

    def _reduce(self, dst: Operand, chunk: Chunk, sources: list[Operand], block: int, republish: int | None) -> None:
        self._combine(
            dst,
            self._republished(chunk, republish),
            chunk.nbytes,
            sources,
            arrive=lambda peer: self.carrier.await_chunk(chunk, peer, block),
            divide=self.call.redop == "avg",
            stream="retrieve",
            accumulator=self._scratch(chunk.nbytes) if len(sources) > 3 else NOTHING,
        )

    def _combine(
        self,
        dst: Operand,
        dst2: Operand,
        nbytes: int,
        sources: list[Operand],
        *,
        arrive: Callable[[int], object],
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        """Fold from the left, accumulating in scratch: in place, ``dst`` may be an operand of a later step.

        ``arrive`` emits what it takes that source number k may be read, where it lies in the pool.
        """
        op = Op.REDUCE_LOCAL if self.carrier.fetches else Op.REDUCE
        todo = list(enumerate(sources))
        sum_so_far: list[Operand] = []
        while todo:
            now, todo = todo[: 3 - len(sum_so_far)], todo[3 - len(sum_so_far) :]
            for number, operand in now:
                if operand.kind == Kind.REGION:
                    arrive(number)
            last = not todo
            target = dst if last else accumulator
            self._emit(
                stream,
                op,
                arg=self.ranks if last and divide else 0,
                flags=Flag.DIVIDE if last and divide else 0,
                nbytes=nbytes,
                dst=target,
                dst2=dst2 if last else NOTHING,
                sources=sum_so_far + [operand for _, operand in now],
            )
            sum_so_far = [target]

    def _fold_at_once(self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None) -> None:
        """As fold and _reduce, for sources in slots."""
        everyone = np.arange(self.ranks)
        at = np.full(self.ranks, block * self.areas.block_bytes + chunk.slot_offset)
        sources = operands(Kind.REGION, self.carrier.regions_of(everyone), chunk.seq, at)
        sources[self.rank] = own
        doorbells = everyone * self.layout.doorbells_per_rank + self.carrier.doorbell(chunk, 0, block)
        self._combine_rows(
            dst,
            self._republished(chunk, republish),
            chunk,
            sources,
            doorbells,
            own=self.rank,
            divide=self.call.redop == "avg",
            stream="retrieve",
            accumulator=self._scratch(chunk.nbytes),
        )
        if republish is not None:
            self.carrier.push("retrieve", chunk, [dst], republish, written=True)

    def _combine_rows(
        self,
        dst: Operand,
        dst2: Operand,
        chunk: Chunk,
        sources: Records,
        doorbells: Ints,
        *,
        own: int,
        divide: bool,
        stream: str,
        accumulator: Operand,
    ) -> None:
        """As _combine, of sources in slots, each under its doorbell; but for number ``own``, which is this rank's."""
        last = Instruction(
            Op.REDUCE,
            DTYPE_NAMES.index(self.call.dtype),
            RedOp[self.call.redop.upper()],
            Flag.DIVIDE if divide else 0,
            self.ranks if divide else 0,
            nbytes=chunk.nbytes,
            dst=dst,
            dst2=dst2,
        )
        wait = Instruction(Op.WAIT, value=chunk.seq, nbytes=chunk.nbytes)
        self._instructions(stream).append(folded(sources, wait, doorbells, last, accumulator, own))

    def _republished(self, chunk: Chunk, block: int | None) -> Operand:
        into = block is not None and self.carrier.folds_into(block)
        return self.carrier.area(chunk, self.rank, block) if block is not None and into else NOTHING

    def _theirs(self, chunk: Chunk, peer: int, block: int, bell: int | None, *, row: int, fetched: bool) -> Operand:
        """Where a peer's block is folded from: the pool or, once it was fetched, a row of scratch memory."""
        if not fetched:
            return self.carrier.area(chunk, peer, block)
        place = self._scratch(chunk.nbytes, row=row)
        self.carrier.take([place], chunk, peer, block, bell)
        return place


# --- records by the thousand ------------------------------------------------------------------------------------


def operands(kind: Kind, ids: Ints, seq: int, offsets: Ints) -> Records:
    found = np.zeros(len(offsets), OPERAND_DTYPE)
    found["kind"], found["id"], found["seq"], found["offset"] = kind, ids, seq, offsets
    return found


def folded(
    sources: Records, wait: Instruction, doorbells: Ints, reduce: Instruction, accumulator: Operand, rank: int
) -> Records:
    """WAIT and INVALIDATE for each source but ``rank``'s own, and a REDUCE where the next two or first three are there.

    ``reduce`` is the last one; those before it put their result into ``accumulator``.
    """
    count, whole = len(sources), sources.view(_OPERAND)
    lasts = np.minimum(np.arange(2, count + 2, 2), count - 1)[: max(1, count // 2)]  # of each REDUCE, its last source
    others = np.flatnonzero(np.arange(count) != rank)
    waits = repeated([wait, wait._replace(op=Op.INVALIDATE, value=0)], count - 1).view(_FLAT)
    waits["arg"][:, 0], waits["nbytes"][:, 0] = doorbells[others], 0
    waits["a"][:, 1] = whole[others]
    partial = reduce._replace(dst=accumulator, dst2=NOTHING, flags=0, arg=0, a=accumulator)
    reduces = repeated([partial], len(lasts))[:, 0].view(_FLAT)
    reduces[-1:] = encode([reduce._replace(a=accumulator)]).view(_FLAT)
    reduces["a"][0], reduces["b"][0] = whole[0], whole[1]
    if count > 2:
        reduces["c"][0] = whole[2]
    reduces["b"][1:] = whole[lasts[:-1] + 1]
    pairs = np.flatnonzero(lasts[1:] - lasts[:-1] == 2) + 1
    reduces["c"][pairs] = whole[lasts[pairs]]
    keys = np.concatenate([np.column_stack([3 * others, 3 * others + 1]).reshape(-1), 3 * lasts + 2])
    rows = np.concatenate([waits.reshape(-1).view(WHOLE), reduces.view(WHOLE)])
    return rows[np.argsort(keys, kind="stable")].view(RECORD_DTYPE)
