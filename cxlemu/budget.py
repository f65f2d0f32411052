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

    A thread that is not the main one is stopped where it runs Python, and not while it waits in C. A budget around this
    one that ends first stops both.
    """
    if threading.current_thread() is not threading.main_thread():
        with _within_thread(seconds):
            yield
        return
    if 0 < signal.getitimer(signal.ITIMER_REAL)[0] < seconds:
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


@contextmanager
def _within_thread(seconds: float) -> Iterator[None]:
    import ctypes  # which most commands start without

    thread, lock, over = ctypes.c_ulong(threading.get_ident()), threading.Lock(), False
    send = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def spend() -> None:
        with lock:
            if not over:
                send(thread, ctypes.py_object(BudgetSpentError))

    timer = threading.Timer(max(seconds, 0.0), spend)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        with lock:
            over = True
        timer.cancel()  # what was sent just before comes here: a call looks for it
