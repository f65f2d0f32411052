"""Folding: what came from all ranks is combined in rank order, and the result may be published again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectives.builder import misuse
from collectives.builder.areas import Chunk
from collectives.builder.columns import Columns
from collectives.builder.part import Event
from collectives.builder.record_rows import Ints, folded, operands
from cxlemu.plan import DTYPE_NAMES, NOTHING, Flag, Instruction, Kind, Op, Operand, RedOp
from cxlemu.plan.instructions import Records

FOLDED_AT_ONCE = 16  # ranks from which on a fold's records are made as columns


@dataclass
class Folds(Columns):
    """Folds."""

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
        if self.ranks >= FOLDED_AT_ONCE and self._at_once:
            self._fold_at_once(dst, chunk, own, block, republish)
        else:
            self._fold_one_by_one(dst, chunk, own, block, republish)
        return self._record("retrieve")

    def _fold_one_by_one(self, dst: Operand, chunk: Chunk, own: Operand, block: int, republish: int | None) -> None:
        sources = []
        for peer in range(self.ranks):
            if peer == self.rank:
                sources.append(own)
            elif self.spec.in_lines:
                sources.append(self._scratch(chunk.nbytes, row=peer + 1))
                self._take_lines(sources[-1], chunk, peer, block)
            elif self.spec.checked:
                sources.append(self._scratch(chunk.nbytes, row=peer + 1))
                self._read(sources[-1], chunk, peer, block)
            else:
                sources.append(self._area(chunk, peer, block))
        if (
            self.spec.zero_copy
            and republish is not None
            and self._in_slot(republish)
            and chunk.seq >= self.layout.slots
        ):
            self._enter(chunk.seq, "retrieve")  # not for rounds before the call: all peers have begun it
        self._reduce(dst, chunk, sources, block, republish)
        if republish is not None:
            self._push("retrieve", chunk, [dst], republish, written=self._reduces_into(republish))

    def _reduce(self, dst: Operand, chunk: Chunk, sources: list[Operand], block: int, republish: int | None) -> None:
        self._combine(
            dst,
            self._republished(chunk, republish),
            chunk.nbytes,
            sources,
            arrive=lambda peer: self._await_chunk(chunk, peer, block),
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
        op = Op.REDUCE_LOCAL if self.spec.in_lines or self.spec.checked else Op.REDUCE
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
        at = np.full(self.ranks, block * self._areas.block_bytes + chunk.slot_offset)
        sources = operands(Kind.REGION, self._regions_of(everyone), chunk.seq, at)
        sources[self.rank] = own
        doorbells = everyone * self.layout.doorbells_per_rank + self._doorbell(chunk, 0, block)
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
            self._push("retrieve", chunk, [dst], republish, written=True)

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
        return self._area(chunk, self.rank, block) if block is not None and self._reduces_into(block) else NOTHING

    def _reduces_into(self, block: int) -> bool:
        """Whether the fold itself stores its result to the slot."""
        return self._in_slot(block) and not self.spec.checked
