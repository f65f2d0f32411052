"""The order of a rank's calls on one communicator, and calls that are under way."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from cxlemu.numbers import seconds
from cxlemu.pool.home import Home
from cxlemu.units import counted, how_far
from cxlemu.unshared import Unshared

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")


class _Done(int):
    """A bool that may still be called, as `Handle.done` was a method."""

    def __repr__(self) -> str:
        return repr(bool(self))

    def __call__(self) -> bool:
        warnings.warn(
            "handle.done() is the attribute handle.done now: 0.3.0 removes the call", DeprecationWarning, stacklevel=2
        )
        return bool(self)


@dataclass(eq=False)
class Handle(Unshared, Generic[T]):
    """A call under way, as ``async_op=True`` returns it; ``await handle`` waits in asyncio.

    Attributes:
        done: Whether the call has ended, with a result or an error, as `Request.done`.
    """

    _future: Future[T]
    observed: bool = False  # a caller waited, so that an error was seen
    home: Home = field(default_factory=Home)

    def __repr__(self) -> str:
        over = self._future.done()
        return f"<Handle: {how_far(over, self._future.exception() if over else None)}>"

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the call's end.

        Args:
            timeout_s: How long to wait at most, in seconds. None: until it ends, as it does within its deadline.

        Returns:
            What the call returns.

        Raises:
            TimeoutError: It has not ended after ``timeout_s``; it goes on, as peers wait for it.
            RunError: What ended it; the communicator is revoked.
        """
        self._look()
        timeout_s = None if timeout_s is None else seconds(timeout_s, "timeout_s")
        try:
            result = self._future.exception(timeout_s)
        except TimeoutError:
            raise TimeoutError(f"the call has not ended after {timeout_s:g} s") from None
        self.observed = True
        if result is not None:
            raise result
        return self._future.result()

    def __await__(self) -> Generator[Any, None, T]:
        self._look()
        import asyncio  # few programs have it

        loop = asyncio.get_running_loop()
        over = loop.create_future()  # cancelled alone: a peer waits for the call all the same

        def wake() -> None:
            if not over.done():
                over.set_result(None)

        def ended(_: Future[T]) -> None:
            with suppress(RuntimeError):  # that loop was closed meanwhile
                loop.call_soon_threadsafe(wake)

        self._future.add_done_callback(ended)
        yield from over.__await__()
        return self.wait()

    def _cancel(self) -> bool:
        """Keep the call from running, where its turn has not come. Returns whether it never runs."""
        return self._future.cancel()

    def settle(self) -> None:
        """Wait for the end of the call, however it ends."""
        self._look()
        self._future.exception()
        self.observed = True

    def test(self) -> bool:
        """Return whether the call has ended. Raises what ended it, each time, as `Request.test`."""
        if self._future.done():
            self.wait()
        return self._future.done()

    @property
    def done(self) -> bool:
        """Whether the call has ended."""
        return _Done(self._future.done())  # type: ignore[return-value]

    def loss(self) -> str:
        """What is lost if nobody waits for the call: its end or its error, in words; empty if it ended well."""
        if self.observed or self._future.cancelled():
            return ""
        error = self._future.exception() if self._future.done() else None
        state = how_far(self._future.done(), error)
        return "" if state == "done" else state if error is None else f"{state}: {error}"

    def _look(self) -> None:
        """A forked child has not the thread that the call runs in, so it never ends there. Raises ForkedError."""
        if not self._future.done():
            self.home.check()


class CallQueue:
    """Runs a rank's calls of a communicator one after another, in the order they were made.

    A synchronous call runs in the caller's thread unless asynchronous ones are still ahead of it.
    """

    def __init__(self, at_end: list[Callable[[], None]], rank: int) -> None:
        """Make an empty queue; ``at_end`` has what the rank calls when it ends."""
        self.pending = bytearray(1)  # not 0 while an asynchronous call may be ahead: C looks here before every call
        self._executor: ThreadPoolExecutor | None = None
        self._open: list[Handle[Any]] = []
        self._at_end, self._last_word = at_end, partial(_warn_of, self._open, rank)

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` after all calls that are ahead, and return its result. Raises what it raises."""
        if any(not handle._future.done() for handle in self._open):
            handle = self.start(work)
            try:
                return handle.wait()
            except BaseException:  # where a signal's handler raised, a call whose turn has not come never happens
                if handle._cancel():
                    self._open.remove(handle)
                raise
        self.pending[0] = 0
        return work()

    def start(self, work: Callable[[], T]) -> Handle[T]:
        """Run ``work`` in the queue's thread after all calls that are ahead, and return its Handle at once."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # few programs start calls that run later

            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cxlemu-async")
            self._at_end.append(self._last_word)
        self.pending[0] = 1
        handle = Handle(self._executor.submit(work))
        self._open[:] = [other for other in self._open if not other.observed]
        self._open.append(handle)
        return handle

    def abandon(self) -> None:
        """Wait for the calls under way and drop their errors, which say only that a communicator was given up."""
        for handle in self._taken():
            handle.settle()

    def drain(self) -> None:
        """Wait for the calls under way. Raises the error of a call whose Handle was not waited for."""
        for handle in self._taken():
            if not handle.observed:
                handle.wait()

    def close(self) -> None:
        """Let the queue's thread end, if there is one; a later call starts another."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
            self._at_end.remove(self._last_word)

    def _taken(self) -> list[Handle[Any]]:
        handles = [*self._open]
        self._open.clear()
        return handles


def _warn_of(handles: list[Handle[Any]], rank: int) -> None:
    """Issue a RuntimeWarning about calls whose end nobody saw, of communicators that were not closed; none where the
    rank fails anyway, or is a forked child."""
    left = [said for handle in handles if (said := handle.loss())]
    if left and sys.exception() is None and not handles[0].home.left:
        said = f"rank {rank} ends, and nobody waited for {counted(len(left), 'call')}: {'; '.join(left)}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
