"""Folding with one peer at a time: chains, halving and doubling, trees."""

from __future__ import annotations

from dataclasses import dataclass

from collectives.builder import misuse
from collectives.builder.areas import Chunk
from collectives.builder.folds import Folds
from collectives.builder.part import Event
from cxlemu.plan import NOTHING, Operand


@dataclass
class Partners(Folds):
    """Combines."""

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
        if self.spec.in_lines or self.spec.checked or not chunk.nbytes:
            theirs = self._scratch(chunk.nbytes, row=1)
            self._take([theirs], chunk, peer, block, bell)
        else:
            theirs = self._area(chunk, peer, block)
        if chunk.nbytes:
            self._combine(
                dst,
                NOTHING,
                chunk.nbytes,
                [theirs, own] if peer_left else [own, theirs],
                arrive=lambda _: self._await_chunk(chunk, peer, block, bell),
                divide=last and self.call.redop == "avg",
                stream="retrieve",
                accumulator=NOTHING,
            )
        return self._record("retrieve")
