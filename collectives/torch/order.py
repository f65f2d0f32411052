"""The order in which a group's calls run.

A synchronous call runs in the thread that makes it. An asynchronous one is run by whichever thread comes first: the
group's own, or the one that waits for it. A small call that is waited for at once is then as cheap as a synchronous
one: the group's thread leaves small calls alone for a moment for that.

A call's callbacks run right after it, before the next call. Calls that a callback makes run at once in its thread, also
asynchronous ones: they come in the same place on every rank, however early a program makes the next call.
"""

import threading
import time
from collections import deque
from collections.abc import Callable

from torch.distributed import DistBackendError

from collectives.torch.callbacks import LOOK_S, timed
from collectives.torch.work import Work

SMALL_BYTES = 64 << 10
MOMENT_S = 300e-6


class CallOrder:
    """Runs a group's calls one after another, in the order in which they were made."""

    def __init__(self, name: str, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._name = name
        self._ahead: deque[Work] = deque()
        self._turn = threading.RLock()  # the thread that holds it runs calls and their callbacks
        self._in_callback = 0  # the thread in which a callback runs, or 0
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = self._large = False
        self._stuck = ""  # why the turn is never given back

    def call(self, run: Callable[[], None]) -> None:
        """Make a call at once, after those that are ahead of it. Raises what it raises."""
        self._take_turn()
        try:
            run()
        finally:
            self._turn.release()

    def post(self, work: Work, nbytes: int) -> None:
        """Let a call run after those ahead of it, soon if it is large; at once if a callback makes it."""
        if self._in_callback == threading.get_ident():
            self._perform(work)
            return
        self._ahead.append(work)
        if nbytes >= SMALL_BYTES:
            self._large = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"cxl {self._name}", daemon=True)
            self._thread.start()
        self._bell.set()

    def help(self, work: Work, seconds: float | None) -> bool:
        """Run calls until this one has ended; return whether it did, within ``seconds`` if given."""
        end = None if seconds is None else time.monotonic() + seconds
        while not work.done:
            if not self._take_turn(work, end):
                return work.done
            self._turn.release()
        return True

    def close(self) -> None:
        """Run what is ahead, and end the group's thread."""
        self._take_turn()
        self._turn.release()
        self.end(self.timeout_s)

    def end(self, seconds: float) -> None:
        """End the group's thread, which makes the calls that are ahead first; wait for it for so long."""
        self._closed = True
        self._bell.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def _take_turn(self, until: Work | None = None, end: float | None = None) -> bool:
        """Take the turn, after the calls that are ahead or those until one; False where ``end`` came first.

        Calls that have callbacks are left to the group's thread, so that a callback may wait for this thread.
        """
        while self._turn.acquire(blocking=False) or self._await_turn(end):
            within = self._in_callback  # this thread's, as it has the turn
            if within and until is None:
                return True  # what a callback calls comes before what is ahead
            while self._ahead and (until is None or not until.done):
                if self._ahead[0].asked and not within and self._thread is not None and self._thread.is_alive():
                    break
                self._perform(self._ahead.popleft())
            else:
                return True
            self._turn.release()
            self._large = True
            self._bell.set()
            time.sleep(MOMENT_S)
        return False

    def _await_turn(self, end: float | None) -> bool:
        """Wait for the turn until ``end``, by `time.monotonic`; raise once a callback that has it is given up."""
        while not self._stuck:
            left = LOOK_S if end is None else min(end - time.monotonic(), LOOK_S)
            if left <= 0:
                return False
            if self._turn.acquire(timeout=left):
                return True
        raise DistBackendError(self._stuck)

    def _perform(self, work: Work) -> None:
        """Make a call and run its callbacks, in the thread whose turn it is."""
        if (callbacks := work.perform()) is None:
            return
        outer, self._in_callback = self._in_callback, threading.get_ident()
        try:
            with timed(work.name, self.timeout_s, self._fail_ahead):
                callbacks()
        finally:
            self._in_callback = outer

    def _fail_ahead(self, why: str) -> None:
        """Let the calls fail that wait for a callback that does not end, and whoever else waits for its turn."""
        self._stuck = f"cxl: group {self._name}: Timed out waiting: {why}"
        while self._ahead:
            if (callbacks := self._ahead.popleft().fail(DistBackendError(self._stuck))) is not None:
                callbacks()

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
                        self._perform(ahead.popleft())
