"""Tensors of a GPU that is there: two ranks share it, over shared memory."""

import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.collectives.torch.matrix import DTYPES, call, rows, tensor_of
from tests.collectives.torch.training import begin, model

GPU = "cuda:0"


def bits(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """Whether every row of the matrix has the bits of tensors on the CPU; messages as well."""
    warnings.simplefilter("ignore")
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    found: dict[str, Any] = {"same": 0, "differ": []}
    for collective, dtype, op, layout in rows(DTYPES, ["SUM", "AVG", "MAX"]):
        got = []
        for place in ("cpu", GPU):
            x = tensor_of(dtype, rank, layout).to(place)
            try:
                results = call(None, collective, x, getattr(dist.ReduceOp, op or "SUM"))
            except (RuntimeError, ValueError):
                got.append("refused")
                continue
            assert all(result.device == x.device for result in results)
            got.append([result.cpu().contiguous().reshape(-1).view(torch.uint8).tolist() for result in results])
        if got[0] == got[1]:
            found["same"] += got[0] != "refused"
        else:
            found["differ"].append(f"{collective} {dtype} {op} {layout}: {got}")
    x, y = torch.full((4, 6), float(rank), device=GPU), torch.zeros(6, 4, device=GPU).t()
    for request in [dist.isend(x, 1 - rank), dist.irecv(y, 1 - rank)]:
        request.wait()
    found["message"] = y.reshape(-1).tolist() == [float(1 - rank)] * 24
    dist.destroy_process_group()
    return found


def order(rank: int, ranks: int, store: Any) -> list[list[float]]:
    """What slow kernels before a call leave is what it sends; what comes after it sees the result."""
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    x, found = torch.zeros(50_000, device=GPU), []

    def later(value: float) -> None:
        torch.cuda._sleep(100_000_000)  # some 50 ms
        x.fill_(value)

    later(1 + rank)
    dist.all_reduce(x)
    found.append(x.unique().tolist())
    later(10 + rank)
    dist.all_reduce(x, async_op=True).wait()
    found.append(x.unique().tolist())
    mine = torch.cuda.Stream()
    mine.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(mine):
        later(100 + rank)
        (result,) = dist.all_reduce(x, async_op=True).get_future().wait()
        found.append(result.unique().tolist())
        dist.all_reduce(x)
        found.append(x.unique().tolist())
    dist.destroy_process_group()
    return found


def steps(trained: torch.nn.Module, rank: int) -> list[float]:
    optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
    numbers, losses = torch.Generator().manual_seed(rank), []
    for _ in range(4):
        tokens = torch.randint(0, 50, (4, 8), generator=numbers).to(GPU)
        loss = torch.nn.functional.cross_entropy(trained(tokens), tokens[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def trains(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """Losses of DDP over Gloo and over cxl, and of FSDP2 over cxl, with all parameters on the GPU."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    torch.use_deterministic_algorithms(True)
    cxl = begin(rank, ranks, store)
    found: dict[str, Any] = {}
    for name, group in (("gloo", None), ("cxl", cxl)):
        trained = DistributedDataParallel(model().to(GPU), process_group=group, bucket_cap_mb=0.02)
        found[name] = steps(trained, rank)
    mesh = DeviceMesh.from_group(cxl, "cuda")
    found["fsdp"] = steps(fully_shard(model().to(GPU), mesh=mesh), rank)
    dist.destroy_process_group()
    return found
