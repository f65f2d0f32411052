"""Two ranks that send to each other in several ways, for cxlemu torchrun --compare."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
source = None if torch.__version__ < "2.14" else 0  # where a receive from any source raises when it has the message
for step in range(6):
    x = torch.arange(5000.0) + 100 * step + 7 * rank
    if rank == 0:
        dist.send(x, 1)
        posted = [dist.isend(x[:n], 1, tag=n) for n in (3, 40, 0)]
        posted.append(dist.irecv(out := torch.zeros(5000), 1))
    else:
        got = torch.zeros(5000)
        dist.recv(got, source)
        posted = [dist.irecv(torch.zeros(n), 0, tag=n) for n in (40, 3, 0)]
        posted.append(dist.isend(x, 0))
    for work in posted:
        work.wait()
    if rank == 0:
        print("step", step, out[:2].tolist(), flush=True)
dist.destroy_process_group()
