"""Keeps Python and the couriers in C apart: while a thread holds the guard, no courier is at work, and none begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from collectives.communicator.messages.transfers import AT_WORK, CLOSED, WAKE, TransferLane
from cxlemu._native import unlocked
from cxlemu.errors import DeadlineError
from cxlemu.signals import interrupts

AT_WORK_S = 2e-5  # between two looks at a courier that was woken


class CourierGuard:
    """Within the lock, closes the gate to couriers, none of which is at work; opens it where ``settle`` says so.

    What a courier handed over is taken up by whoever enters next, of whichever thread: the one that called the courier
    may have been interrupted by the handler of a signal. Where a handler raises within, ``give_up`` is called.

    Attributes:
        half_done: Whether something may be half done where a handler raises; a wait says that nothing is.
    """

    half_done = False

    def __init__(
        self,
        lock: threading.Lock,
        lane: TransferLane,
        take_up: Callable[[], None],
        settle: Callable[[], bool],
        give_up: Callable[[BaseException], None],
        deadline_s: float,
    ) -> None:
        self._lock, self._gate, self._handed = lock, lane.gate, lane.handed
        self._take_up, self._settle, self._give_up, self._deadline_s = take_up, settle, give_up, deadline_s

    def __enter__(self) -> None:
        self._gate[CLOSED] = 1  # first: no courier begins from now on
        until = 0.0
        while self._gate[AT_WORK]:
            until = until or time.monotonic() + self._deadline_s
            if time.monotonic() > until:
                raise DeadlineError("another thread of this rank stopped while it sent or received")
            self._gate[WAKE] = 1
            unlocked(self._lock, time.sleep, AT_WORK_S)
            self._gate[CLOSED] = 1
        if self._handed:
            self._take_up()
        self.half_done = True

    @property
    def taken(self) -> bool:
        """Whether another thread is inside, or a courier at work."""
        return self._lock.locked() or self._gate[AT_WORK] != 0

    def __exit__(self, kind: object = None, error: BaseException | None = None, trace: object = None) -> None:
        if self.half_done and error is not None and interrupts(error):
            self._give_up(error)
        self.half_done = False  # threads that wait see what this one left
        if self._settle():
            self._gate[CLOSED] = 0
