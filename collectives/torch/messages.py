"""Send and receive as torch calls them, on the communicator's messages.

Messages make progress while any thread of their rank waits for one. A program may do something else between `isend` and
its wait, so messages that nobody waits for are moved on by a thread, which exists while there are any, and a moment
longer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from collectives.communicator.messages.requests import Rank, Request
from collectives.torch import tensors as of
from collectives.torch.profiled import SeenCall
from collectives.torch.streams import settle
from cxlemu.errors import CxlemuError

PAUSE_S, LONGEST_PAUSE_S = 0.001, 0.004  # each look takes the interpreter from what the program computes
LINGER_S = 1.0  # a thread costs more than a message, and in a pipeline the next one comes soon


class MessageWork(dist._Work):  # type: ignore[misc]
    def __init__(
        self,
        request: Request,
        tensors: list[Tensor],
        name: Callable[[], str],
        failed: Callable[[CxlemuError, str], Exception],
        progress: Progress,
    ) -> None:
        super().__init__()
        self.request, self._tensors, self._name, self._failed = request, tensors, name, failed
        self._progress = progress
        self.seen: SeenCall | None = None  # by the profiler

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the message came, or left."""
        seconds = timeout.total_seconds() if timeout is not None else 0.0
        try:
            with nullcontext() if self.seen is None else self.seen.waited():
                self.request.wait(seconds if seconds > 0 else None)
        except CxlemuError as error:
            raise self._failed(error, self._name()) from error
        except TimeoutError as error:
            raise dist.DistBackendError(f"cxl: {self._name()}: Timed out after {seconds:g} s") from error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        """Whether the message came, or left, or failed."""
        return self.request.poke()

    def is_success(self) -> bool:
        return self.request.status is not None

    def exception(self) -> BaseException | None:
        return self.request.error

    def result(self) -> list[Tensor]:
        self.wait()
        return self._tensors

    def source_rank(self) -> int:
        """Return the rank in the group from which the message came; of a send this rank. Waits for it."""
        self.wait()
        assert self.request.status is not None
        source = self.request.status.source
        assert isinstance(source, int)
        return source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        ends: Any = torch.futures.Future()
        future = ends.then(lambda _: self.result())

        def set_future(_: Request) -> None:
            self._progress.hand_over()
            ends.set_result(None)

        self.request.add_done_callback(set_future)
        return future


class Progress:
    """Moves messages on that no caller waits for."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._pending: list[Request] = []
        self._mover: threading.Thread | None = None
        self._threads: set[threading.Thread] = set()  # the mover, and those that handed over

    def watch(self, request: Request) -> None:
        """Move a request on until it is done."""
        if request.done:
            return
        with self._changed:
            self._pending.append(request)
            self._changed.notify()
            if self._mover is None:
                self._begin()

    def hand_over(self) -> None:
        """Let another thread go on in place of this one, which runs the program's callbacks: they may wait."""
        with self._changed:
            if self._mover is threading.current_thread():
                self._begin()

    def end(self, seconds: float) -> list[Request]:
        """Move nothing on any more, and wait so long for callbacks; return the requests that are not done."""
        end = time.monotonic() + seconds
        with self._changed:
            self._mover = None
            self._changed.notify()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return [request for request in self._pending if not request.done]

    def _begin(self) -> None:
        self._mover = threading.Thread(target=self._move, name="cxl messages", daemon=True)
        self._threads.add(self._mover)
        self._mover.start()

    def _move(self) -> None:
        try:
            self._move_on()
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())

    def _move_on(self) -> None:
        pause_s, seen = PAUSE_S, 0
        while True:
            time.sleep(pause_s)
            with self._changed:
                if self._mover is not threading.current_thread():
                    return
                self._pending = [request for request in self._pending if not request.done]
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if len(self._pending) == seen else PAUSE_S
                seen = len(self._pending)
                if not self._pending:
                    if self._changed.wait_for(lambda: self._pending or self._mover is None, LINGER_S):
                        continue
                    self._mover = None
                    return
                first = self._pending[0]
            first.poke()  # which moves all of them on


def received(comm: Any, tensor: Tensor, source: Rank, tag: int) -> Request:
    """Post a receive, into a tensor that need not be dense."""
    place = of.dense(tensor)
    request: Request = comm.irecv(of.as_array(place), source, tag)

    def copy(its: Request) -> None:
        if its.status is None:
            return
        try:
            of.store(place, tensor)
            settle(tensor)
        except Exception as error:
            its.error = error

    if place is not tensor:
        request.add_done_callback(copy)
    return request
