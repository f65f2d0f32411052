"""A step with fully sharded parameters, as PyTorch's FSDP takes it (arXiv 2304.11277).

A unit is a block; embedding and head are another one, which stays gathered. Units are gathered in the order of their
use, the next one while one computes, and two are gathered at once at most; in the backward pass they are gathered once
more, and each unit's gradients are scattered when it is through. Gathering and scattering share a communicator, so that
they follow each other. Without overlap all of it takes its turn between computations.
"""

from studies.training.durations import Durations
from studies.training.timeline import COMPUTE, TimelineProgram

SENDING = "between"


def program(durations: Durations, microbatches: int) -> TimelineProgram:
    """Build the step's operations, in one lane, as all ranks do the same; each data rank takes ``microbatches``."""
    made = TimelineProgram()
    sending = SENDING if durations.parallelism.overlap else COMPUTE
    model = durations.model
    root = model.embedding_parameters
    last = model.blocks - 1
    for number in range(microbatches):
        rooted = made.add(f"gather embedding and head, {number}", 0, sending, durations.gather(0, root))
        used: list[int] = []
        for index in range(model.blocks):
            gathered = made.add(f"gather {index}, {number}", 0, sending, durations.gather(1), used[-2:-1])
            parts = durations.forward(1, head=index == last)
            used.append(made.add(f"forward {index}, {number}", 0, COMPUTE, parts, (rooted, gathered)))
        waiting = [made.add(f"gather {last} again, {number}", 0, sending, durations.gather(1), used[-1:])]
        done: list[int] = used[-1:]
        for index in reversed(range(model.blocks)):
            if index:
                waiting.append(
                    made.add(f"gather {index - 1} again, {number}", 0, sending, durations.gather(1), done[-2:-1])
                )
            parts = durations.backward(1, head=index == last)
            done.append(made.add(f"backward {index}, {number}", 0, COMPUTE, parts, (waiting.pop(0),)))
            scattered = made.add(f"scatter {index}, {number}", 0, sending, durations.scatter(1), done[-1:])
        scattered = made.add(f"scatter embedding and head, {number}", 0, sending, durations.scatter(0, root), done[-1:])
    made.add("update", 0, COMPUTE, durations.update(model.blocks, root), (scattered,))
    return made
