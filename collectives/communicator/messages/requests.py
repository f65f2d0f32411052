"""What a user gets of a message that is under way, and of one that came."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

ANY = -1  # any source, any tag


class Status(NamedTuple):
    """A message that came, or that left.

    Attributes:
        source: The rank that sent it.
        tag: Its tag.
        nbytes: Its size in bytes.
    """

    source: int
    tag: int
    nbytes: int


class Waiter(Protocol):
    """Brings requests to their ends: the `Messenger`."""

    def complete(self, request: Request, timeout_s: float | None) -> None:
        """Make progress until the request is done. Raises TimeoutError after ``timeout_s``."""

    def poke(self) -> None:
        """Make what progress there is, without waiting."""


class Request:
    """A send or a receive under way. Any thread may wait for it; the one that waits does the work.

    Attributes:
        peer: The other rank, or `ANY`.
        receives: Whether it is a receive.
        tag: The tag, or `ANY`.
        nbytes: The array's size in bytes.
        done: Whether it ended, well or with an error. Looking makes no progress: `test` does.
        status: What came or left, once it ended well.
        error: What ended it, where it did not end well.
    """

    __slots__ = ("_callbacks", "_waiter", "done", "error", "moved_at", "nbytes", "peer", "receives", "status", "tag")

    def __init__(self, waiter: Waiter, peer: int, receives: bool, tag: int, nbytes: int) -> None:
        self.peer, self.receives, self.tag, self.nbytes = peer, receives, tag, nbytes
        self.done = False
        self.status: Status | None = None
        self.error: BaseException | None = None
        self.moved_at = 0.0  # when a part of it last went over, on the session's clock
        self._waiter = waiter
        self._callbacks: list[Callable[[Request], None]] | None = None

    @property
    def call(self) -> str:
        """What was asked for, in words."""
        peer = "any rank" if self.peer == ANY else f"rank {self.peer}"
        tag = "any tag" if self.tag == ANY else f"tag {self.tag}"
        return f"{'recv from' if self.receives else 'send to'} {peer}, {tag}, {self.nbytes} B"

    def wait(self, timeout_s: float | None = None) -> Status:
        """Wait until the message came, or left so that its array may be changed.

        Args:
            timeout_s: How long to wait at most, in seconds. None: as long as the communicator's deadline, after which
                the communicator is revoked.

        Returns:
            Source, tag and size of the message.

        Raises:
            TimeoutError: It has not ended after ``timeout_s``; it is still under way.
            TruncationError: The message did not fit the array.
            RunError: What ended it; the communicator is revoked.
        """
        if not self.done:
            self._waiter.complete(self, timeout_s)
        if self.error is not None:
            raise self.error
        assert self.status is not None
        return self.status

    def test(self) -> bool:
        """Make progress without waiting, and tell whether the request is done, well or with an error."""
        if not self.done:
            self._waiter.poke()
        return self.done

    def add_done_callback(self, function: Callable[[Request], None]) -> None:
        """Call ``function(request)`` when the request is done, in the thread that finds it so; at once if it is."""
        if not self.done:
            self._callbacks = [*(self._callbacks or ()), function]
        if self.done and self._callbacks is not None:
            self.call_back()
        elif self.done:
            function(self)

    def end(self, status: Status | None, error: BaseException | None = None) -> bool:
        """Note how the request ended. Returns whether there are callbacks to call."""
        self.status, self.error = status, error
        self.done = True
        return self._callbacks is not None

    def call_back(self) -> None:
        """Call the functions that `add_done_callback` was given, each once."""
        callbacks, self._callbacks = self._callbacks, None
        for each in callbacks or ():
            each(self)
