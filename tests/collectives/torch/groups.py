"""Many process groups in one pool: their pools, their order, and what they leave."""

import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collectives.torch import Options
from collectives.torch.world import _pools


def summed(group: Any) -> float:
    """What an all_reduce of every member's rank in the world gives."""
    x = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(x, group=group)
    return float(x)


def many(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    found: dict[str, Any] = {}
    (pool,) = _pools
    free = pool.context.rooms.free_bytes(pool.context.arena)
    dist.barrier()  # nobody takes room before all have looked
    sums = set()
    for number in range(50):
        first = number % (ranks - 1)
        group = dist.new_group([first, first + 1])
        if rank in (first, first + 1):
            sums.add(summed(group) == 2 * first + 1)
            dist.destroy_process_group(group)
    found["fifty in a row"] = sums == {True}
    dist.barrier()
    found["room is back"] = pool.context.rooms.free_bytes(pool.context.arena) == free
    dist.barrier()  # nobody takes room again before all have looked

    # each rank makes the groups that it is in, in an order of its own, and calls them in yet another one
    halves = [dist.new_group([0, 1]), dist.new_group([1, 0, 2]), dist.new_group(list(range(ranks)))]
    mine = [group for group in halves if group is not dist.GroupMember.NON_GROUP_MEMBER]
    x = [torch.full((3,), float(rank)) for _ in mine]
    order = range(len(mine)) if rank % 2 else range(len(mine) - 1, -1, -1)
    works = [dist.all_reduce(x[k], group=mine[k], async_op=True) for k in order]
    for work in works:
        work.wait()
    found["other orders"] = [each[0].item() for each in x]

    found["pools"] = len(_pools)
    own = dist.new_group(pg_options=Options(card_bytes=4 << 20))
    found["pools with other options"] = len(_pools)
    found["own"] = summed(own)
    dist.destroy_process_group(own)
    found["pools after it"] = len(_pools)

    mesh = dist.device_mesh.init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("outer", "inner"))
    found["mesh"] = [summed(mesh.get_group("outer")), summed(mesh.get_group("inner"))]
    found["pools of a mesh"] = len(_pools)
    dist.destroy_process_group()
    found["pools at the end"] = len(_pools)
    return found


def full(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    """More groups at once than the pool has room for: those get pools of their own, and say so."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
        groups = [dist.new_group() for _ in range(30)]
        sums = {summed(group) for group in groups}
    pools = len(_pools)
    dist.destroy_process_group()
    return {"sums": sorted(sums), "pools": pools, "said": [str(each.message) for each in said]}


def again(rank: int, ranks: int, store: Any) -> list[float]:
    """Make the world anew in the same store, rank 0 last, which must not find what the old one left there."""
    sums = []
    for world in range(3):
        time.sleep(0.2 * (rank == 0))
        limit = timedelta(seconds=60)
        dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks, timeout=limit)
        pair = dist.new_group([world % 2, 2])  # of the same name, and other members
        dist.group.WORLD.monitored_barrier(timedelta(seconds=20))
        sums.append(summed(dist.group.WORLD))
        if rank in (world % 2, 2):
            sums.append(summed(pair))
        dist.destroy_process_group()
    return sums
