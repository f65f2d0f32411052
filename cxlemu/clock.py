"""The time, and waiting: an argument wherever a deadline is, so that a test can run in time of its own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A source of time for deadlines, and a way to wait. ``SYSTEM_CLOCK`` is the real one."""

    shortest_sleep_s: float  # shorter ones take as long

    def now(self) -> float:
        """Return the seconds since some moment; the time never goes back."""

    def sleep(self, seconds: float) -> None:
        """Let others run for at least this many seconds."""


class _SystemClock:
    shortest_sleep_s = 0.0

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM_CLOCK: Clock = _SystemClock()
