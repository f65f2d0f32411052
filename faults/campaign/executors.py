"""Where cases run: processes of this machine, or the workers of a Dask cluster.

Worker processes end with the process that started them, whichever way that ended.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, InvalidStateError, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from typing import Any, TypeVar, cast

from cxlemu.errors import ArgumentError, WorkerLostError

NAMES = ("processes", "dask")
REPEAT_S = 0.2

T = TypeVar("T")


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def executors(name: str, workers: int, scheduler: str | None) -> Iterator[Callable[[], Executor]]:
    """Provide a function that makes an executor; without a scheduler's address, workers start on this machine.

    A Dask cluster that this process started ends with the context; a cluster at ``scheduler`` stays.
    """
    if name == "dask":
        with _client(workers, scheduler) as client:
            yield lambda: cast(Executor, client.get_executor(pure=False))
        return
    if scheduler is not None:
        raise ArgumentError("--scheduler requires --executor dask")
    yield lambda: Workers(workers)


@contextmanager
def _client(workers: int, scheduler: str | None) -> Iterator[Any]:
    try:
        dask: Any = import_module("distributed")
    except ImportError:
        raise ArgumentError("--executor dask needs Dask: pip install 'cxlemu[dask]'") from None
    with ExitStack() as stack:
        where: Any = scheduler
        if where is None:
            where = dask.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
            stack.enter_context(where)
        try:
            client = stack.enter_context(dask.Client(where))
        except (OSError, ValueError) as error:
            raise ArgumentError(f"--scheduler {scheduler}: no Dask scheduler answers there: {error}") from None
        yield client


def end(executor: Executor) -> None:
    """Stop an executor, whatever its cases do.

    Workers of this machine end at once; a cluster's workers end with the cluster, or when they are done.
    """
    if isinstance(executor, Workers):
        executor.end()
    else:
        executor.shutdown(wait=False)


class Workers(ProcessPoolExecutor):
    """Worker processes of this machine.

    As a context, it ends its workers at once when an exception leaves it, and otherwise when their work is done.
    """

    def __init__(self, count: int, *, copied: bool = False) -> None:
        if not copied:
            _track_quietly()
        context = get_context("fork" if copied else "spawn")  # a fork server has a folder, which SIGKILL would leave
        parents, self._held_open = context.Pipe(duplex=False)
        theirs = (parents, self._held_open if copied else None)
        self._kept_from = {signal.SIGINT, signal.SIGTERM} if copied else {signal.SIGINT}
        super().__init__(count, mp_context=context, initializer=_live_with, initargs=theirs)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if kind is not None:
            self.end()
        self.shutdown(wait=True)
        if error is not None:
            with lost_are_told():
                raise error

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Submit work. Ctrl-C goes to the whole group of processes: a worker that starts here never takes it.

        A copied worker has the parent's handler of SIGTERM at first, which is not to run there.
        """
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._kept_from)
        try:
            future = super().submit(fn, *args, **kwargs)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        future.set_exception = partial(_fail, future)  # type: ignore[method-assign]
        return future

    def end(self) -> None:
        """End the workers at once, whatever they do: also those that still start, and do not watch us yet."""
        self._held_open.close()
        for worker in list((self._processes or {}).values()):
            worker.terminate()
        self.shutdown(wait=True, cancel_futures=True)


def _fail(future: Future[Any], error: BaseException | None) -> None:
    """Fail a future. Python (3.11) fails those of dead workers, and its thread would end at one that was cancelled."""
    with suppress(InvalidStateError):
        Future.set_exception(future, error)


@contextmanager
def lost_are_told() -> Iterator[None]:
    """Raise a WorkerLostError where a worker is gone."""
    try:
        yield
    except BrokenProcessPool as error:
        raise WorkerLostError(
            "a worker was killed, perhaps for lack of memory, or ended by your code: try fewer --jobs"
        ) from error


def _track_quietly() -> None:
    """Start the helper that removes semaphores after SIGKILL; it is not to warn that it does."""
    before = list(sys.warnoptions)
    sys.warnoptions.append("ignore::UserWarning:multiprocessing.resource_tracker")  # it gets our options
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions[:] = before


def _live_with(parents: Connection, copied: Connection | None) -> None:
    """Leave Ctrl-C, which goes to the whole group of processes, to the parent; and end with the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if copied is not None:
        copied.close()  # the copy of the parent's end would hold the pipe open
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the parent's handler would wait until C returns
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=_end_with, args=(parents,), daemon=True).start()


def _end_with(parents: Connection) -> None:
    """End this worker when the parent does. Nothing is ever sent: the pipe ends when the parent closes its end, or is
    gone however it was killed.

    The first SIGTERM lets a world that is running take its processes and its pool along; the next one finds none.
    """
    parents.poll(None)
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(REPEAT_S)
