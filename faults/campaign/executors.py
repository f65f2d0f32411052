"""Where cases run: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any, cast

from cxlemu.errors import ArgumentError
from faults.campaign.workers import Workers

NAMES = ("processes", "dask")


def cores() -> int:
    return len(os.sched_getaffinity(0))


@contextmanager
def executors(name: str, workers: int, scheduler: str | None) -> Iterator[Callable[[], Executor]]:
    """Makes an executor whenever it is called. Raises ArgumentError where it cannot.

    A Dask cluster that this process started ends with it; one that is at ``scheduler`` stays.
    """
    if name == "dask":
        with _client(workers, scheduler) as client:
            yield lambda: cast(Executor, client.get_executor(pure=False))
        return
    if scheduler is not None:
        raise ArgumentError("--scheduler is for --executor dask: leave it out, or give that as well")
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
