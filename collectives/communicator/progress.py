"""The order of a rank's calls on one communicator, and calls that are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")


@dataclass
class Handle(Generic[T]):
    """A call under way, as ``async_op=True`` returns it."""

    _future: Future[T]
    observed: bool = False  # a caller waited, so that an error was seen

    def wait(self, timeout_s: float | None = None) -> T:
        """Wait for the call's end.

        Args:
            timeout_s: How long to wait at most, in seconds (default: as long as the call takes).

        Returns:
            The call's result.

        Raises:
            TimeoutError: The call has not ended after ``timeout_s``.
            RunError: What the call raised.
        """
        result = self._future.exception(timeout_s)
        self.observed = True
        if result is not None:
            raise result
        return self._future.result()

    def settle(self) -> None:
        """Wait for the end of the call, however it ends."""
        self._future.exception()
        self.observed = True

    def done(self) -> bool:
        """Whether the call has ended, with a result or an error."""
        return self._future.done()


class CallQueue:
    """Runs a rank's calls of a communicator one after another, in the order they were made.

    A synchronous call runs in the caller's thread unless asynchronous ones are still ahead of it.
    """

    def __init__(self) -> None:
        self.pending = bytearray(1)  # not 0 while an asynchronous call may be ahead: C looks here before every call
        self._executor: ThreadPoolExecutor | None = None
        self._open: list[Handle[Any]] = []

    def call(self, work: Callable[[], T]) -> T:
        """Run ``work`` after all calls that are ahead, and return its result. Raises what it raises."""
        if any(not handle.done() for handle in self._open):
            return self.start(work).wait()
        self.pending[0] = 0
        return work()

    def start(self, work: Callable[[], T]) -> Handle[T]:
        """Run ``work`` in the queue's thread after all calls that are ahead, and return its Handle at once."""
        if self._executor is None:
            from concurrent.futures import ThreadPoolExecutor  # few programs start calls that run later

            self._executor = ThreadPoolExecutor(1, thread_name_prefix="cxlemu-async")
        self.pending[0] = 1
        handle = Handle(self._executor.submit(work))
        self._open = [other for other in self._open if not other.observed]
        self._open.append(handle)
        return handle

    def abandon(self) -> None:
        """Wait for the calls under way and drop their errors, which say only that a communicator was given up."""
        handles, self._open = self._open, []
        for handle in handles:
            handle.settle()

    def drain(self) -> None:
        """Wait for the calls under way. Raises the error of a call whose Handle was not waited for."""
        handles, self._open = self._open, []
        for handle in handles:
            if not handle.observed:
                handle.wait()

    def close(self) -> None:
        """Let the queue's thread end, if there is one; a later call starts another."""
        executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=False)
