"""Where cases run: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Executor
from importlib import import_module
from typing import Any, cast

from cxlemu.errors import ArgumentError
from faults.campaign.workers import Workers

NAMES = ("processes", "dask")


def cores() -> int:
    return len(os.sched_getaffinity(0))


def executor_for(name: str, workers: int, scheduler: str | None) -> Callable[[], Executor]:
    """Makes one whenever it is called. Raises ArgumentError where it cannot."""
    if name == "dask":
        return _dask(workers, scheduler)
    if scheduler is not None:
        raise ArgumentError("--scheduler is for --executor dask: leave it out, or give that as well")
    return lambda: Workers(workers)


def _dask(workers: int, scheduler: str | None) -> Callable[[], Executor]:
    try:
        dask: Any = import_module("distributed")
    except ImportError:
        raise ArgumentError("--executor dask needs Dask: pip install 'cxlemu[dask]'") from None
    where = scheduler or dask.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None)
    try:
        client = dask.Client(where)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--scheduler {scheduler}: no Dask scheduler answers there: {error}") from None
    return lambda: cast(Executor, client.get_executor(pure=False))
