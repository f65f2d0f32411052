"""Names callbacks of calls' futures that do not end: those that wait for themselves, or for a later call."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

NAMED_S = 5.0
LOOK_S = 0.25


@dataclass(eq=False)
class _Running:
    call: Callable[[], str]  # names the call
    begun: float
    named_at: float
    given_up_at: float
    give_up: Callable[[str], None]
    named: bool = False


_running: set[_Running] = set()
_changed = threading.Lock()
_watched = False


@contextmanager
def timed(call: Callable[[], str], timeout_s: float, give_up: Callable[[str], None]) -> Iterator[None]:
    """Run a call's callbacks in this context: a thread says so on stderr where they do not end.

    After the group's timeout, and after that sentence, ``give_up`` lets go whoever waits for them, with the reason.
    """
    global _watched
    now = time.monotonic()
    running = _Running(call, now, now + min(NAMED_S, timeout_s / 2), now + timeout_s, give_up)
    with _changed:
        _running.add(running)
        if not _watched:
            _watched = True
            threading.Thread(target=_watch, name="cxl callbacks", daemon=True).start()
    try:
        yield
    finally:
        with _changed:
            _running.discard(running)


def _watch() -> None:
    """Look at what runs; end when nothing does."""
    global _watched
    while True:
        time.sleep(LOOK_S)
        now = time.monotonic()
        with _changed:
            if not _running:
                _watched = False
                return
            late = [
                running for running in _running if now > (running.given_up_at if running.named else running.named_at)
            ]
        for running in late:
            why = f"a callback of the future of {running.call()} has not ended for {now - running.begun:.1f} s"
            if running.named:
                running.given_up_at = float("inf")
                running.give_up(why)
                continue
            running.named = True
            hint = "a callback must not wait for its own future, or for a call that comes later"
            print(f"cxl: {why}, and later calls of its group wait for it: {hint}", file=sys.stderr, flush=True)
