"""A rank to which something happens in one of its calls: what do the others say, and in which call?

Calls of several plans, of none, of lists, asynchronous ones and messages come before: none of them counts twice.
"""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from collectives.torch.harness import Installed
from faults.torch.harness import TrainingHarness
from faults.torch.settings import Settings

Made = Callable[[], Any]


def messages(rank: int) -> Iterator[Made]:
    for number in range(3):
        yield partial(dist.send if number % 2 == rank else dist.recv, torch.zeros(1000), 1 - rank)


def calls(rank: int) -> Iterator[Made]:
    """Yield call after call; rank 0 waits for rank 1 in each of them."""
    yield dist.barrier
    yield lambda: dist.all_gather([torch.zeros(1), torch.zeros(3)], torch.zeros(1 + 2 * rank))
    yield lambda: dist.all_reduce(torch.zeros(0))
    yield lambda: dist.all_reduce(torch.eye(3).to_sparse())
    yield lambda: dist.all_reduce(torch.zeros(300_000), async_op=True).wait()
    yield lambda: dist.all_reduce_coalesced([torch.zeros(3), torch.zeros(300_000)])
    yield lambda: dist.all_gather_object([None, None], rank)  # two calls of the group
    for _ in range(2):
        yield lambda: dist.all_reduce(torch.zeros(3))


def disturbed(rank: int, ranks: int, store: Any, folder: str, what: str, number: str) -> str:
    """Make all messages and calls, of which rank 1 ends in one; return what the error says."""
    script = Path(folder, "script.json")
    settings = Settings(folder, script=str(script) if script.exists() else None)
    Installed.harness = TrainingHarness(settings, rank)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=2))
    group: Any = dist.group.WORLD
    for make in (*messages(rank), *calls(rank)):
        if rank and group._get_sequence_number_for_group() + 1 == int(number):
            if what == "raise":
                raise RuntimeError(what)
            if what == "exit":
                raise SystemExit(0)
            if what == "late":
                time.sleep(5)
        try:
            make()
        except dist.DistBackendError as error:
            return str(error)
    return ""
