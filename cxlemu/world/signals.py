"""Signals that tell a world to stop: Ctrl-C, the terminal's end, a launcher's or an administrator's."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

_CLEAN_UP_S = 10.0  # a stop after this is no impatient repetition: the first one was swallowed
_AGAIN_S = 0.05  # until a destructor that swallowed a stop is over
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def stops_exit() -> Iterator[None]:
    """Leave by an exception at the first stop, so that children and pool go with it, which no second stop disturbs.

    Ctrl-C raises KeyboardInterrupt, the others SystemExit with 128 and the signal's number. A handler of the user's
    stays, and so does a signal that is ignored, as under nohup. Only the main thread can do this.

    Python swallows what is raised in a destructor or a callback of a weak reference, such as those of every import, and
    tells `sys.unraisablehook` alone: a stop that ends there comes again.
    """
    stopped_at: float | None = None
    stop: BaseException | None = None
    unraisable = sys.unraisablehook
    over, sending = False, _thread.allocate_lock()

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_at, stop
        now = time.monotonic()
        if stopped_at is not None and now < stopped_at + _CLEAN_UP_S:
            return
        stopped_at = now
        stop = KeyboardInterrupt() if number == signal.SIGINT else SystemExit(128 + number)
        raise stop

    def swallowed(what: sys.UnraisableHookArgs) -> None:
        nonlocal stopped_at
        if stop is None or what.exc_value is not stop:
            unraisable(what)
            return
        stopped_at = None
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else stop.args[0] - 128
        _thread.start_new_thread(come_again, (number,))  # takes no lock that the interrupted code may have

    def come_again(number: int) -> None:
        time.sleep(_AGAIN_S)
        with sending:  # afterwards the default handlers are back, which would end the process
            if not over:
                os.kill(os.getpid(), number)

    found = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOPS}
    defaults = {number: handler for number, handler in found.items() if handler in _DEFAULTS}
    try:
        for number in defaults:
            signal.signal(number, leave)
        if defaults:
            sys.unraisablehook = swallowed
        yield
    finally:
        with sending:
            over = True
        if sys.unraisablehook is swallowed:
            sys.unraisablehook = unraisable
        for number, handler in defaults.items():
            signal.signal(number, handler)
