"""Words for many peers at once: the same instructions as of one word for each, made as columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectives.builder.areas import Chunk
from collectives.builder.record_rows import Ints, repeated
from collectives.builder.transfers import Transfers
from cxlemu.plan import Instruction
from cxlemu.plan.instructions import Records


@dataclass
class Columns(Transfers):
    """Publishes to many and retrieves from many."""

    def publish_each(self, chunk: Chunk, at: Ints, *, blocks: Ints, nbytes: Ints | None = None) -> None:
        """``publish`` for many blocks, one after another: of the input from ``at`` on, ``nbytes`` of each (default: the
        chunk's). Blocks of no bytes are left out.
        """
        sizes = np.full(len(blocks), chunk.nbytes) if nbytes is None else nbytes
        at, blocks, sizes = at[sizes > 0], blocks[sizes > 0], sizes[sizes > 0]
        if not len(blocks):
            return
        if not self._at_once:
            for start, block, size in zip(at.tolist(), blocks.tolist(), sizes.tolist(), strict=True):
                self.publish(self.part(chunk, size), self.input(start), block=block)
            return
        self._enter(chunk.seq, "publish")
        rows = self._rows(
            "publish", len(blocks), lambda: self._push("publish", chunk, [self.input()], 0, written=False)
        )
        write, flush, _, signal = (rows[:, column] for column in range(4))
        write["dst"]["offset"] = flush["a"]["offset"] = blocks * self._areas.block_bytes + chunk.slot_offset
        write["a"]["offset"] = at
        write["nbytes"] = flush["nbytes"] = sizes
        signal["arg"] += (blocks * self._areas.doorbells_per_block).astype(np.int32)

    def retrieve_each(self, at: Ints, chunk: Chunk, peers: Ints, *, block: int = 0, nbytes: Ints | None = None) -> None:
        """``retrieve`` from many peers, one after another: into the output from ``at`` on. As ``publish_each``."""
        sizes = np.full(len(peers), chunk.nbytes) if nbytes is None else nbytes
        at, peers, sizes = at[sizes > 0], peers[sizes > 0], sizes[sizes > 0]
        if not len(peers):
            return
        if not self._at_once:
            for start, peer, size in zip(at.tolist(), peers.tolist(), sizes.tolist(), strict=True):
                self.retrieve(self.output(start), self.part(chunk, size), peer, block=block)
            return
        first = int(peers[0])
        rows = self._rows("retrieve", len(peers), lambda: self._take([self.output()], chunk, first, block, None))
        wait, drop, read = (rows[:, column] for column in range(3))
        wait["arg"] += ((peers - first) * self.layout.doorbells_per_rank).astype(np.int32)
        drop["a"]["id"] = read["a"]["id"] = self._regions_of(peers)
        read["dst"]["offset"] = at
        drop["nbytes"] = read["nbytes"] = sizes

    @property
    def _at_once(self) -> bool:
        """Whether words for many peers are made as columns: of what is written to slots and read from there."""
        return not (self.spec.in_lines or self.spec.zero_copy or self.spec.checked)

    def _rows(self, stream: str, times: int, emit: Callable[[], None]) -> Records:
        """What ``emit`` would add to the stream, so many times, to be filled in where they differ."""
        its = self._instructions(stream)
        before = len(its)
        emit()
        rows = repeated([i for i in its[before:] if isinstance(i, Instruction)], times)
        its[before:] = [rows]
        return rows
