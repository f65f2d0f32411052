"""Tensor and pipeline parallel training, and training out of the pool's own tensors, on cxl and on Gloo."""

import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from collectives.torch import communicator_of
from collectives.torch.group import CxlGroup
from tests.collectives.torch.training import model, steps

Trained = tuple[list[float], list[list[float]]]  # losses, and this rank's parameters


def parameters(of: nn.Module) -> list[list[float]]:
    return [
        (p.to_local() if hasattr(p, "to_local") else p).detach().reshape(-1).float().tolist() for p in of.parameters()
    ]


def ddp(rank: int, ranks: int) -> Trained:
    trained = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    return steps(trained, rank, 4), parameters(trained)


def fsdp(rank: int, ranks: int, dtype: str = "float32", *, in_pool: bool = False) -> Trained:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh("cpu", list(range(ranks)))
    trained = model()
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype))
    parts = [part for part in trained if list(part.parameters())]
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy)
    fully_shard(trained, mesh=mesh, mp_policy=policy)
    if in_pool:
        for part in parts:
            part.set_allocate_memory_from_process_group_for_comm(True)
    return steps(trained, rank, 4), parameters(trained)


def fsdp_bf16(rank: int, ranks: int) -> Trained:
    return fsdp(rank, ranks, "bfloat16")


def tp(rank: int, ranks: int) -> Trained:
    """A layer's columns and the next one's rows on each rank, as torch.distributed.tensor.parallel shares them."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    trained = model()
    mesh = DeviceMesh("cpu", list(range(ranks)))
    parallelize_module(trained, mesh, {"2": ColwiseParallel(), "4": RowwiseParallel()})
    return steps(trained, 0, 4), parameters(trained)


def pp(rank: int, ranks: int) -> Trained:
    """A layer on each rank, four parts of a batch in the pipeline."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    torch.manual_seed(1)
    layers = [nn.Sequential(nn.Linear(24, 24), nn.GELU()) for _ in range(ranks)]
    mine = layers[rank]
    schedule = Schedule1F1B(
        PipelineStage(mine, rank, ranks, torch.device("cpu")), n_microbatches=4, loss_fn=nn.functional.mse_loss
    )
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-2)
    numbers, losses = torch.Generator().manual_seed(5), []
    for _ in range(4):
        x, y = (torch.rand(16, 24, generator=numbers) for _ in range(2))
        optimizer.zero_grad()
        its: list[torch.Tensor] = []
        if rank == 0:
            schedule.step(x)
        elif rank == ranks - 1:
            schedule.step(target=y, losses=its)
        else:
            schedule.step()
        optimizer.step()
        losses += [loss.item() for loss in its]
    return losses, parameters(mine)


WAYS: dict[str, Callable[[int, int], Trained]] = {"ddp": ddp, "fsdp": fsdp, "fsdp_bf16": fsdp_bf16, "tp": tp, "pp": pp}


def trains(rank: int, ranks: int, store: Any, way: str) -> float:
    """The largest difference of losses and parameters, trained on Gloo, then on cxl; 0.0: they have the same bits."""
    torch.set_num_threads(1)
    made = count_calls()
    found = []
    for backend in ("gloo", "cxl"):  # one world after the other, as DTensor knows groups by their mesh alone
        dist.init_process_group(backend, store=dist.PrefixStore(backend, store), rank=rank, world_size=ranks)
        assert not made
        found.append(WAYS[way](rank, ranks))
        dist.destroy_process_group()
    assert len(made) >= 8, made  # that is, cxl did it
    (losses, mine), (its_losses, its_mine) = found
    assert len(losses) == len(its_losses) and [len(p) for p in mine] == [len(p) for p in its_mine]
    pairs = [(losses, its_losses), *zip(mine, its_mine, strict=True)]
    return max((abs(a - b) for theirs, ours in pairs for a, b in zip(theirs, ours, strict=True)), default=0.0)


def count_calls() -> list[str]:
    """Return a list that every call of a group of cxl adds its name to."""
    made: list[str] = []

    def counted(does: Callable[..., Any]) -> Callable[..., Any]:
        def does_and_counts(self: Any, name: str, *given: Any, **named: Any) -> Any:
            made.append(name)
            return does(self, name, *given, **named)

        return does_and_counts

    for each in ("_start", "_message"):
        setattr(CxlGroup, each, counted(getattr(CxlGroup, each)))
    return made


def out_of_the_pool(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """Make tensors by the group's allocator, alone and as FSDP2's staging buffers."""
    torch.set_num_threads(1)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    cpu, group = torch.device("cpu"), dist.group.WORLD
    backend = group._get_backend(cpu)
    found: dict[str, Any] = {"offers": backend.supports_tensor_alloc(cpu), "no other": None}
    heap = backend.comm.heap
    made = [backend.allocate_tensor(n, dtype=dtype, device=cpu) for n, dtype in SIZES]
    found["kinds"] = [[tensor.numel(), str(tensor.dtype)] for tensor in made]
    found["in the pool"] = len(heap.arrays)
    sums = made[0].fill_(rank + 1)
    dist.all_reduce(sums)
    found["sum"] = sums.tolist() == [ranks * (ranks + 1) / 2] * sums.numel()
    del made, sums
    found["after"] = len(heap.arrays)
    try:
        backend.allocate_tensor(1, dtype=torch.uint8, device=torch.device("meta"))
    except ValueError as error:
        found["no other"] = str(error)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            found["too large"] = backend.allocate_tensor(heap.nbytes + 64, dtype=torch.uint8, device=cpu).numel()
    found["said"] = [str(each.message) for each in said]
    taken = 0
    make = backend.allocate_tensor

    def counted(*given: Any, **named: Any) -> torch.Tensor:
        nonlocal taken
        taken += 1
        return make(*given, **named)

    ordinary = fsdp(rank, ranks)
    backend.allocate_tensor = counted
    found["fsdp"] = fsdp(rank, ranks, in_pool=True) == ordinary
    found["taken"] = taken
    dist.destroy_process_group()
    return found


def of_model_size(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """Reduce the gradients of 50 million parameters, which lie in the pool."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    heap = communicator_of().heap
    found: dict[str, Any] = {"begun": heap.held_bytes}
    gradients = torch.from_numpy(heap.full(50_000_000, rank + 1.0, "float32"))
    found["held"] = heap.held_bytes
    dist.all_reduce(gradients)
    found["right"] = bool((gradients == ranks * (ranks + 1) / 2).all())
    del gradients
    dist.barrier()
    heap.trim()
    found["trimmed"] = heap.held_bytes
    dist.destroy_process_group()
    return found


SIZES = [(1000, torch.float32), (7, torch.bfloat16), (3, torch.int64), (0, torch.float32)]


def life(folder: str) -> None:
    """Train under torchrun with restarts: in the first life rank 1 kills itself in its third step."""
    dist.init_process_group("cxl")
    torch.set_num_threads(1)
    rank, number = dist.get_rank(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    trained = DistributedDataParallel(model())
    losses = steps(trained, rank, 2)
    if number == "0" and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    losses += steps(trained, rank, 2)
    dist.destroy_process_group()
    Path(folder, f"life-{number}-rank-{rank}").write_text(repr(losses))


if __name__ == "__main__":
    life(sys.argv[1])
