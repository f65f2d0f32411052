"""Data parallel training over the pool: every rank has the whole model, gradients are averaged.

torchrun --nproc-per-node 2 examples/train_ddp.py
"""

import sys

import torch
import torch.distributed as dist
from small_gpt import GPT, loss_of
from torch.nn.parallel import DistributedDataParallel


def main(steps: int) -> None:
    dist.init_process_group("cxl")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    for step in range(steps):
        loss = loss_of(model, numbers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {mean:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
