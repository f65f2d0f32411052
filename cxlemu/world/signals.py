"""Being told to stop: by Ctrl-C, the terminal's end, a launcher or an administrator."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STOPS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})

_CLEAN_UP_S = 10.0  # a stop after this is no impatient repetition: the first one was lost in a destructor
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


@contextmanager
def stops_exit() -> Iterator[None]:
    """The first stop leaves by an exception, so that children and pool go with it, which no second one disturbs.

    Ctrl-C raises KeyboardInterrupt, the others SystemExit with 128 and the signal's number. A handler of the
    user's stays, and so does a signal that is ignored, as under nohup. Only the main thread can do this.
    """
    stopped_at: float | None = None

    def leave(number: int, frame: FrameType | None) -> None:
        nonlocal stopped_at
        now = time.monotonic()
        if stopped_at is not None and now < stopped_at + _CLEAN_UP_S:
            return
        stopped_at = now
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    found = {}
    if threading.current_thread() is threading.main_thread():
        found = {number: signal.getsignal(number) for number in STOPS}
    defaults = {number: handler for number, handler in found.items() if handler in _DEFAULTS}
    try:
        for number in defaults:
            signal.signal(number, leave)
        yield
    finally:
        for number, handler in defaults.items():
            signal.signal(number, handler)
