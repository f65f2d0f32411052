"""What a user gets of a message that is under way, and of one that came."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from cxlemu.dlpack import pin
from cxlemu.numbers import seconds
from cxlemu.signals import is_from_handler
from cxlemu.units import how_far
from cxlemu.unshared import Unshared


class Special(Enum):
    """What stands where a rank, a tag or an index would; no number that a program computes is equal to one."""

    ANY = "any source, any tag"
    PROC_NULL = "no rank: a message to it or from it is over at once"
    UNDEFINED = "no index: no request is active"

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__


ANY = ANY_SOURCE = ANY_TAG = Special.ANY
PROC_NULL, UNDEFINED = Special.PROC_NULL, Special.UNDEFINED
Rank: TypeAlias = "int | Special"
Tag: TypeAlias = "int | Special"


class Status(NamedTuple):
    """A message that was received or sent.

    Attributes:
        source: The rank that sent it, or `PROC_NULL`.
        tag: Its tag; `ANY` from `PROC_NULL`.
        nbytes: Its size in bytes.
    """

    source: Rank
    tag: Tag
    nbytes: int


class Waiter(Protocol):
    """Brings requests to their ends: the `Messenger`."""

    def complete(self, request: Request, timeout_s: float | None) -> None:
        """Make progress until the request is done. Raises TimeoutError after ``timeout_s``."""

    def poke(self, about: Request | None = None) -> None:
        """Make what progress there is, without waiting, and look now and then whether ``about`` may still come."""

    def attend(self, request: Request) -> Iterator[float]:
        """Complete the request; yield for how many seconds its caller may do something else, or stop."""


class Request(Unshared):
    """A send or a receive under way. Any thread may wait for it; the one that waits does the work.

    ``await request`` gives what `wait` returns, and lets other tasks run meanwhile; one that is cancelled leaves the
    request under way.

    Attributes:
        peer: The other rank, `ANY` or `PROC_NULL`.
        receives: Whether it is a receive.
        tag: The tag, or `ANY`.
        nbytes: The array's size in bytes.
        done: Whether it ended, well or with an error. Looking makes no progress: `test` does.
        status: The message's rank, tag and size, once it ended well.
        error: The error that ended it, if it failed.
        active: Whether no wait or test has yet said that it is done; waits for one of several skip it from then on.
        waiter: The part that completes it: its communicator's messages.
    """

    __slots__ = (
        "_callbacks",
        "active",
        "arrival",
        "done",
        "error",
        "moved_at",
        "nbytes",
        "peer",
        "receives",
        "status",
        "tag",
        "verb",
        "waiter",
    )

    def __init__(
        self, waiter: Waiter, peer: Rank, receives: bool, tag: Tag, nbytes: int, verb: str | None = None
    ) -> None:
        self.verb = verb  # what the user called, where that is neither a send nor a receive
        self.peer, self.receives, self.tag, self.nbytes = peer, receives, tag, nbytes
        self.done, self.active = False, True
        self.status: Status | None = None
        self.error: BaseException | None = None
        self.moved_at = 0.0  # when a part of it last went over, on the session's clock
        self.arrival = 0  # the number of the message that a receive took
        self.waiter = waiter
        self._callbacks: list[Callable[[Request], None]] | None = None

    @property
    def call(self) -> str:
        """The request in words."""
        peer = "any rank" if self.peer is ANY else f"rank {self.peer!r}"
        tag = "any tag" if self.tag is ANY else f"tag {self.tag}"
        if self.verb is not None:
            return f"{self.verb} from {peer}, {tag}"
        return f"{'recv from' if self.receives else 'send to'} {peer}, {tag}, {self.nbytes} B"

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait until the message has arrived, or has left so that its array may be changed.

        Args:
            timeout_s: How long to wait at most, in seconds. None: as long as the communicator's deadline, after which
                the communicator is revoked.

        Returns:
            Source, tag and size of the message.

        Raises:
            TimeoutError: It has not ended after ``timeout_s``; it is still under way.
            TruncationError: The message did not fit the array.
            RunError: The error that ended it; the communicator is revoked.
        """
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        if not self.done:
            self.waiter.complete(self, timeout_s)
        self.retire()
        assert self.status is not None
        return self.status

    def __await__(self) -> Generator[Any, None, Status]:
        if not self.done:
            import asyncio  # few programs have it

            for pause_s in self.waiter.attend(self):
                yield from asyncio.sleep(pause_s).__await__()
        return self.wait()

    def test(self) -> bool:
        """Make progress without waiting, and return whether the request is done. Raises what `wait` does, each time."""
        if self.poke():
            self.retire()
        return self.done

    def poke(self) -> bool:
        """Make progress without waiting, and return whether it is done, without marking it as seen."""
        if not self.done:
            self.waiter.poke(self)
        return self.done

    def retire(self) -> None:
        """Note that a wait or a test found it done. Raises the error that ended it, if it failed."""
        self.active = False
        if self.error is not None:
            raise self.error

    def __repr__(self) -> str:
        return f"<Request {self.call}: {how_far(self.done, self.error)}>"

    def add_done_callback(self, function: Callable[[Request], None]) -> None:
        """Call ``function(request)`` when the request is done, in the thread that finds it so; at once if it is.

        Its exceptions go to `threading.excepthook`: the thread may wait for something else.
        """
        self._callbacks = [*(self._callbacks or ()), function]
        if self.done:
            self.call_back()

    def holding(self, array: Any) -> Request:
        """Return this request; unless it is done, the array is read or written while its user goes on."""
        if not self.done:
            pin(array)
        return self

    def end(self, status: Status | None, error: BaseException | None = None) -> bool:
        """Note how the request ended. Returns whether there are callbacks to call."""
        self.status, self.error = status, error
        self.done = True
        return self._callbacks is not None

    def call_back(self) -> None:
        """Call the functions that `add_done_callback` was given, each once."""
        callbacks, self._callbacks = self._callbacks, None
        for each in callbacks or ():
            try:
                each(self)
            except Exception as error:
                if is_from_handler(error):
                    raise
                what = type(error), error, error.__traceback__, threading.current_thread()
                threading.excepthook(threading.ExceptHookArgs(what))


