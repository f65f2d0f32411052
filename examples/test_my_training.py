"""A test of a training script of your own: pytest examples/test_my_training.py"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train(steps):
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    numbers = torch.Generator().manual_seed(dist.get_rank())
    losses = []
    for _ in range(steps):
        x = torch.randn(16, 8, generator=numbers)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_loss_falls_and_every_call_is_right(torch_world):
    for losses in torch_world(ranks=2, compare=True, digests=1).run(train, 20).results:
        assert losses[-1] < losses[0]


def test_a_rank_that_dies_is_named(torch_world):
    kill = {"kind": "kill", "rank": 1, "group": "0", "when": {"call": 5, "instruction": 0}}
    run = torch_world(ranks=2, faults=[kill]).run(train, 20)
    assert run.results == [None, None] and "rank 1 died" in run.output
