"""One direction of a pair of ranks: a mailbox as its sender sees it, and as its receiver sees it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collectives.algorithms.catalog import plan_of, recipe
from collectives.builder import AGGREGATE, LINE, SCRATCH
from collectives.builder.recipes import with_checksums
from collectives.communicator.messages import envelopes
from collectives.communicator.messages.envelopes import INLINE_BYTES
from collectives.communicator.messages.mailboxes import SENDER
from collectives.communicator.messages.matching import Message
from collectives.communicator.messages.requests import Request
from collectives.communicator.messages.transfers import Transfer, TransferLane
from cxlemu import _native
from cxlemu.engines.streams import Binding, Running
from cxlemu.memory.protocol import PAYLOAD_BYTES, Bytes
from cxlemu.plan import Call, Layout

SIZES_KEPT = 64  # of segments, for each mailbox
NOTHING = np.empty(0, np.uint8)


class Sending(NamedTuple):
    """A message that waits to be sent."""

    request: Request
    source: Bytes  # 1-D uint8
    tag: int
    itemsize: int


@dataclass
class Channel:
    """A mailbox as one of its two ranks sees it: where it lies, and how far its rounds have come."""

    peer: int
    role: int  # SENDER or RECEIVER
    layout: Layout  # the mailbox's ring
    base: int  # where it begins on every card, in bytes
    segment_bytes: int  # how much of a message goes over in one call
    checked: bool  # whether checksums travel with segments
    begin: Callable[[Transfer], None]  # begins a call, as `TransferLane.begin`
    current: Transfer | None = None  # the call under way, or None
    courier: _native.Courier | None = None  # what carries messages while none is, or None
    news: Transfer | None = None  # calls of a size that the courier does not know yet
    taught: dict[int, Transfer] = field(default_factory=dict)  # the calls that it knows, by their bytes
    _epoch: int = 1  # doorbells start at 0: nothing is published yet; where there is a courier, it has the epoch
    _transfers: OrderedDict[int, Transfer] = field(default_factory=OrderedDict)
    _envelopes: Transfer | None = None
    _scratch: Bytes = field(default_factory=lambda: NOTHING)

    def _start_envelope(self, line: Any) -> None:
        template = self._envelopes
        if template is None:
            template = self._envelopes = self._made(PAYLOAD_BYTES, LINE.name)
        self._start(template, line)

    def _start_segment(self, piece: Bytes) -> None:
        template = self._transfers.get(piece.nbytes)
        if template is None:
            template = self.news = self._transfers[piece.nbytes] = self._made(piece.nbytes, AGGREGATE.name)
            if len(self._transfers) > SIZES_KEPT:
                self._transfers.popitem(last=False)
        self._start(template, piece)

    def _let_go(self) -> None:
        """End the call under way, and hold its memory no longer."""
        if self.current is not None:
            self.current.buffers = ()
        self.current = None

    def _go_on_with(self, memory: Bytes) -> None:
        """Let the call under way continue on a copy of its memory."""
        assert self.current is not None
        self.current.go_on_with(self._buffers(memory))

    def _buffers(self, memory: Any) -> tuple[Any, ...]:
        return (memory, NOTHING, self._scratch) if self.role == SENDER else (NOTHING, memory, self._scratch)

    @property
    def epoch(self) -> int:
        """The first epoch of the mailbox's next call."""
        return self._epoch if self.courier is None else self.courier.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        if self.courier is None:
            self._epoch = epoch
        else:
            self.courier.epoch = epoch

    @property
    def request(self) -> Request | None:
        """The request that the call under way is part of, if there is one."""
        raise NotImplementedError

    def hire(self, lane: TransferLane) -> None:
        """Let a courier carry messages from now on, if the lane has one and a message like them has come or left."""
        if self.courier is None and self._envelopes is not None:
            self.courier = lane.courier(self._envelopes, self._epoch, self.peer, receives=self.role != SENDER)
        latest, self.news = self.news, None
        if self.courier is None or latest is None or self.checked:
            return
        if (nbytes := latest.template.call.nbytes) > INLINE_BYTES:  # not the end of a larger message
            self.courier.teach(latest.program, nbytes, latest.rounds, latest.template.binding.tag)
            self.taught[nbytes] = latest

    def _start(self, transfer: Transfer, memory: Any) -> None:
        transfer.epoch = self.epoch
        transfer.buffers = self._buffers(memory)
        self.begin(transfer)
        self.epoch = transfer.epoch + transfer.rounds
        self.current = transfer

    def _take_over(self, memory: Bytes) -> None:
        """Go on with the call that the courier began on this memory."""
        course = self.taught[memory.nbytes]
        course.epoch = self.epoch - course.rounds
        course.buffers = self._buffers(memory)
        self.current = course

    def _made(self, nbytes: int, variant: str) -> Transfer:
        chosen = recipe("send", variant)
        chosen = with_checksums(chosen) if self.checked else chosen
        call = Call("send", chosen.name, 2, nbytes)
        plan, digest = plan_of(chosen, self.layout, call, self.role)
        part = plan.part(self.role)
        if self._scratch.nbytes < (need := part.buffers[SCRATCH].nbytes):
            self._scratch = np.empty(need, np.uint8)
        binding = Binding(self.layout, self.base, 0, digest)
        return Transfer(Running(call, plan.frame, part, binding), plan.rounds)


