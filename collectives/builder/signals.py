"""Doorbells that stand for no bytes: what barriers are made of, and what a rank tells another beside its data."""

from __future__ import annotations

from dataclasses import dataclass

from collectives.builder import misuse
from collectives.builder.areas import Chunk
from collectives.builder.part import Event
from collectives.builder.rounds import Rounds
from cxlemu.plan import Op


@dataclass
class Signals(Rounds):
    """Signals and waits."""

    def signal(self, chunk: Chunk, *, bell: int, after: Event | None = None) -> Event:
        """Ring one of this rank's bells, once in a round and chunk. Whoever waits for it sees all published before it.

        ``chunk``: of ``rounds(bells=...)``, or what ``bells`` gives. ``after``: what has to happen first. Gives the
        event that follows it.
        """
        if self.foreign:
            misuse.check_chunk(self, "signal", chunk)
            misuse.check_bell(self, "signal", bell)
            misuse.check_event(self, "signal", after)
        self._order(after, "publish")
        self._emit("publish", Op.SIGNAL, arg=self._flag(chunk, self.rank, bell), value=chunk.seq)
        self._rang = True
        return self._record()

    def wait(self, chunk: Chunk, peer: int, *, bell: int, after: Event | None = None) -> Event:
        """Wait until a peer has rung this bell. Gives the event that follows it, for what has to come later."""
        if self.foreign:
            misuse.check_chunk(self, "wait", chunk)
            misuse.check_peer(self, "wait", peer)
            misuse.check_bell(self, "wait", bell)
            misuse.check_event(self, "wait", after)
        self._order(after)
        self._emit("retrieve", Op.WAIT, arg=self._flag(chunk, peer, bell), value=chunk.seq)
        return self._record("retrieve")
