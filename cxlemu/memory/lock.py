"""One lock per emulated host: among the threads of a process, and among processes through a lock file."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from cxlemu.errors import DeadlineError

DEADLINE_S = 10.0  # a holder needs microseconds: this is a stopped process, not a slow one
_RETRY_S = 20e-6


class HostLock:
    """Held around every operation on a host's cache. Raises DeadlineError when it cannot be had.

    ``path`` names a file that all processes of the host lock (flock on a descriptor of their own); the kernel
    releases it when its holder dies. A descriptor inherited over fork is the parent's lock: open a new one.

    Ctrl-C may come between the acquisition and the ``with`` block, or within the release. The thread it leaves as
    a holder can enter again, and any exit lets go completely; so sections do not nest.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._threads = threading.RLock()
        self._path = path
        self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> None:
        if not self._threads.acquire(timeout=DEADLINE_S):
            raise DeadlineError(f"a thread has held its host's cache for more than {DEADLINE_S:g} s")
        if self._file is not None:
            try:
                self._lock_file(self._file)
            except BaseException:
                self._release()
                raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        try:
            if self._file is not None:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        finally:
            with suppress(RuntimeError):  # it is no longer this thread's
                while True:
                    self._threads.release()

    def _lock_file(self, file: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = f"{self._path}: another process of this host"
                    raise DeadlineError(f"{holder} has held its cache for more than {DEADLINE_S:g} s") from None
                time.sleep(_RETRY_S)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
