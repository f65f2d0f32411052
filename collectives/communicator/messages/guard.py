"""Keeps Python and the couriers in C apart: while a thread holds the guard, no courier is at work, and none begins."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from collectives.communicator.messages.transfers import AT_WORK, CLOSED, WAKE
from cxlemu.errors import DeadlineError

AT_WORK_S = 2e-5  # between two looks at a courier that was woken


class CourierGuard:
    """Holds the lock, with the gate closed to couriers and none at work; opens it again where ``settle`` says so."""

    def __init__(self, lock: threading.Lock, gate: bytearray, settle: Callable[[], bool], deadline_s: float) -> None:
        self._lock, self._gate, self._settle, self._deadline_s = lock, gate, settle, deadline_s

    def __enter__(self) -> None:
        self._lock.acquire()
        self._gate[CLOSED] = 1  # first: no courier begins from now on
        until = time.monotonic() + self._deadline_s if self._gate[AT_WORK] else 0.0
        while self._gate[AT_WORK]:
            self._gate[WAKE] = 1
            self._lock.release()
            time.sleep(AT_WORK_S)
            if time.monotonic() > until:
                raise DeadlineError("another thread of this rank stopped while it sent or received")
            self._lock.acquire()
            self._gate[CLOSED] = 1

    def enter_at_once(self) -> bool:
        """Enter where no other thread is inside, and no courier at work."""
        if not self._lock.acquire(blocking=False):
            return False
        if self._gate[AT_WORK]:
            self._lock.release()
            return False
        self._gate[CLOSED] = 1
        return True

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """Enter to take up what a courier handed over to this thread."""
        self._lock.acquire()
        self._gate[CLOSED], self._gate[AT_WORK] = 1, 0
        try:
            yield
        finally:
            self.__exit__()

    def __exit__(self, *error: object) -> None:
        try:
            if self._settle():
                self._gate[CLOSED] = 0
        finally:
            self._lock.release()
