"""Coalesced calls, and calls with a time of their own."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager

DTYPES = [torch.float32, torch.bfloat16, torch.int64]
SIZES = [3, 1, 700, 0, 400_000, 12]  # the fifth is too large to pay for being packed


def tensors(rank: int, times: int = 1) -> list[torch.Tensor]:
    numbers = torch.Generator().manual_seed(rank)
    every = [
        torch.randint(-9, 9, (n * times,), generator=numbers).to(dtype) / (1 if dtype == torch.int64 else 3)
        for n in SIZES
        for dtype in DTYPES
    ]
    return [each.to(dtype) for each, dtype in zip(every, DTYPES * len(SIZES), strict=True)]


def lists(rank: int, ranks: int, store: Any) -> dict[str, bool]:
    """Whether coalesced calls have the bits of calls one by one, and whether fewer plans run."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    group: Any = dist.group.WORLD
    own = group if hasattr(group, "comm") else group._get_backend(torch.device("cpu"))
    found = {}

    def both(name: str, mine: list[torch.Tensor], outs: list[torch.Tensor], call: Any) -> None:
        alone = [out.clone() for out in outs]
        inputs = alone if mine is outs else mine
        begun = own.comm._runner.sequencer.calls
        for x, out in zip(inputs, alone, strict=True):
            call(x, out)
        between = own.comm._runner.sequencer.calls
        with _coalescing_manager(async_ops=True) as manager:
            for x, out in zip(mine, outs, strict=True):
                call(x, out)
        manager.wait()
        found[name] = all(torch.equal(a, b) for a, b in zip(alone, outs, strict=True))
        found[f"{name} runs fewer plans"] = 2 * (own.comm._runner.sequencer.calls - between) < between - begun

    reduced = tensors(rank)
    both("all_reduce", reduced, reduced, lambda x, out: dist.all_reduce(x))
    mine = tensors(rank)
    gathered = [torch.zeros(x.numel() * ranks, dtype=x.dtype) for x in mine]
    both("all_gather", mine, gathered, lambda x, out: dist.all_gather_into_tensor(out, x))
    whole = tensors(rank, ranks)
    scattered = [torch.zeros(x.numel() // ranks, dtype=x.dtype) for x in whole]
    both("reduce_scatter", whole, scattered, lambda x, out: dist.reduce_scatter_tensor(out, x))
    dist.destroy_process_group()
    return found


def timed(rank: int, ranks: int, store: Any) -> list[str]:
    """Rank 0 waits a moment for a call whose group waits for half an hour; rank 1 comes when rank 0 has given up."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks, timeout=timedelta(minutes=30))
    group: Any = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.asyncOp = False
    if rank == 0:
        options.timeout = timedelta(milliseconds=200)
    else:
        store.wait(["gave up"], timedelta(minutes=3))
    said = []
    try:
        group.allreduce([torch.ones(5)], options).wait()
    except dist.DistBackendError as error:
        said.append(str(error))
    if rank == 0:
        store.set("gave up", "")
        said.append(f"{(group if hasattr(group, '_timeout') else group._get_backend(torch.device('cpu')))._timeout}")
    return said
