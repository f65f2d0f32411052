"""A budget of seconds that holds wherever they are spent, also in code that never looks at a clock."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from cxlemu.signals import Stop


class BudgetSpentError(Stop):
    """The budget is spent."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop the code inside after some seconds (0 or less: at once), by an alarm of the process.

    Only the main thread can be stopped in this way; in another thread nothing is stopped. A budget around this one that
    ends first stops both.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or 0 < signal.getitimer(signal.ITIMER_REAL)[0] < seconds
    ):
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
