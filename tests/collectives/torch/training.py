"""Training, on cxl and on Gloo: the same bits."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Embedding(50, 32), nn.Flatten(), nn.Linear(8 * 32, 64), nn.GELU(), nn.Linear(64, 50))


def steps(trained: nn.Module, rank: int, count: int) -> list[float]:
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    numbers = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(count):
        tokens = torch.randint(0, 50, (4, 8), generator=numbers)
        loss = nn.functional.cross_entropy(trained(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bits(trained: nn.Module) -> list[Any]:
    return [p.detach().reshape(-1).view(torch.uint8).sum(dtype=torch.int64).item() for p in trained.parameters()] + [
        p.detach().reshape(-1)[:8].tolist() for p in trained.parameters()
    ]


def begin(rank: int, ranks: int, store: Any) -> Any:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    return dist.new_group(backend="cxl")


def ddp_beside_gloo(rank: int, ranks: int, store: Any) -> bool:
    """Whether losses and parameters have the same bits after a few steps of DDP."""
    cxl = begin(rank, ranks, store)
    found = []
    for group in (None, cxl):
        trained = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.02)
        found.append((steps(trained, rank, 3), bits(trained)))
    dist.destroy_process_group()
    return found[0] == found[1]


def fsdp_beside_gloo(rank: int, ranks: int, store: Any, dtype: str) -> bool:
    """Whether losses and parameters have the same bits after a few steps of FSDP2."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    cxl = begin(rank, ranks, store)
    found = []
    for group in (dist.group.WORLD, cxl):
        mesh = DeviceMesh.from_group(group, "cpu")
        trained = model()
        policy = MixedPrecisionPolicy(param_dtype=getattr(torch, dtype))
        for part in trained:
            if list(part.parameters()):
                fully_shard(part, mesh=mesh, mp_policy=policy)
        fully_shard(trained, mesh=mesh, mp_policy=policy)
        losses = steps(trained, rank, 3)
        found.append((losses, [p.to_local().reshape(-1).tolist() for p in trained.parameters()]))
    dist.destroy_process_group()
    return found[0] == found[1]


def killed(rank: int, ranks: int, store: Any) -> Any:
    """Rank 1 is killed in the third step of DDP: what the others raise, and after how long."""
    torch.set_num_threads(1)
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    trained = DistributedDataParallel(model())
    steps(trained, rank, 2)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    since = time.monotonic()
    try:
        steps(trained, rank, 1)
    except RuntimeError as error:  # DDP makes this of the group's DistBackendError
        return [str(error), time.monotonic() - since]
    return "nothing was raised"
