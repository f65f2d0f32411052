"""Rounds: blocks are cut into what fits a slot, and a slot is used again only when everybody is done with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from collectives.builder.areas import Chunk, Placed
from collectives.builder.part import DONE_GROUP
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Group, Instruction, Kernel, Op
from cxlemu.rounding import round_up

ROUNDS_MAX = 1 << 16


@dataclass
class Rounds(Placed):
    """Goes through rounds, and meets."""

    _entered: str = field(init=False, default="")  # the stream that waited for the round's slot
    _lends: bool = field(init=False, default=False)  # and nothing else tells that it was read
    _answered: bool = field(init=False, default=False)

    def rounds(
        self,
        nbytes: int,
        *,
        writers: list[int] | None = None,
        blocks: int = 1,
        spread: str,
        answered: bool = False,
        chunk_bytes: int = 0,
    ) -> Iterator[list[Chunk]]:
        """Cut blocks of ``nbytes`` into rounds that fit a slot, and each round into chunks.

        ``writers`` (default: all ranks) publish ``blocks`` blocks each; ``spread`` is "cards" where one rank writes
        or reads everything (1-to-N, N-to-1) and "ranges" where all write and read (N-to-N). ``answered``: everyone
        who reads a rank's blocks sends it what they became, and so need not say that they were read. ``chunk_bytes``:
        chunks of that size, or smaller ones where a slot has no room, instead of as many as the style says.
        """
        if nbytes == 0:
            return
        writers = list(range(self.ranks)) if writers is None else writers
        piece, chunk_bytes, self._areas = self._plan_areas(nbytes, writers, blocks, spread, chunk_bytes)
        self._answered = answered
        if nbytes > ROUNDS_MAX * piece:
            raise ArgumentError(
                f"{self.call}: takes more than {ROUNDS_MAX} rounds of {piece} bytes a block; give the communicator a "
                f"larger region, or choose a variant that moves more in a round"
            )
        for start in range(0, nbytes, piece):
            seq, size = self._rounds, min(piece, nbytes - start)
            step = chunk_bytes or round_up(-(-size // self._areas.doorbells_per_block), LINE_BYTES)
            self._entered = ""
            chunks = [
                Chunk(seq, number, start + at, min(step, size - at), number * round_up(step, LINE_BYTES))
                for number, at in enumerate(range(0, size, step))
            ]
            for chunk in chunks:
                self.part(chunk, chunk.nbytes)
            yield chunks
            self._leave(seq)
            self._rounds += 1
        if self._lends:  # the user may change it as soon as the call returns
            self._emit("retrieve", Op.WAIT_ALL, arg=DONE_GROUP, value=self._rounds - 1)
            self._lends = False

    def part(self, chunk: Chunk, nbytes: int) -> Chunk:
        """The first bytes of a chunk. All ranks ask for all ranks' parts, as the table of checksums has them all."""
        if self.style.checked and nbytes:
            for name in ("crc32c", "crc32c_check"):
                self._kernels.setdefault(Kernel(name, (nbytes,)), len(self._kernels))
        return chunk._replace(nbytes=nbytes)

    def meet(self) -> None:
        """Nobody goes on before everybody is here."""
        self._groups.append(Group(0, self.ranks, self.layout.doorbells_per_rank))
        self._emit("publish", Op.SIGNAL, arg=self.layout.published(self.rank, 0), value=self._rounds)
        self._emit("retrieve", Op.WAIT_ALL, arg=len(self._groups) - 1, value=self._rounds)
        self._say_done(self._rounds)
        self._rounds += 1

    def _enter(self, seq: int, stream: str) -> None:
        """Before the first store of a round: everyone is done with the round that used this slot before."""
        if not self._entered:
            self._emit(stream, Op.WAIT_ALL, arg=DONE_GROUP, value=seq - self.layout.slots)
            self._entered = stream

    def _leave(self, seq: int) -> None:
        """After the last access of a round: all read, and all that was written has landed (every SIGNAL is fenced).

        What this rank publishes beside that need not be waited for where a peer retrieves it, before that peer's own
        "done": a slot is used again only when all are done.
        """
        if self._entered == "publish" and self.foreign:
            self._order(self._record())
        self._say_done(seq)

    def _say_done(self, seq: int) -> None:
        """Where nothing was accessed since the round before, this says it for both."""
        before, done = self._instructions("retrieve"), self.layout.done(self.rank)
        last = before[-1] if before else None
        if isinstance(last, Instruction) and (last.op, last.arg) == (Op.SIGNAL, done):
            before.pop()
        self._emit("retrieve", Op.SIGNAL, arg=done, value=seq)
