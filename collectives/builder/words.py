"""The few words in which algorithms are written.

An algorithm says which ranks publish which bytes, which ranks retrieve or fold them, and where the result goes. The
builder turns each word into the instructions that make it right on a pool without coherence:

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, SIGNAL
    retrieve   WAIT, INVALIDATE, READ
    fold       the same for every peer, then REDUCE in rank order
    combine    the same for one peer, then REDUCE with what this rank has
    signal     SIGNAL
    wait       WAIT
    copy       COPY

Where publishing and retrieving are streams of their own, what one does may need something that the other has done:
every word returns an event, and takes one (``after``). An event that no stream waits for costs nothing, nor does one
that program order implies. So a block that is retrieved and published again is under way in both streams.

A VariantSpec says how the builder does so: where blocks lie, how many chunks they are cut into, and whether publishing
and retrieving are streams of their own. So one page of an algorithm gives all variants.

With checksums, for links that may silently drop writes, the words become instead

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, COMPUTE the checksum of the source, SIGNAL_DATA it
    retrieve   WAIT_DATA, INVALIDATE, READ, COMPUTE and compare
    fold       the same for every peer, then REDUCE_LOCAL in rank order

so that flag and checksum arrive together or not at all. The line style needs none: its payload is in that line.

Zero copy is also a style: a block that is part of the input is published where it lies in the heap. Its plan still says
WRITE: that brings a private array to the pool, and does nothing for an array that lives there, whose user's stores were
the same stores. The array must not change while peers read it: a call returns when all of them are done.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from collectives.builder.carriers import carrier_of
from collectives.builder.folds import Folds
from collectives.builder.part import Event, Ints
from collectives.builder.rounds import check_bell, check_chunk, check_event, check_local, check_peer, check_place
from collectives.builder.slots import Chunk, SlotCarrier
from cxlemu.errors import DeclinedError
from cxlemu.plan import Op, Operand

IN_COLUMNS_FROM = 3  # peers: a word for each of fewer is made sooner than columns


@dataclass
class Builder(Folds):
    """Builds one rank's part of a plan with the words above.

    ``nbytes`` is the call's block size; all offsets are in bytes. Words share these arguments:

    ``chunk``: a chunk of the round that is under way, which a ``peer`` publishes.

    ``block``: the number of the block, or of the first of several, from 0.

    ``bell``: which of the loop's bells announces the chunk, from 0 (default: the first block's own doorbell).

    ``after``: an event to wait for first, as when a block is forwarded, or memory is still being published. A word
    returns the event after which its work is done.

    In a user's algorithm the words check their arguments, and raise BuilderError for a chunk of a round that is over, a
    block, bell or rank that does not exist, or memory that is not this rank's own, or with zero copy not the input's
    block.
    """

    def _new_carrier(self) -> SlotCarrier:
        return carrier_of(self.spec)(self)

    def copy(self, dst: Operand, src: Operand, nbytes: int, *, after: Event | None = None) -> Event:
        """Copy local memory to local memory, in order with the retrieved chunks.

        Nothing is copied where both are the same memory (in place).

        Args:
            dst: Where the bytes go: input, output or scratch memory.
            src: Where they come from: input, output or scratch memory.
        """
        if self.foreign:
            check_local(self, "copy", nbytes, dst, src)
            check_event(self, "copy", after)
        self._order(after)
        if nbytes and self._resolve(dst) != self._resolve(src):
            self._emit("retrieve", Op.COPY, dst=dst, a=src, nbytes=nbytes)
        return self._record("retrieve")

    def publish(
        self,
        chunk: Chunk,
        src: Operand | Sequence[Operand],
        *,
        block: int = 0,
        bell: int | None = None,
        overwritten: bool = False,
        after: Event | None = None,
    ) -> Event | None:
        """Put a chunk of one of this rank's blocks, or of several, where its peers find it.

        An empty chunk is only signalled; in doorbells' lines nothing is sent for it.

        Args:
            src: The chunk's local memory, or a list with that of each block.
            overwritten: The result will replace ``src``, if only in place.

        Returns:
            The event after which ``src`` may be overwritten; with ``overwritten`` None where the call is not in place.

        Raises:
            DeclinedError: With zero copy, the result would replace what peers still read.
        """
        sources = _several(src)
        if self.foreign:
            check_place(self, "publish", chunk, self.rank, block, len(sources), bell)
            check_local(self, "publish", chunk.nbytes, *sources)
            check_event(self, "publish", after)
        if self.carrier.reads_in_place and overwritten and self.call.in_place:
            raise DeclinedError(f"{self.call}: peers still read what the result would replace: pass out, or copy")
        if self.carrier.takes_slot(block):
            self._enter(chunk.seq, "publish", after)
        self._order(after, "publish")
        self.carrier.push("publish", chunk, sources, block, bell=bell)
        return self._record() if self.call.in_place or not overwritten else None

    def retrieve(
        self,
        dst: Operand | Sequence[Operand],
        chunk: Chunk,
        peer: int,
        *,
        block: int = 0,
        bell: int | None = None,
        after: Event | None = None,
    ) -> Event:
        """Get a chunk of one of a peer's blocks, or of several, once it is there.

        For an empty chunk only the signal is waited for; in doorbells' lines nothing is.

        Args:
            dst: The local memory for the chunk, or a list with that of each block.
        """
        targets = _several(dst)
        if self.foreign:
            check_peer(self, "retrieve", peer)
            check_place(self, "retrieve", chunk, peer, block, len(targets), bell)
            check_local(self, "retrieve", chunk.nbytes, *targets)
            check_event(self, "retrieve", after)
        self._order(after)
        self.carrier.take(targets, chunk, peer, block, bell)
        return self._record("retrieve")

    # --- for many peers at once: the same instructions as with one word for each, made as columns -----------------

    def publish_each(self, chunk: Chunk, at: Ints, *, blocks: Ints, nbytes: Ints | None = None) -> None:
        """Publish a chunk of many of this rank's blocks from the input, one after another, each under its own doorbell.

        Args:
            at: Where each block's chunk begins in the input, in bytes, shape (n,).
            blocks: The blocks' numbers, shape (n,).
            nbytes: How many bytes of each, shape (n,) (default: the chunk's); blocks of no bytes are left out.
        """
        sizes = np.full(len(blocks), chunk.nbytes) if nbytes is None else nbytes
        at, blocks, sizes = at[sizes > 0], blocks[sizes > 0], sizes[sizes > 0]
        if not len(blocks):
            return
        if not self.carrier.in_columns or len(blocks) < IN_COLUMNS_FROM:
            for start, block, size in zip(at.tolist(), blocks.tolist(), sizes.tolist(), strict=True):
                self.publish(self.part(chunk, size), self.input(start), block=block)
            return
        self._enter(chunk.seq, "publish")
        rows = self._rows("publish", len(blocks), lambda: self.carrier.push("publish", chunk, [self.input()], 0))
        write, flush, _, signal = (rows[:, column] for column in range(4))
        write["dst"]["offset"] = flush["a"]["offset"] = blocks * self.areas.block_bytes + chunk.slot_offset
        write["a"]["offset"] = at
        write["nbytes"] = flush["nbytes"] = sizes
        signal["arg"] += (blocks * self.areas.doorbells_per_block).astype(np.int32)

    def retrieve_each(self, at: Ints, chunk: Chunk, peers: Ints, *, block: int = 0, nbytes: Ints | None = None) -> None:
        """Retrieve a chunk of one block of each of many peers into the output, one after another.

        Args:
            at: Where each peer's chunk begins in the output, in bytes, shape (n,).
            peers: The ranks that publish it, shape (n,).
            block: The block's number, the same for all peers.
            nbytes: How many bytes of each, shape (n,) (default: the chunk's); peers with no bytes are left out.
        """
        sizes = np.full(len(peers), chunk.nbytes) if nbytes is None else nbytes
        at, peers, sizes = at[sizes > 0], peers[sizes > 0], sizes[sizes > 0]
        if not len(peers):
            return
        if not self.carrier.in_columns or len(peers) < IN_COLUMNS_FROM:
            for start, peer, size in zip(at.tolist(), peers.tolist(), sizes.tolist(), strict=True):
                self.retrieve(self.output(start), self.part(chunk, size), peer, block=block)
            return
        first = int(peers[0])
        rows = self._rows("retrieve", len(peers), lambda: self.carrier.take([self.output()], chunk, first, block))
        wait, drop, read = (rows[:, column] for column in range(3))
        wait["arg"] += ((peers - first) * self.layout.doorbells_per_rank).astype(np.int32)
        drop["a"]["id"] = read["a"]["id"] = self.carrier.regions_of(peers)
        read["dst"]["offset"] = at
        drop["nbytes"] = read["nbytes"] = sizes

    # --- doorbells that stand for no bytes: what a rank tells another beside its data ------------------------------

    def signal(self, chunk: Chunk, *, bell: int, after: Event | None = None) -> Event:
        """Ring one of this rank's bells, once in a round and chunk.

        A rank that waits for it sees everything that this rank published before.

        Args:
            chunk: A chunk of ``rounds(bells=...)``, or the one that `bells` yields.
        """
        if self.foreign:
            check_chunk(self, "signal", chunk)
            check_bell(self, "signal", bell)
            check_event(self, "signal", after)
        self._order(after, "publish")
        self._emit("publish", Op.SIGNAL, arg=self.carrier.flag(chunk, self.rank, bell), value=chunk.seq)
        self._rang = True
        return self._record()

    def wait(self, chunk: Chunk, peer: int, *, bell: int, after: Event | None = None) -> Event:
        """Wait until a peer has rung a bell.

        Args:
            chunk: A chunk of ``rounds(bells=...)``, or the one that `bells` yields.
        """
        if self.foreign:
            check_chunk(self, "wait", chunk)
            check_peer(self, "wait", peer)
            check_bell(self, "wait", bell)
            check_event(self, "wait", after)
        self._order(after)
        self._emit("retrieve", Op.WAIT, arg=self.carrier.flag(chunk, peer, bell), value=chunk.seq)
        return self._record("retrieve")


def _several(places: Operand | Sequence[Operand]) -> list[Operand]:
    """Return one place or many as a list: an operand is itself a sequence."""
    return list(places) if isinstance(places, Sequence) and not isinstance(places, Operand) else [places]
