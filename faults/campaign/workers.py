"""Worker processes that end with whoever started them, whichever way that ended."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType

REPEAT_S = 0.2


class Workers(ProcessPoolExecutor):
    """As a context it ends its workers at once when it is left by an exception, and else when their work is done."""

    def __init__(self, count: int) -> None:
        context = get_context("forkserver")
        parents, self._held_open = context.Pipe(duplex=False)
        super().__init__(count, mp_context=context, initializer=_live_with, initargs=(parents,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._held_open.close()
        self.shutdown(wait=True, cancel_futures=kind is not None)


def _live_with(parents: Connection) -> None:
    """Ctrl-C goes to the whole group of processes: it is left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parents,), daemon=True).start()


def _end_with(parents: Connection) -> None:
    """Nothing is ever sent: the pipe ends when the parent closes its end, or is gone however it was killed.

    A stop lets a world that is under way take its processes and its pool along; the next one finds none.
    """
    parents.poll(None)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(REPEAT_S)