@dataclass
class Outbox(Channel):
    """What this rank sends to one other, message after message."""

    queue: deque[Sending] = field(default_factory=deque)  # the messages that have not left, the one under way first
    _at: int = -1  # how much of the first message has left; -1: not even its envelope

    @property
    def request(self) -> Request | None:
        """The request of the first message."""
        return self.queue[0].request if self.queue else None

    def send(self, sending: Sending) -> None:
        """Send a message after those that wait."""
        self.queue.append(sending)
        if self.current is None:
            self._announce()

    def copy(self, request: Request) -> bool:
        """Send what has not left of a message from a copy of its array. Returns whether there is such a message."""
        for index, sending in enumerate(self.queue):
            if sending.request is request:
                source = sending.source.copy()
                self.queue[index] = sending._replace(source=source)
                if not index and self._at > 0 and self.current is not None:
                    nbytes = self.current.buffers[0].nbytes
                    self._go_on_with(source[self._at - nbytes : self._at])
                return True
        return False

    def resume(self, sending: Sending) -> None:
        """Send the rest of a message whose last call the courier began: nothing else is under way."""
        self.queue = deque([sending])
        self._at = sending.source.nbytes
        self._take_over(sending.source)

    def ended(self) -> bool:
        """Go on after a call ended: with the rest of the message, or the next one. Whether the message has left."""
        source = self.queue[0].source
        nbytes = source.nbytes
        self._at = max(self._at, 0)
        self._let_go()
        if nbytes > INLINE_BYTES and self._at < nbytes:
            piece = source[self._at : self._at + self.segment_bytes]
            self._at += piece.nbytes
            self._start_segment(piece)
            return False
        self.queue.popleft()
        if self.queue:
            self._announce()
        return True

    def _announce(self) -> None:
        _, source, tag, itemsize = self.queue[0]
        self._at = -1
        inline = source.tobytes() if source.nbytes <= INLINE_BYTES else b""
        self._start_envelope(envelopes.pack(source.nbytes, tag, itemsize, inline))


@dataclass
class Inbox(Channel):
    """What this rank receives from one other, message after message."""

    body: Message | None = None  # the message whose bytes come next, or None where an envelope comes next
    _line: bytearray = field(default_factory=lambda: bytearray(PAYLOAD_BYTES))
    _target: Bytes | None = None
    _at: int = 0

    @property
    def request(self) -> Request | None:
        """The request that takes the message whose bytes come."""
        receive = None if self.body is None else self.body.receive
        return None if receive is None else receive.request

    @property
    def held(self) -> bool:
        """Whether a message's bytes wait in the mailbox for an array to go to."""
        return self.body is not None and self._target is None

    def look(self) -> None:
        """Wait for the next message's envelope, unless a call is under way or a message is held."""
        if self.current is None and self.body is None:
            self._start_envelope(self._line)

    def forget(self) -> None:
        """Wait no longer for an envelope that has not come."""
        if self.current is not None:
            self.epoch = self.current.epoch
            self.current = None

    @property
    def has_come(self) -> bool:
        """Whether a message has come, although Python may not know: a signal's handler raised before it did."""
        return self.body is not None or (self.current is not None and self.current.has_begun)

    def release(self) -> Message | None:
        """Let the message whose bytes come go to a copy of its receive's array, and to another receive later. Returns
        it, but for one that is too long for the array and lost."""
        message = self.body
        assert message is not None and message.receive is not None and self._target is not None
        if not message.fits(message.receive):
            return None
        message.receive = None
        if message.data is None:
            data = np.empty(message.nbytes, np.uint8)
            data[: self._at] = self._target[: self._at]
            message.data = self._target = data
            if self.current is not None:
                nbytes = self.current.buffers[1].nbytes
                self._go_on_with(data[self._at - nbytes : self._at])
        return message

    def came(self, line: bytes) -> Message:
        """Take an envelope that the courier brought, as `opened`."""
        self._line[:] = line
        return self.opened()

    def resume(self, message: Message, target: Bytes) -> None:
        """Receive the rest of a message whose last call the courier began."""
        self.body, self._target, self._at = message, target, message.nbytes
        self._take_over(target)

    def read(self, target: Bytes | None) -> None:
        """Bring the bytes of the message that is held to a target (1-D uint8); None drops them."""
        assert self.body is not None
        dropped = min(self.segment_bytes, self.body.nbytes)
        self._target = np.empty(dropped, np.uint8) if target is None else target
        self._at = 0
        self._next_segment()

    def opened(self) -> Message:
        """Return the message whose envelope came; held, unless all its bytes came with it."""
        self.current = None
        nbytes, tag, itemsize, inline = envelopes.unpack(self._line, self.peer)
        message = Message(self.peer, tag, nbytes, itemsize)
        if nbytes <= INLINE_BYTES:
            message.data, message.complete = inline, True
        else:
            self.body = message
        return message

    def ended(self) -> Message | None:
        """Go on after a segment came. Returns the message whose last one it was, else None."""
        assert self.body is not None
        self._let_go()
        if self._at < self.body.nbytes:
            self._next_segment()
            return None
        message, self.body, self._target = self.body, None, None
        message.complete = True
        return message

    def _next_segment(self) -> None:
        assert self.body is not None and self._target is not None
        nbytes = min(self.segment_bytes, self.body.nbytes - self._at)
        begin = self._at if self._target.nbytes >= self.body.nbytes else 0
        self._at += nbytes
        self._start_segment(self._target[begin : begin + nbytes])
