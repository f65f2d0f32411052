"""Where in the pool the operands of instructions lie, line by line."""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Operand, Plan, accesses

Line: TypeAlias = tuple[int, int]  # (card, number of lines from the start of the communicator's part of it)
FIRST_EPOCH = 1  # the epoch of a communicator's first call


def operand_lines(plan: Plan, epoch: int, operand: Operand, nbytes: int) -> Iterator[Line]:
    for extent in accesses.pool_extents(plan.frame, plan.layout, epoch, operand, nbytes):
        for line in range(extent.offset // LINE_BYTES, -(-(extent.offset + extent.nbytes) // LINE_BYTES)):
            yield extent.card, line


def instruction_lines(plan: Plan, epoch: int, instruction: Instruction) -> Iterator[Line]:
    for operand in accesses.in_regions(instruction.operands):
        yield from operand_lines(plan, epoch, operand, instruction.nbytes)


def epochs(plans: Sequence[Plan]) -> Iterator[tuple[Plan, int]]:
    """List each call with the epoch that it starts at; the first call starts at FIRST_EPOCH."""
    epoch = FIRST_EPOCH
    for plan in plans:
        yield plan, epoch
        epoch += plan.rounds


def data_lines(plans: Sequence[Plan]) -> tuple[Line, ...]:
    """List every line that the calls name, once, without doorbells' lines."""
    lines: dict[Line, None] = {}
    for plan, epoch in epochs(plans):
        for part in plan.parts:
            for stream in part.streams:
                for instruction in stream.instructions:
                    lines |= dict.fromkeys(instruction_lines(plan, epoch, instruction))
    return tuple(lines)
