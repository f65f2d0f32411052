"""READs whose result is never used: the rules hold for them as for any other READ, and the message says why."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from cxlemu.plan import Instruction, Kind, Op, Operand, Plan, RankPart
from cxlemu.plan.accesses import loaded, stored

WHY = (
    "; nothing uses these bytes before they are overwritten, but what is loaded too early stays in the cache, where a "
    "later READ may hit it: every READ must see the right bytes, so leave this one out"
)


class _Bytes(NamedTuple):
    """Bytes ``begin`` to ``end`` of a buffer that lies in no other buffer."""

    buffer: int
    begin: int
    end: int


def why(plan: Plan, rank: int, stream: int, offset: int) -> str:
    """Explain a finding at a READ whose result is never used; "" for any other instruction."""
    part = plan.part(rank)
    if not 0 <= stream < len(part.streams) or not 0 <= offset < len(part.streams[stream].records):
        return ""
    return WHY if _is_dead(part, stream, offset) else ""


def _is_dead(part: RankPart, stream: int, offset: int) -> bool:
    """Whether the result of a READ is never used.

    Its own stream overwrites all that it stores before any stream may load it, or it stores to scratch memory that no
    instruction loads.
    """
    instructions = part.streams[stream].instructions
    here, after = instructions[offset], instructions[offset + 1 :]
    if here.op != Op.READ or any(operand.kind != Kind.BUFFER for operand in stored(here)):
        return False
    left = made = list(_bytes(part, stored(here), here.nbytes))
    others = (i for number, its in enumerate(part.streams) if number != stream for i in its.instructions)
    if any(_uses(part, i, made) for i in others):
        return False
    for i in after:
        if _uses(part, i, left):
            return False
        for gone in _bytes(part, (o for o in stored(i) if o.kind == Kind.BUFFER), i.nbytes):
            left = [rest for piece in left for rest in _without(piece, gone)]
        if not left:
            return True
    return all(_is_scratch(part, piece) for piece in left)


def _uses(part: RankPart, i: Instruction, pieces: Sequence[_Bytes]) -> bool:
    if i.op == Op.COMPUTE:  # its kernel says what it loads: anything
        return True
    pieces_used = _bytes(part, (operand for operand in loaded(i) if operand.kind == Kind.BUFFER), i.nbytes)
    return any(_overlap(one, piece) for one in pieces_used for piece in pieces)


def _bytes(part: RankPart, operands: Iterable[Operand], nbytes: int) -> Iterable[_Bytes]:
    names = [buffer.name for buffer in part.buffers]
    for operand in operands:
        buffer, index, offset = part.buffers[operand.id], operand.id, operand.offset
        if buffer.inside:
            index, offset = names.index(buffer.inside), offset + buffer.at
        yield _Bytes(index, offset, offset + nbytes)


def _overlap(one: _Bytes, other: _Bytes) -> bool:
    return one.buffer == other.buffer and one.begin < other.end and other.begin < one.end


def _without(piece: _Bytes, gone: _Bytes) -> list[_Bytes]:
    if not _overlap(piece, gone):
        return [piece]
    ends = (piece._replace(end=gone.begin), piece._replace(begin=gone.end))
    return [rest for rest in ends if rest.begin < rest.end]


def _is_scratch(part: RankPart, piece: _Bytes) -> bool:
    return part.buffers[piece.buffer].name == "scratch"
