"""A budget of seconds that holds wherever they are spent, also in code that never looks at a clock."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class BudgetSpentError(BaseException):
    """The budget is spent. It is not an Exception, so that code that is stopped does not catch it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop the code inside after a number of seconds, by an alarm of the process.

    Only the main thread can be stopped in this way; in another thread nothing is stopped.

    Args:
        seconds: How long the code may run; 0 or less stops it at once.

    Raises:
        BudgetSpentError: Inside the context, when the seconds have passed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def spent(number: int, frame: FrameType | None) -> None:
        raise BudgetSpentError

    left_s, began = signal.getitimer(signal.ITIMER_REAL)[0], time.monotonic()
    before = signal.signal(signal.SIGALRM, spent)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # until here the alarm may ring
    finally:
        signal.signal(signal.SIGALRM, before)
        if left_s:  # an alarm that was set before goes on
            signal.setitimer(signal.ITIMER_REAL, max(left_s - (time.monotonic() - began), 1e-6))
