"""Plans written by hand, an instruction at a time."""

from collections.abc import Sequence

from cxlemu.plan import Instruction, Kind, Op, Operand, Stream, encode

FENCE = Instruction(Op.FENCE)


def pool(offset: int = 0, seq: int = 0, *, region: int = 0) -> Operand:
    return Operand(Kind.REGION, region, seq, offset)


def local(buffer: int = 0, offset: int = 0) -> Operand:
    return Operand(Kind.BUFFER, buffer, 0, offset)


def signal(doorbell: int, epoch: int = 0) -> Instruction:
    return Instruction(Op.SIGNAL, arg=doorbell, value=epoch)


def wait(doorbell: int, epoch: int = 0) -> Instruction:
    return Instruction(Op.WAIT, arg=doorbell, value=epoch)


def streams(programs: Sequence[Sequence[Instruction]]) -> tuple[Stream, ...]:
    return tuple(Stream(f"s{k}", encode(list(program))) for k, program in enumerate(programs))
