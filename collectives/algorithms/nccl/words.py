"""Words for algorithms in which ranks send to each other: every rank has an inbox, into which its peers write.

    send              wait until the slot is free, WRITE into the peer's inbox, FLUSH, FENCE, SIGNAL
    receive           WAIT, INVALIDATE, READ
    receive_reduce    WAIT, INVALIDATE, REDUCE with what this rank has

On a pool an inbox is a part of a card. Where cards are the ranks' own memories it lies in its reader's, and so do the
doorbells that tell the reader: an RDMA write or a store over an XLink, and then the flag. Sending and receiving are
streams of their own, as in NCCL, where a proxy thread sends what a kernel has received and folded; what comes ``down``
a tree and what goes down has two more.

A block is cut into slices. An inbox has a lane for each message of a slice that its owner receives, so that no message
overwrites another in one round; the next rounds use the ring's other slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from collectives.builder import SCRATCH, Builder, Chunk, Event
from cxlemu.errors import DeclinedError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Flag, Kind, Op, Operand, Region
from cxlemu.rounding import round_down, round_up


@dataclass
class Sends(Builder):
    """Builds one rank's part of an algorithm that sends. Its style says how large a slice is at most."""

    carries_checksums: ClassVar[bool] = False  # an inbox's doorbells are plain

    _lane_bytes: int = field(init=False, default=0)
    _slices: int = field(init=False, default=0)  # of a lane
    _inbox: int = field(init=False, default=0)  # the region of rank 0's
    _sent: dict[int, Event] = field(init=False, default_factory=dict)  # a place in scratch -> the event that frees it

    def slice_bytes(self, nbytes: int, at_least: int) -> int:
        """How large a slice is: what the style says at most, and a line at least, however many are asked for."""
        return max(min(self.spec.slice_bytes, round_up(-(-nbytes // at_least), LINE_BYTES)), LINE_BYTES)

    def slices(self, nbytes: int, *, lanes: int, bells: int | None = None, at_least: int = 1) -> Iterator[list[Chunk]]:
        """Cut a block into rounds of slices, ``at_least`` so many where that is more than a line each.

        An inbox receives ``lanes`` messages of a slice, of which one rank sends one peer ``bells`` (default: all).
        """
        if nbytes == 0:
            return
        layout, bells = self.layout, lanes if bells is None else bells
        sharers = -(-self.ranks // layout.cards)
        step = self.slice_bytes(nbytes, at_least)
        most = layout.doorbells_per_rank // (bells * sharers * layout.cards)
        room = round_down(layout.slot_card_bytes // (sharers * lanes), LINE_BYTES)
        piece = min(room, most * step, round_up(nbytes, LINE_BYTES))
        if piece < LINE_BYTES:
            raise DeclinedError(
                f"{self.call}: {lanes} messages for each of {self.ranks} ranks do not fit a slot of "
                f"{layout.slot_card_bytes} bytes on a card and {layout.doorbells_per_rank} doorbells a rank: give the "
                f"communicator a larger region or fewer ranks"
            )
        step = min(step, piece)
        self._lane_bytes, self._slices, inbox = piece, -(-piece // step), lanes * piece
        places = (divmod(rank, layout.cards) for rank in range(self.ranks))
        self._inbox = self.written.add_regions(
            Region(card, 1, LINE_BYTES, offset * inbox, 0, inbox) for offset, card in places
        )
        for start in range(0, nbytes, piece):
            seq, size = self.written.rounds, min(piece, nbytes - start)
            self._begin()
            yield [
                Chunk(seq, number, start + index, min(step, size - index), index)
                for number, index in enumerate(range(0, size, step))
            ]
            if "down" in self.written.streams:
                self._order(self._record("down"))
            self._end(seq)

    def send(
        self,
        chunk: Chunk,
        src: Operand,
        to: int,
        *,
        lane: int = 0,
        bell: int | None = None,
        after: Event | None = None,
        overwritten: bool = False,
        down: bool = False,
    ) -> Event | None:
        """Write a chunk into a lane of a peer's inbox, after an event, if any.

        Args:
            bell: Which of the doorbells from this rank to the peer (default: the lane's number).
            overwritten: The result will replace ``src``, if in place, and may after the event that is then returned.
            down: Whether this goes down a tree, in a stream of its own.
        """
        if not chunk.nbytes:
            return None
        stream = self._stream("publish", down)
        if not down:  # what goes down follows what came up, and so follows a wait for the slot
            self._enter(chunk.seq, "publish")
        self._order(after, stream)
        place = self._place(chunk, to, lane)
        self._emit(stream, Op.WRITE, dst=place, a=src, nbytes=chunk.nbytes)
        self._emit(stream, Op.FLUSH, a=place, nbytes=chunk.nbytes)
        self._emit(stream, Op.FENCE)
        doorbell = self._bell(chunk, self.rank, to, lane if bell is None else bell)
        self._emit(stream, Op.SIGNAL, arg=doorbell, value=chunk.seq)
        if src.id == SCRATCH:
            self._sent[src.offset] = self._record(stream)
        return self._record(stream) if overwritten and self.call.in_place else None

    def receive(
        self,
        chunk: Chunk,
        dst: Operand,
        sender: int,
        *,
        lane: int = 0,
        bell: int | None = None,
        after: Event | None = None,
        down: bool = False,
    ) -> Event | None:
        """Read a chunk from this rank's inbox, as `send` wrote it. Sending it on has to follow the event returned."""
        if not chunk.nbytes:
            return None
        stream = self._stream("retrieve", down)
        self._order(after, stream)
        place = self._arrived(stream, chunk, sender, lane, bell)
        self._emit(stream, Op.READ, dst=dst, a=place, nbytes=chunk.nbytes)
        return self._record(stream)

    def receive_reduce(
        self, chunk: Chunk, dst: Operand, own: Operand, sender: int, *, lane: int = 0, last: bool = False
    ) -> Event | None:
        """Read a chunk from this rank's inbox, folded with ``own``; with ``last``, avg divides.

        Sending the result on has to follow the event returned.
        """
        if not chunk.nbytes:
            return None
        place = self._arrived("retrieve", chunk, sender, lane, None)
        divide = last and self.call.redop == "avg"
        flags, divisor = (Flag.DIVIDE, self.ranks) if divide else (0, 0)
        self._emit("retrieve", Op.REDUCE, arg=divisor, flags=flags, nbytes=chunk.nbytes, dst=dst, sources=[place, own])
        return self._record("retrieve")

    def partial(self, chunk: Chunk, lane: int = 0) -> Operand:
        """Scratch memory for a slice of a lane that is folded further elsewhere; it is taken once it is free again."""
        self.written.scratch_bytes = max(self.written.scratch_bytes, (lane + 1) * self._lane_bytes)
        offset = lane * self._lane_bytes + chunk.slot_offset
        self._order(self._sent.pop(offset, None))
        return Operand(Kind.BUFFER, SCRATCH, 0, offset)

    def _arrived(self, stream: str, chunk: Chunk, sender: int, lane: int, bell: int | None) -> Operand:
        doorbell = self._bell(chunk, sender, self.rank, lane if bell is None else bell)
        place = self._place(chunk, self.rank, lane)
        self._emit(stream, Op.WAIT, arg=doorbell, value=chunk.seq)
        self._emit(stream, Op.INVALIDATE, a=place, nbytes=chunk.nbytes)
        return place

    def _place(self, chunk: Chunk, owner: int, lane: int) -> Operand:
        return Operand(Kind.REGION, self._inbox + owner, chunk.seq, lane * self._lane_bytes + chunk.slot_offset)

    def _bell(self, chunk: Chunk, sender: int, to: int, bell: int) -> int:
        """Doorbells go round the cards: one of these lies on the card that has the reader's inbox."""
        receivers = round_up(self.ranks, self.layout.cards)
        return self.layout.published(sender, (bell * self._slices + chunk.number) * receivers + to)

    def _stream(self, name: str, down: bool) -> str:
        if not down:
            return name
        self.written.streams.setdefault("down", [])
        self.written.streams.setdefault("send_down", [])
        return "down" if name == "retrieve" else "send_down"
