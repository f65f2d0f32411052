"""Small plans written by hand, an instruction a line, each right or with one mistake: the prover's litmus tests.

A rank is a list of instructions, or several lists for several streams. Its slot is one region of eight lines on a card;
doorbell k of a rank is rung with round 0, and with round 1 in a ring of one slot. Group 0 is everyone's done.
"""

from collections.abc import Sequence

from cxlemu.plan import Buffer, Call, DoorbellGroup, Frame, Instruction, Layout, Op, Plan, RankPart, Region
from tests.helpers.by_hand import local, pool, streams

DOORBELLS = 4
INPUT, OUTPUT = 0, 1

Program = Sequence[Instruction] | Sequence[Sequence[Instruction]]


def store(at: int, nbytes: int) -> Instruction:
    return Instruction(Op.WRITE, nbytes=nbytes, dst=pool(at), a=local(INPUT))


def store_nt(at: int, nbytes: int) -> Instruction:
    return Instruction(Op.WRITE_NT, nbytes=nbytes, dst=pool(at), a=local(INPUT))


def load(at: int, nbytes: int) -> Instruction:
    return Instruction(Op.READ, nbytes=nbytes, dst=local(OUTPUT), a=pool(at))


def flush(at: int, nbytes: int) -> Instruction:
    return Instruction(Op.FLUSH, nbytes=nbytes, a=pool(at))


def drop(at: int, nbytes: int) -> Instruction:
    return Instruction(Op.INVALIDATE, nbytes=nbytes, a=pool(at))


def ring(rank: int, index: int = 0, value: int = 0) -> Instruction:
    return Instruction(Op.SIGNAL, arg=rank * DOORBELLS + index, value=value)


def wait(rank: int, index: int = 0, value: int = 0) -> Instruction:
    return Instruction(Op.WAIT, arg=rank * DOORBELLS + index, value=value)


def ring_data(rank: int, index: int = 0, value: int = 0) -> Instruction:
    return Instruction(Op.SIGNAL_DATA, arg=rank * DOORBELLS + index, value=value, nbytes=8, a=local(INPUT))


def wait_data(rank: int, index: int = 0, value: int = 0) -> Instruction:
    return Instruction(Op.WAIT_DATA, arg=rank * DOORBELLS + index, value=value, nbytes=8, dst=local(OUTPUT))


def copy(to: int, source: int, nbytes: int = 8) -> Instruction:
    return Instruction(Op.COPY, nbytes=nbytes, dst=local(to), a=local(source))


def record(event: int) -> Instruction:
    return Instruction(Op.RECORD, arg=event)


def await_(event: int) -> Instruction:
    return Instruction(Op.AWAIT, arg=event)


def wait_all(group: int, value: int) -> Instruction:
    return Instruction(Op.WAIT_ALL, arg=group, value=value)


def done(rank: int, ranks: int, value: int = 0) -> Instruction:
    return Instruction(Op.SIGNAL, arg=ranks * DOORBELLS + rank, value=value)


def plan(*programs: Program, rounds: int = 1, nbytes: int = 0) -> Plan:
    """A call that promises ``nbytes`` of an all-gather: nothing, mostly."""
    ranks = len(programs)
    layout = Layout(ranks, 1, 1, 512, DOORBELLS, 64)
    frame = Frame(rounds, (Region(0, 1, 64, 0, 0, 512),), (DoorbellGroup(ranks * DOORBELLS, ranks, 1),))

    def build(rank: int) -> tuple[Frame, RankPart]:
        program = programs[rank]
        several = [program] if not program or isinstance(program[0], Instruction) else program
        buffers = (Buffer("input", 512), Buffer("output", 512))
        return frame, RankPart(rank, buffers, streams(several), events=4)  # type: ignore[arg-type]

    return Plan(Call("all_gather", "hand", ranks, nbytes), layout, build)
