"""Callbacks of calls' futures that make calls themselves, as torch's powerSGD and quantization hooks do."""

import contextlib
import io
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from tests.collectives.torch.training import bits, model, steps

LARGE, SMALL = 1 << 16, 4


def callbacks(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    torch.set_num_threads(1)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=60))
    other = dist.new_group()
    found: dict[str, Any] = {}

    def future(value: float, count: int = LARGE, group: Any = None) -> Any:
        return dist.all_reduce(torch.full((count,), value), group=group, async_op=True).get_future()

    def sums(value: float, count: int = LARGE, group: Any = None) -> float:
        return float(future(value, count, group).wait()[0][0])

    def waits(value: float) -> float:
        x = torch.full((SMALL,), value)
        dist.all_reduce(x)
        y = torch.full((SMALL,), value)
        dist.all_reduce(y, async_op=True).wait()
        return float(x[0] + y[0])

    for count in (SMALL, LARGE):
        found[f"asynchronous {count}"] = future(1.0, count).then(lambda f: sums(float(f.value()[0][0]))).wait()
        found[f"synchronous {count}"] = future(1.0, count).then(lambda f: waits(float(f.value()[0][0]))).wait()
        found[f"two deep {count}"] = (
            future(1.0, count).then(lambda _: future(2.0).then(lambda _: sums(3.0)).wait()).wait()
        )
    found["two groups"] = future(1.0).then(lambda _: sums(5.0, LARGE, other)).wait()

    # The next call is made at once on one rank, and late on the other: what the callback calls comes before it on both.
    for late in range(4):
        first = future(1.0)
        its = first.then(lambda _: sums(7.0, SMALL))
        if (late + rank) % 2:
            time.sleep(0.02)
        after = torch.full((2 * LARGE,), 1.0)
        work = dist.all_reduce(after, async_op=True)
        found[f"order {late}"] = its.wait() + float(first.wait()[0][0])
        work.wait()

    if rank < 2:  # the callback of a message waits for another one
        a, b = torch.zeros(3), torch.zeros(3)
        if rank:
            came = dist.irecv(a, 0, tag=1).get_future().then(lambda _: dist.irecv(b, 0, tag=2).get_future().wait())
            came.wait()
            found["message"] = float(b[0])
        else:
            dist.send(torch.full((3,), 1.0), 1, tag=1)
            dist.send(torch.full((3,), 9.0), 1, tag=2)
    trained = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=1)
    trained.register_comm_hook(state, powerSGD_hook)
    steps(trained, rank, 4)
    every: list[Any] = [None] * ranks
    dist.all_gather_object(every, bits(trained))
    found["replicas"] = all(each == every[0] for each in every)
    dist.destroy_process_group()
    return found


def waits_for_itself(rank: int, ranks: int, store: Any) -> Any:
    """A callback waits for its own end: what is said of it, what a later call raises."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=2))
    futures: list[Any] = []

    def callback(_: Any) -> None:
        futures[0].wait()

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        with dist.group.WORLD._get_backend(
            torch.device("cpu")
        )._order._turn:  # the call has not ended when its callback is added
            work = dist.all_reduce(torch.ones(LARGE), async_op=True)
            futures.append(work.get_future().then(callback))
        later = dist.all_reduce(torch.ones(LARGE), async_op=True)
        raised = []
        for call in (later.wait, lambda: dist.all_reduce(torch.ones(1))):
            try:
                call()
                raised.append("nothing")
            except dist.DistBackendError as error:
                raised.append(str(error))
    return said.getvalue(), raised