@dataclass(frozen=True, eq=False)
class PersistentMessage(Unshared):
    """A send or a receive that is started as often as one likes, like MPI's persistent requests are."""

    _post: partial[Request]

    def start(self) -> Request:
        """Begin it once more, with what the array holds now. Returns the request, and raises what the verb raises."""
        return self._post()

    def __repr__(self) -> str:
        _, peer, tag = self._post.args
        return f"<PersistentMessage {self._post.func.__name__} with rank {peer!r}, tag {tag!r}>"


class Taken(Protocol):
    """A message that a probe took."""

    @property
    def status(self) -> Status:
        """Its source, tag and size."""


class Keeper(Protocol):
    """Receives messages that a probe took: the `Messenger`."""

    def receive_matched(self, message: Any, array: Any) -> Request:
        """Receive it, once."""

    def unreceive(self, request: Request, array: Any, matched: Any) -> None:
        """Undo that, as its caller does not learn of it."""


class MatchedMessage(Unshared):
    """A message that `PointToPoint.mprobe` found, which no other receive takes.

    Attributes:
        status: Its source, tag and size in bytes.
    """

    def __init__(self, keeper: Keeper, message: Taken) -> None:
        self.status, self._keeper, self._message = message.status, keeper, message

    def __repr__(self) -> str:
        return f"<MatchedMessage {self.status}>"

    def irecv(self, array: Any) -> Request:
        """Begin to receive it into an array, once. Returns the request; raises as `PointToPoint.irecv`."""
        return self._keeper.receive_matched(self._message, array).holding(array)

    def recv(self, array: Any) -> Status:
        """Receive it into an array, once. Returns its status, and raises as `PointToPoint.recv`."""
        request = self._keeper.receive_matched(self._message, array)
        try:
            return request.wait()
        except BaseException:
            self._keeper.unreceive(request, array, self._message)
            raise
