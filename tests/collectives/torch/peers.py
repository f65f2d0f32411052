"""A peer that stops, sleeps, ends or calls something else: what the others raise."""

import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from tests.collectives.torch.training import steps
from tests.helpers.tiers import PATIENT_S


def stopped(rank: int, ranks: int, store: Any) -> str:
    """Rank 1 is stopped, and goes on when rank 0 has its error."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    pids: list[Any] = [None] * ranks
    dist.all_gather_object(pids, os.getpid())
    if rank == 0:
        os.kill(pids[1], signal.SIGSTOP)
        late = threading.Timer(PATIENT_S, os.kill, (pids[1], signal.SIGCONT))
        late.start()
    try:
        for _ in range(100):  # what a rank published before it was stopped may end some
            dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as error:
        return str(error)
    finally:
        if rank == 0:
            os.kill(pids[1], signal.SIGCONT)
            late.cancel()
    return ""


def ended(rank: int, ranks: int, store: Any, hooked: str) -> str:
    """Rank 1 ends with exit code 0, without a word; ``hooked``: the other waits in DDP."""
    from torch.nn.parallel import DistributedDataParallel

    from tests.collectives.torch.training import model

    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    trained: Any = DistributedDataParallel(model()) if hooked else None
    if rank == 1:
        sys.exit(0)
    try:
        steps(trained, rank, 1) if hooked else dist.all_reduce(torch.ones(4))
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def roots(rank: int, ranks: int, store: Any, way: str) -> str:
    """Each rank broadcasts, and waits for nobody: it is the next call that fails."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    dist.barrier()
    dist.broadcast(torch.ones(4), src=rank)
    try:
        work = dist.all_reduce(torch.ones(3), async_op=way == "asynchronous")
        if work is not None:
            work.wait()
    except RuntimeError as error:
        return str(error)
    return ""


def shapes(rank: int, ranks: int, store: Any) -> str:
    """The ranks' sparse tensors have as many elements, of other shapes: rank 0 has no room for rank 1's index 5."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    try:
        dist.all_reduce(torch.sparse_coo_tensor([[0, 4 + rank]], torch.ones(2), (5 + rank,)))
    except ValueError as error:
        return str(error)
    return ""


def busy(_: Any) -> None:
    """Be in C++ for a while."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        torch.ones(1 << 16).sum()


if __name__ == "__main__":  # one rank that leaves all to its end
    dist.init_process_group("cxl", init_method=sys.argv[1], rank=int(sys.argv[2]), world_size=2)
    peer = 1 - dist.get_rank()
    waits = torch.zeros(4)
    pending = dist.irecv(waits, peer)
    work = dist.all_reduce(torch.ones(1 << 16), async_op=True)
    work.get_future().wait()
    if sys.argv[3] == "in a call's callback":
        dist.all_reduce(torch.ones(1 << 16), async_op=True).get_future().then(busy)
    elif sys.argv[3] == "in a message's callback":
        pending.get_future().then(busy)
        sent = dist.isend(torch.ones(4), peer)
        while not waits.any():  # which does not move it on
            time.sleep(0.001)
