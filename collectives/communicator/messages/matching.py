"""Which receive takes which message: receives in the order they were posted, messages in the order they came."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from collectives.communicator.messages.requests import ANY, Rank, Request, Status, Tag
from cxlemu.errors import TruncationError
from cxlemu.memory.protocol import Bytes


class Receive(NamedTuple):
    """A receive that was posted."""

    request: Request
    source: Rank  # the rank that it takes a message from, or `ANY`
    tag: Tag  # the tag that it takes, or `ANY`
    target: Bytes  # the array's bytes, 1-D uint8; or those of a contiguous copy of it
    itemsize: int
    # brings that number of bytes from ``target`` to where the user wants them; None: they are there
    copy_back: Callable[[int], None] | None = None

    def takes(self, source: Rank, tag: Tag) -> bool:
        return self.source in (ANY, source) and self.tag in (ANY, tag)


@dataclass(slots=True, eq=False)
class Message:
    """A message that came, or of which the envelope came."""

    source: Rank  # the rank that sent it, or `PROC_NULL`
    tag: Tag
    nbytes: int
    itemsize: int
    data: bytes | Bytes | None = None  # its bytes, where they are not in the mailbox: complete, or still arriving
    complete: bool = False  # whether all bytes are in ``data``
    receive: Receive | None = None  # the receive that takes it, where that is known before the message is complete
    arrival: int = 0  # its number among those that came; 0: a courier brought it, before the others

    @property
    def status(self) -> Status:
        """Source, tag and size."""
        return Status(self.source, self.tag, self.nbytes)

    def fits(self, receive: Receive) -> bool:
        """Whether the message goes into a receive's array: no longer than it, of elements as large, or of bytes."""
        ours, theirs = receive.itemsize, self.itemsize
        same = ours == theirs or ours == 1 or (theirs == 1 and self.nbytes % max(ours, 1) == 0)
        return same and self.nbytes <= receive.target.nbytes

    def misfit(self, receive: Receive) -> TruncationError:
        """Make the error that says why the message does not fit a receive's array."""
        what = f"the message of {self.nbytes} bytes from rank {self.source}, tag {self.tag},"
        if self.nbytes > receive.target.nbytes:
            return TruncationError(f"{what} is longer than the array that receives it: {receive.target.nbytes} bytes")
        return TruncationError(
            f"{what} has elements of {self.itemsize} bytes, and the array that receives it of {receive.itemsize}: take "
            f"an array of the sender's dtype, or of bytes"
        )


@dataclass
class Matching:
    """The receives that wait for messages, and the messages that wait for receives."""

    ranks: int
    # receives that no message has come for, in the order they were posted
    posted: deque[Receive] = field(default_factory=deque)
    # messages that no receive was posted for, in the order they came
    unexpected: list[Message] = field(default_factory=list)
    wanted: list[int] = field(init=False)  # by rank: how many waits name it as the source
    any_wanted: int = 0  # how many waits take a message of any rank
    _arrived: int = 0

    def __post_init__(self) -> None:
        self.wanted = [0] * self.ranks

    def waits_for(self, source: int) -> bool:
        """Whether any receive waits for a message that this rank may send."""
        return self.any_wanted > 0 or self.wanted[source] > 0

    def post(self, receive: Receive) -> Message | None:
        """Take the first message that came for a receive, or let the receive wait and return None."""
        for index, message in enumerate(self.unexpected):
            if receive.takes(message.source, message.tag):
                del self.unexpected[index]
                return message
        self.posted.append(receive)
        self.want(receive.source, 1)
        return None

    def withdraw(self, request: Request) -> bool:
        """Take back a receive that no message has come for. Returns whether it was one."""
        for index, receive in enumerate(self.posted):
            if receive.request is request:
                del self.posted[index]
                self.want(receive.source, -1)
                return True
        return False

    def arrive(self, message: Message) -> Receive | None:
        """Number a message that came, and offer it."""
        self._arrived += 1
        message.arrival = self._arrived
        return self.offer(message)

    def offer(self, message: Message) -> Receive | None:
        """Take the first receive that waits for a message, or let the message wait in its order and return None."""
        for index, receive in enumerate(self.posted):
            if receive.takes(message.source, message.tag):
                del self.posted[index]
                self.want(receive.source, -1)
                return receive
        insort(self.unexpected, message, key=attrgetter("arrival"))
        return None

    def find(self, source: Rank, tag: Tag) -> Message | None:
        """Find the first message of this source and tag, either of which may be `ANY`, that no receive took yet."""
        matches = (m for m in self.unexpected if source in (ANY, m.source) and tag in (ANY, m.tag))
        return next(matches, None)

    def want(self, source: Rank, by: int) -> None:
        """Count one more that waits for a message of this rank, or `ANY`, or one less: ``by`` is 1 or -1."""
        if isinstance(source, int):
            self.wanted[source] += by
        else:
            self.any_wanted += by
