"""Plans for people: an instruction as a line of text, and what a rank's part has of what.

``r1+64K@2`` is region 1 from byte 64 K on in round 2 (round 0 is not written), ``h1+64K`` one in the heap, ``e+2`` the
epoch of round 2; ``in``, ``out`` and other names are the rank's buffers.
"""

from collections import Counter
from typing import NamedTuple

from cxlemu.choices import DTYPE_NAMES
from cxlemu.plan.instructions import SIGNATURES, TELLING, Flag, Instruction, Kind, Op, Operand
from cxlemu.plan.plan import Plan, RankPart

_SHORT = {"input": "in", "output": "out"}


def amount(nbytes: int) -> str:
    """Write a number of bytes exactly and briefly: ``64K``, ``1M``, ``1000``."""
    for power, suffix in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{suffix}"
    return str(nbytes)


# --- one instruction -----------------------------------------------------------------------------------


def text(i: Instruction, plan: Plan, rank: int = 0) -> str:
    """Write an instruction, even one with wrong ids, as a line: ``REDUCE out+0 <- in+0 sum r1+0 64K``."""
    sources = [_place(o, plan, rank) for o in (i.a, i.b, i.c) if o.kind]
    targets = [_place(o, plan, rank) for o in (i.dst, i.dst2) if o.kind]
    words = [i.op.name]
    match SIGNATURES[i.op].arg:
        case "doorbell":
            words.append(plan.layout.doorbell_name(i.arg))
        case "group":
            words.append(_group(i.arg, plan))
        case "kernel":
            words.append(_kernel(i.arg, plan))
        case "event":
            words.append(f"event {i.arg}")
    if i.op in (Op.WAIT, Op.WAIT_ALL, Op.WAIT_DATA):
        words.append(f">= e{i.value:+}")
    elif i.op in (Op.SIGNAL, Op.SIGNAL_DATA):
        words.append(f"= e{i.value:+}")
    if targets:
        words += ["->"] if i.op == Op.WAIT_DATA else []
        words.append(", ".join(targets))
    if sources:
        operation = f" {i.redop.name.lower()} " if i.redop else ", "
        words += ["<-"] if i.op not in (Op.FLUSH, Op.INVALIDATE) else []
        words.append(operation.join(sources))
    if i.flags & Flag.DIVIDE:
        words.append(f"/ {i.arg}")
    if i.op in TELLING and i.flags & Flag.PLACES:
        words.append("places")
    if SIGNATURES[i.op].typed and DTYPE_NAMES[i.dtype : i.dtype + 1] != (plan.call.dtype,):
        words.append(f"as {', '.join(DTYPE_NAMES[i.dtype : i.dtype + 1]) or f'dtype {i.dtype}'}")
    if SIGNATURES[i.op].sized:
        words.append(amount(i.nbytes))
    return " ".join(words)


def _place(operand: Operand, plan: Plan, rank: int) -> str:
    if operand.kind == Kind.REGION:
        name = region_name(operand.id, plan)
        return f"{name}+{amount(operand.offset)}" + (f"@{operand.seq}" if operand.seq else "")
    if operand.kind != Kind.BUFFER:
        return f"kind {operand.kind}"
    buffers = plan.part(rank).buffers
    name = buffers[operand.id].name if operand.id < len(buffers) else f"buffer{operand.id}"
    return f"{_SHORT.get(name, name)}+{amount(operand.offset)}"


def region_name(number: int, plan: Plan) -> str:
    regions = plan.frame.regions
    return f"h{number}" if number < len(regions) and regions[number].heap else f"r{number}"


def _group(number: int, plan: Plan) -> str:
    layout, groups = plan.layout, plan.frame.groups
    if not 0 <= number < len(groups):
        return f"group {number}"
    first, count, stride = groups[number].first, groups[number].count, groups[number].stride
    if (first, count, stride) == (layout.done(0), layout.ranks, 1):
        return "done"
    if first < layout.doorbells_per_rank == stride and count == layout.ranks:
        return f"published[*][{first}]"
    return f"{layout.doorbell_name(first)} and {count - 1} more"


def _kernel(number: int, plan: Plan) -> str:
    if not 0 <= number < len(plan.frame.kernels):
        return f"kernel {number}"
    return str(plan.frame.kernels[number])


# --- how much ------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """How much a rank does. Bytes are those to and from the pool, payloads in doorbell lines among them."""

    instructions: Counter[Op]
    written_bytes: int
    read_bytes: int

    @property
    def rung(self) -> int:
        """How many doorbells the rank rings."""
        return self.instructions[Op.SIGNAL] + self.instructions[Op.SIGNAL_DATA]


def counts(part: RankPart) -> Counts:
    """Count a rank's instructions and the bytes that they move to and from the pool."""
    ops: Counter[Op] = Counter()
    written = read = 0
    for i in (i for stream in part.streams for i in stream.instructions):
        ops[i.op] += 1
        targets, sources = ([o.kind for o in some].count(Kind.REGION) for some in (i[7:9], i[9:]))
        if i.op in (Op.FLUSH, Op.INVALIDATE):
            continue
        written += i.nbytes * (targets + (i.op == Op.SIGNAL_DATA))
        read += i.nbytes * (sources + (i.op == Op.WAIT_DATA))
    return Counts(ops, written, read)
