"""What is refused, and what ranks that differ are told."""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from collectives.torch import communicator_of, make_group
from cxlemu.pool import segments


def mistakes(rank: int, ranks: int, store: Any) -> dict[str, Any]:
    assert "cxl" in dist.Backend.backend_list  # by the entry point, where nothing else has been imported
    dist.init_process_group("cxl", store=store, rank=rank, world_size=ranks)
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    pool = backend._pool.pool
    dist.barrier()  # rank 0 has removed the names when it comes here
    for _ in range(3):  # in room of the same pool, which comes back
        half = dist.new_group([rank], use_local_synchronization=True)
        assert half._get_backend(cpu)._pool.pool is pool
        dist.all_reduce(torch.ones(2), group=half)
        dist.destroy_process_group(half)
    made, x = make_group(dist.PrefixStore("made", store), ranks - 1 - rank, ranks, timedelta(seconds=60)), torch.ones(2)
    made.broadcast([x.mul_(rank)], dist.BroadcastOptions()).wait()  # from its rank 0, which is the world's last
    made.shutdown()
    names = [str(segment) for segment in segments.find(pool.context.pool.name)]

    a, b = torch.full((64, 32), rank + 1.0), torch.eye(32)
    product = torch.from_numpy(communicator_of().all_gather_matmul(a.numpy(), b.numpy()))
    everyone = [torch.empty_like(a) for _ in range(ranks)]
    dist.all_gather(everyone, a)
    assert torch.equal(product, torch.cat(everyone))

    lent = torch.ones(3)  # NumPy's own view of a tensor would hold its storage at this size
    dist.all_reduce(lent)
    lent.untyped_storage().resize_(0)

    held = torch.ones(3)
    work = dist.all_reduce(held, async_op=True)
    try:
        held.untyped_storage().resize_(0)  # which the call reads and writes meanwhile
    except RuntimeError as error:
        resized = str(error)
    work.wait()

    def told(call: Any) -> str:
        try:
            call()
        except (ValueError, dist.DistBackendError) as error:
            return str(error)
        return ""

    wide, blocks = torch.ones(1).expand(3), [torch.zeros(1).expand(3) for _ in range(ranks)]  # one element, three times
    dist.all_reduce(wide)
    dist.all_gather(blocks, torch.full((3,), rank + 1.0))
    root = told(lambda: dist.broadcast(torch.ones(1), src=ranks))  # nothing is sent
    well = backend.get_error().name == "SUCCESS"

    f8, meta = torch.zeros(4, dtype=torch.float8_e4m3fn), torch.zeros(2, device="meta")
    found = {
        "f8": told(lambda: dist.all_reduce(f8)),
        "device": told(lambda: backend.allreduce([meta])),  # which torch from 2.14 on hands to no backend
        "shape": told(lambda: dist.all_gather_into_tensor(torch.zeros(3), torch.zeros(2))),
        "mismatch": told(lambda: dist.all_reduce(torch.zeros(10 + 10 * rank))),
        "after": told(lambda: dist.all_reduce(torch.zeros(10))),
        "names": names,
        "made": x.tolist(),
        "resized": resized,
        "expanded": [tensor.tolist() for tensor in (wide, *blocks)],
        "root": root * well,
        "error": backend.get_error().name,
    }
    dist.destroy_process_group()
    return found
