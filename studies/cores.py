"""Simulations on all cores of this machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from cxlemu.signals import stops_exit
from faults.campaign.executors import Workers, cores, lost_are_told

Case = TypeVar("Case")
Result = TypeVar("Result")

_work: Callable[[Any], Any]  # of the workers, which are copies of this process


@contextmanager
def on_all_cores(work: Callable[[Case], Result]) -> Iterator[Callable[[Iterable[Case]], Iterator[Result]]]:
    """Provide a map of ``work``, which workers compute, one on each core; this process where one core is enough."""
    jobs = cores() if threading.active_count() == 1 else 1  # threads do not survive a fork
    if jobs < 2:
        yield partial(map, work)
        return
    global _work
    _work = work
    with stops_exit(), lost_are_told():
        workers = Workers(jobs, copied=True)
        try:
            yield partial(workers.map, _computed)
        finally:
            workers.end()


def _computed(case: Any) -> Any:
    return _work(case)
