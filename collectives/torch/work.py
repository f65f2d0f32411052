"""A call of torch's under way, and the order of a group's calls.

A synchronous call runs in the thread that makes it. An asynchronous one is run by whichever thread comes first: the
group's own, or the one that waits for it. A small call that is waited for at once is then as cheap as a synchronous
one: the group's thread leaves small calls alone for a moment for that.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from cxlemu.errors import CxlemuError

SMALL_BYTES = 64 << 10
MOMENT_S = 300e-6

Result = list[Any]


class Work(dist._Work):  # type: ignore[misc]
    """A call of a group: done, or among those that its `CallOrder` will run.

    Args:
        run: Makes the call; None for one that is done.
        result: The tensors with the result, as torch's futures have them.
        order: The group's calls.
        name: Says in an error what was called.
        failed: Makes torch's error of ours.
    """

    def __init__(
        self,
        run: Callable[[], None] | None,
        result: Result,
        order: CallOrder,
        name: Callable[[], str],
        failed: Callable[[CxlemuError, str], Exception],
    ) -> None:
        super().__init__()
        self._run, self._result, self._order, self._name, self._failed = run, result, order, name, failed
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._ends: Any = None  # what the future follows
        self.done = run is None

    def perform(self) -> None:
        """Make the call, in its turn, and keep its result or error for those who wait."""
        try:
            assert self._run is not None
            self._run()
        except CxlemuError as error:
            self._error = self._failed(error, self._name())
            self._error.__cause__ = error
        except BaseException as error:
            self._error = error
        self._run = None
        with _FUTURES:
            self.done = True
            asked = self._future is not None
        if asked:
            self._ends.set_result(None)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call's end, or make it if its turn has come and it has not begun.

        Raises:
            DistBackendError: The call failed, or did not end within ``timeout``.
            ValueError: Its arguments do not fit.
        """
        if not self.done:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            if not self._order.help(self, seconds if seconds > 0 else None):
                raise dist.DistBackendError(f"{self._name()}: Timed out after waiting for {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """Wait for the call's end, as `wait` does."""
        self.wait()

    def is_completed(self) -> bool:
        """Whether the call has ended."""
        return self.done

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.done and self._error is None

    def exception(self) -> BaseException | None:
        """Return what the call raised, or None."""
        return self._error

    def result(self) -> Result:
        """Return the tensors with the result. Waits for it, and raises as `wait` does."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """Return the rank in the group from which a receive came; -1 for other calls."""
        return -1

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors with the result."""
        with _FUTURES:
            if self._future is None:
                self._ends = torch.futures.Future()
                self._future = self._ends.then(self._come_of_it)
            future, done = self._future, self.done
        if done and not self._ends.done():
            self._ends.set_result(None)
        return future

    def _come_of_it(self, _: Any) -> Result:
        """Return the result. What is raised here is an error in C++ as well, where DDP waits for the future."""
        if self._error is not None:
            raise self._error
        return self._result


class Ended(Work):
    """The end of every synchronous call: one object for all, as no caller looks at it."""

    def __init__(self, order: CallOrder) -> None:
        super().__init__(None, [], order, str, _unfailing)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Do nothing: the call has ended, and raised what there was to raise."""
        return True

    def result(self) -> Result:
        """Refuse: there is no telling which call is meant."""
        raise RuntimeError("cxl: a synchronous call returns when its tensors hold the result: look at these")


class Together(Work):
    """Several calls, which are done when all are.

    Args:
        parts: The calls.
        result: The tensors with the results.
    """

    def __init__(self, parts: list[Any], result: Result, order: CallOrder) -> None:
        super().__init__(None, result, order, str, _unfailing)
        self.parts = parts
        self.done = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all calls. Raises what the first one that failed raised."""
        for part in self.parts:
            part.wait(timeout) if timeout is not None else part.wait()
        self.done = True
        return True

    def is_completed(self) -> bool:
        """Whether all calls have ended."""
        return all(part.is_completed() for part in self.parts)

    def is_success(self) -> bool:
        """Whether all calls have ended well."""
        return all(part.is_success() for part in self.parts)

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of all results."""
        every = torch.futures.collect_all([part.get_future() for part in self.parts])
        return every.then(lambda _: self._result)


def _unfailing(error: CxlemuError, call: str) -> Exception:
    raise AssertionError(f"{call}: {error}")


_FUTURES = threading.Lock()  # between a call that ends and one who asks for its future


class CallOrder:
    """Runs a group's calls one after another, in the order in which they were made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ahead: deque[Work] = deque()
        self._turn = threading.Lock()  # the thread that holds it runs calls
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = self._large = False

    def call(self, run: Callable[[], None]) -> None:
        """Make a call at once, after those that are ahead of it. Raises what it raises."""
        with self._turn:
            if self._ahead:
                self._run_ahead()
            run()

    def post(self, work: Work, nbytes: int) -> None:
        """Let a call run after those ahead of it, soon if it is large.

        Args:
            work: The call.
            nbytes: The bytes of its tensors.
        """
        self._ahead.append(work)
        if nbytes >= SMALL_BYTES:
            self._large = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"cxl {self._name}", daemon=True)
            self._thread.start()
        self._bell.set()

    def help(self, work: Work, seconds: float | None) -> bool:
        """Run calls until this one has ended.

        Returns:
            Whether it has ended within ``seconds``, where these are given.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while not work.done:
            left = -1.0 if end is None else max(end - time.monotonic(), 0.0)
            if not self._turn.acquire(timeout=left):
                return work.done
            try:
                while self._ahead and not work.done:
                    self._ahead.popleft().perform()
            finally:
                self._turn.release()
        return True

    def close(self) -> None:
        """Run what is ahead, and end the group's thread."""
        with self._turn:
            self._run_ahead()
        self._closed = True
        self._bell.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run_ahead(self) -> None:
        while self._ahead:
            self._ahead.popleft().perform()

    def _serve(self) -> None:
        while not self._closed:
            self._bell.wait()
            self._bell.clear()
            if not self._large:
                time.sleep(MOMENT_S)
            self._large, ahead = False, self._ahead
            while ahead:
                with self._turn:
                    if ahead:
                        ahead.popleft().perform()
