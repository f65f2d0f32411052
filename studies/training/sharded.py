"""A step with fully sharded parameters, as PyTorch's FSDP takes it (arXiv 2304.11277).

A unit is a block; embedding and head are another one, which stays gathered. Units are gathered in the order of their
use, the next one while one computes, and two are gathered at once at most; in the backward pass they are gathered once
more, and each unit's gradients are scattered when it is through. Gathering and scattering share a communicator, so that
they follow each other. Without overlap all of it takes its turn between computations.
"""

from __future__ import annotations

from studies.training.durations import Durations
from studies.training.timeline import COMPUTE, TimelineProgram

SENDING = "between"


def program(its: Durations, microbatches: int) -> TimelineProgram:
    """Build the step's operations, in one lane, as all ranks do the same; each data rank takes ``microbatches``."""
    made = TimelineProgram()
    sending = SENDING if its.parallelism.overlap else COMPUTE
    model = its.model
    root = model.embedding_parameters
    last = model.blocks - 1
    for number in range(microbatches):
        rooted = made.add(f"gather embedding and head, {number}", 0, sending, its.gather(0, root))
        used: list[int] = []
        for at in range(model.blocks):
            gathered = made.add(f"gather {at}, {number}", 0, sending, its.gather(1), used[-2:-1])
            parts = its.forward(1, head=at == last)
            used.append(made.add(f"forward {at}, {number}", 0, COMPUTE, parts, (rooted, gathered)))
        waiting = [made.add(f"gather {last} again, {number}", 0, sending, its.gather(1), used[-1:])]
        done: list[int] = used[-1:]
        for at in reversed(range(model.blocks)):
            if at:
                waiting.append(made.add(f"gather {at - 1} again, {number}", 0, sending, its.gather(1), done[-2:-1]))
            parts = its.backward(1, head=at == last)
            done.append(made.add(f"backward {at}, {number}", 0, COMPUTE, parts, (waiting.pop(0),)))
            scattered = made.add(f"scatter {at}, {number}", 0, sending, its.scatter(1), done[-1:])
        scattered = made.add(f"scatter embedding and head, {number}", 0, sending, its.scatter(0, root), done[-1:])
    made.add("update", 0, COMPUTE, its.update(model.blocks, root), (scattered,))
    return made
