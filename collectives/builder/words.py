"""The few words in which algorithms are written.

An algorithm says who publishes which bytes to whom, who retrieves or folds them, and where the result goes. The
builder turns each word into the instructions that make it right on a pool without coherence:

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, SIGNAL
    retrieve   WAIT, INVALIDATE, READ
    fold       the same for every peer, then REDUCE in rank order
    combine    the same for one peer, then REDUCE with what this rank has
    signal     SIGNAL
    wait       WAIT
    copy       COPY

Where publishing and retrieving are streams of their own, what one does may need something that the other has done:
every word gives an event, and takes one (``after``). An event that nobody waits for costs nothing, nor does one where
program order says as much. So a block that is retrieved and published again is under way in both streams.

How it does so is a VariantSpec: where blocks lie, how many chunks they are cut into, and whether publishing and
retrieving are streams of their own. So one page of an algorithm gives all variants.

With checksums, for links that may lose what is written without a word, it is instead

    publish    wait until the slot is free, WRITE, FLUSH, FENCE, COMPUTE the checksum of the source, SIGNAL_DATA it
    retrieve   WAIT_DATA, INVALIDATE, READ, COMPUTE and compare
    fold       the same for every peer, then REDUCE_LOCAL in rank order

so that flag and checksum arrive together or not at all. The line style needs none: its payload is in that line.

Zero copy is a style, too: a block that is part of the input is published where it lies in the heap. Its plan still says
WRITE: that brings a private array to the pool, and is nothing at all for an array that lives there, whose user's stores
were the same stores. It must not change while peers read it: a call returns when all of them are done.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.builder import misuse
from collectives.builder.part import Event
from collectives.builder.partners import Partners
from cxlemu.plan import Op, Operand


@dataclass
class Builder(Partners):
    """Builds one rank's part. ``nbytes`` is the call's block size; offsets are in bytes."""

    def copy(self, dst: Operand, src: Operand, nbytes: int, *, after: Event | None = None) -> Event:
        """Local to local; nothing where both are the same memory (in place). In order with what is retrieved.

        ``after``: what has to happen first, as when ``dst`` is still being published. Gives the event that follows it.
        """
        if self.foreign:
            misuse.check_local(self, "copy", dst, src)
            misuse.check_event(self, "copy", after)
        self._order(after)
        if nbytes and self._resolve(dst) != self._resolve(src):
            self._emit("retrieve", Op.COPY, dst=dst, a=src, nbytes=nbytes)
        return self._record("retrieve")
