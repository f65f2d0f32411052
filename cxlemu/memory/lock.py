"""One lock per emulated host: among its threads and its processes, of Python and of C."""

import fcntl
import time
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from cxlemu import _native
from cxlemu.errors import DeadlineError
from cxlemu.memory.protocol import Bytes

LOCK_BYTES = 64
DEADLINE_S = 10.0  # a holder needs microseconds: this is a stopped process, not a slow one
_RETRY_S = 0.05  # so that Ctrl-C is noticed


class HostLock:
    """A lock that a thread holds around every operation on a host's cache.

    Entering raises DeadlineError where another thread or process holds the lock for more than DEADLINE_S seconds. The
    kernel passes the lock on when its holder dies.

    Ctrl-C may come between the acquisition and the ``with`` block, or within the release. The thread it leaves as
    a holder can enter again, and any exit lets go completely; so sections do not nest.
    """

    def __init__(self, word: Bytes, path: Path | None = None) -> None:
        """Make or join the lock in LOCK_BYTES, zeros at first; ``path`` None: only this process uses it."""
        with ExitStack() as stack:
            if path is not None:
                _lock_file(stack.enter_context(path.open("rb")), path)
            self.native = _native.HostLock(word)

    def __enter__(self) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while True:
            over = time.monotonic() > deadline  # before the last try: this process may be stopped at any moment
            if self.native.acquire(min(_RETRY_S, DEADLINE_S)):
                return
            if over:
                raise held()

    def __exit__(self, *_: object) -> None:
        self.native.release()


def held() -> DeadlineError:
    return DeadlineError(f"another rank of this host has held its cache for more than {DEADLINE_S:g} s")


def _lock_file(file: BinaryIO, path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        over = time.monotonic() > deadline
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if over:
                raise DeadlineError(f"{path} has been locked for more than {DEADLINE_S:g} s") from None
            time.sleep(_RETRY_S)
