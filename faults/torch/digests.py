"""Replicas of a model hold the same bits: looked at every few steps of the optimizer."""

from __future__ import annotations

import hashlib
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook

from cxlemu.errors import ContractError
from faults.torch.compare import GlooShadow

if TYPE_CHECKING:
    from faults.torch.harness import TrainingHarness


def watch_replicas(harness: TrainingHarness, every: int) -> None:
    """Compare the parameters of every DistributedDataParallel, over Gloo, after ``every`` steps of an optimizer."""
    replicas: weakref.WeakSet[Any] = weakref.WeakSet()
    paths: dict[str, GlooShadow] = {}
    steps = 0
    begin = DistributedDataParallel.__init__

    def remembered(self: Any, *given: Any, **named: Any) -> None:
        begin(self, *given, **named)
        replicas.add(self)

    def after_step(optimizer: Any, given: Any, named: Any) -> None:
        nonlocal steps
        steps += 1
        if steps % every:
            return
        for model in replicas:
            _compare(harness, model, steps, paths)

    DistributedDataParallel.__init__ = remembered
    register_optimizer_step_post_hook(after_step)


def _compare(harness: TrainingHarness, model: Any, step: int, paths: dict[str, GlooShadow]) -> None:
    group = model.process_group
    name = str(group.group_name)
    if name not in paths:
        store = dist.PrefixStore(f"digests/{name}/", dist.distributed_c10d._get_default_store())
        paths[name] = GlooShadow(store, dist.get_rank(group), dist.get_world_size(group), partial(dist.barrier, group))
    named = list(model.module.named_parameters())
    mine = np.frombuffer(b"".join(_digest(parameter) for _, parameter in named), np.uint64)
    others = paths[name].gather(mine)
    if dist.get_rank(group) == 0:
        harness.tell("digests", step=step)
    for rank, theirs in enumerate(others):
        if theirs.size != others[0].size:
            raise ContractError(f"step {step}: rank {rank} has {theirs.size} parameters, rank 0 {others[0].size}")
        differ = np.flatnonzero(theirs != others[0])
        if differ.size:
            sentence = (
                f"after step {step} replicas differ: parameter {named[int(differ[0])][0]} of rank {rank} of group "
                f"{name} is not rank 0's ({differ.size} of {len(named)} parameters differ)"
            )
            if dist.get_rank(group) == rank:
                harness.tell("replicas", sentence=sentence)
            raise ContractError(sentence)


def _digest(parameter: Any) -> bytes:
    raw = parameter.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return hashlib.blake2b(raw.tobytes(), digest_size=8).digest()
