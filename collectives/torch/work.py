"""A call of torch's under way.

order.py has the order in which a group's calls run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

from collectives.torch.profiled import SeenCall
from collectives.torch.typed import needs_type, typed_future
from cxlemu.errors import CxlemuError

Result = list[Any]
Failed = Callable[[CxlemuError, str], Exception]  # makes torch's error of ours and the name of the call


class Order(Protocol):
    """What runs calls in their turn: the `CallOrder` in order.py."""

    def help(self, work: Work, seconds: float | None) -> bool:
        """Run calls until this one has ended; return whether it did, within ``seconds`` if given."""


class Work(dist._Work):  # type: ignore[misc]
    """A call of a group: done, or among those that its `CallOrder` will run."""

    def __init__(
        self,
        run: Callable[[], None] | None,
        result: Result,
        order: Order,
        name: Callable[[], str],
        failed: Failed,
    ) -> None:
        super().__init__()
        self._run, self._result, self._order, self._name, self._failed = run, result, order, name, failed
        self._error: BaseException | None = None
        self._future: torch.futures.Future[Any] | None = None
        self._ends: Any = None  # what the future follows
        self._is_set = False
        self.done = run is None
        self.seen: SeenCall | None = None  # by the profiler

    def perform(self) -> Callable[[], None] | None:
        """Make the call, in its turn, and keep its result or error for those who wait; return what runs callbacks."""
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
        return self._set_future if asked else None

    @property
    def asked(self) -> bool:
        """Whether a caller has asked for the future, and may have callbacks."""
        return self._future is not None

    def name(self) -> str:
        return self._name()

    def fail(self, error: BaseException) -> Callable[[], None] | None:
        """End the call without making it; return what `perform` returns."""
        self._run = lambda: _raise(error)
        return self.perform()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call's end, or make it if its turn has come and it has not begun."""
        if self.seen is not None:
            with self.seen.waited():
                return self._wait(timeout)
        return self._wait(timeout)

    def _wait(self, timeout: timedelta | None) -> bool:
        if not self.done:
            seconds = timeout.total_seconds() if timeout is not None else 0.0
            if not self._order.help(self, seconds if seconds > 0 else None):
                raise dist.DistBackendError(f"{self._name()}: Timed out after waiting for {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.done

    def is_success(self) -> bool:
        """Whether the call has ended well."""
        return self.done and self._error is None

    def exception(self) -> BaseException | None:
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
        with _FUTURES:
            if self._future is None:
                self._ends = torch.futures.Future()
                self._future = self._ends.then(self._come_of_it)
                if needs_type(self._result):
                    self._future = typed_future(self._future, self._result)
            future, done = self._future, self.done
        if done:
            self._set_future()
        return future

    def _set_future(self) -> None:
        with _FUTURES:
            first, self._is_set = not self._is_set, True
        if first:
            self._ends.set_result(None)

    def _come_of_it(self, _: Any) -> Result:
        """Return the result. What is raised here is an error in C++ as well, where DDP waits for the future."""
        if self._error is not None:
            raise self._error
        return self._result


class Ended(Work):
    """The end of every synchronous call: one object for all, as no caller looks at it."""

    def __init__(self, order: Order) -> None:
        super().__init__(None, [], order, str, _unfailing)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Do nothing: the call has ended, and raised what there was to raise."""
        return True

    def result(self) -> Result:
        """Refuse: there is no telling which call is meant."""
        raise RuntimeError("cxl: a synchronous call returns when its tensors hold the result: look at these")


class Together(Work):
    def __init__(self, parts: list[Any], result: Result, order: Order) -> None:
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
        return all(part.is_completed() for part in self.parts)

    def is_success(self) -> bool:
        """Whether all calls have ended well."""
        return all(part.is_success() for part in self.parts)

    def get_future(self) -> torch.futures.Future[Any]:
        every = torch.futures.collect_all([part.get_future() for part in self.parts])
        return every.then(lambda _: self._result)


def _raise(error: BaseException) -> None:
    raise error


def _unfailing(error: CxlemuError, call: str) -> Exception:
    raise AssertionError(f"{call}: {error}")


_FUTURES = threading.Lock()  # between a call that ends and one who asks for its future
