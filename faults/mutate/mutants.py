"""Mutants: one synchronizing instruction of one rank is left out, weakened, moved, aimed elsewhere or repeated.

A mutant is data, four words that a token can hold, and `apply` makes it a plan. Kinds:

    delete             the instruction is left out
    duplicate          it is executed twice
    earlier, later     it changes places with the instruction before it, or after it
    value-1            WAITs: an epoch older than what is wanted suffices
    without=K          WAIT_ALL: not for the group's member K
    narrow             FLUSH, INVALIDATE: its last line is left out
    line+1, line-1     FLUSH, INVALIDATE: the lines beside those that are meant
    doorbell+1, -1     a doorbell of the same rank beside the one that is meant
    rank+1             WAITs: the same doorbell of the next rank

Every call of the plan has the mistake. A mutant that another one equals, record for record, is not made.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Frame, Group, Instruction, Op, Plan, RankPart, encode

WAITS = (Op.WAIT, Op.WAIT_DATA)
RINGS = (Op.SIGNAL, Op.SIGNAL_DATA)
LINES = (Op.FLUSH, Op.INVALIDATE)
SYNCHRONIZING = frozenset({*WAITS, *RINGS, *LINES, Op.FENCE, Op.WAIT_ALL, Op.RECORD, Op.AWAIT})


class Mutant(NamedTuple):
    """As text, ``RANK.STREAM.AT:KIND``; ``at`` counts the stream's instructions before the mutation."""

    rank: int
    stream: int
    at: int
    kind: str

    def __str__(self) -> str:
        return f"{self.rank}.{self.stream}.{self.at}:{self.kind}"

    @classmethod
    def parse(cls, text: str) -> Mutant:
        """Raises ArgumentError for what is no mutant; whether a plan has it, `apply` says."""
        if not (match := re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9}):([a-z0-9=+-]{1,32})", text, re.ASCII)):
            raise ArgumentError(f"a mutant is written RANK.STREAM.AT:KIND, such as 1.0.3:delete, not {text[:80]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]), match[4])


class Place(NamedTuple):
    """An instruction, and all that its mutations need to know."""

    plan: Plan
    instructions: list[Instruction]
    at: int

    @property
    def instruction(self) -> Instruction:
        return self.instructions[self.at]

    def replaced(self, *instructions: Instruction) -> list[Instruction]:
        return [*self.instructions[: self.at], *instructions, *self.instructions[self.at + 1 :]]


class Mutation(NamedTuple):
    """The stream's instructions, and the groups that have to be there for them."""

    instructions: list[Instruction]
    groups: tuple[Group, ...] = ()


def mutants(plan: Plan) -> Iterator[Mutant]:
    """Every mutant of a plan, no two of them equal."""
    for part in plan.parts:
        seen = {_content(plan.frame, part)}
        for s, stream in enumerate(part.streams):
            for at, instruction in enumerate(stream.instructions):
                if instruction.op in SYNCHRONIZING:
                    for kind, mutation in _mutations(Place(plan, stream.instructions, at)):
                        content = _content(*_mutated(plan, part, s, mutation))
                        if content not in seen:
                            seen.add(content)
                            yield Mutant(part.rank, s, at, kind)


def apply(plan: Plan, mutant: Mutant) -> Plan:
    """The plan with the mistake. Raises ArgumentError when it has no such mutant."""
    streams = plan.part(mutant.rank).streams if mutant.rank < plan.ranks else ()
    if mutant.stream < len(streams) and mutant.at < len(streams[mutant.stream].records):
        place = Place(plan, streams[mutant.stream].instructions, mutant.at)
        for kind, mutation in _mutations(place):
            if kind == mutant.kind and place.instruction.op in SYNCHRONIZING:
                return _plan(plan, *_mutated(plan, plan.part(mutant.rank), mutant.stream, mutation))
    raise ArgumentError(f"[{plan.call}] has no mutant {mutant}")


def _mutated(plan: Plan, part: RankPart, stream: int, mutation: Mutation) -> tuple[Frame, RankPart]:
    streams = list(part.streams)
    streams[stream] = replace(streams[stream], records=encode(mutation.instructions))
    frame = plan.frame
    return replace(frame, groups=(*frame.groups, *mutation.groups)), replace(part, streams=tuple(streams))


def _plan(plan: Plan, frame: Frame, part: RankPart) -> Plan:
    return Plan(plan.call, plan.layout, lambda rank: (frame, part if rank == part.rank else plan.part(rank)))


def _content(frame: Frame, part: RankPart) -> object:
    return frame.groups, tuple(stream.records.tobytes() for stream in part.streams)


# --- kinds ---------------------------------------------------------------------------------------------------


def _mutations(place: Place) -> Iterator[tuple[str, Mutation]]:
    instruction, at, all_of_them = place.instruction, place.at, place.instructions
    yield "delete", Mutation(place.replaced())
    yield "duplicate", Mutation(place.replaced(instruction, instruction))
    for kind, first in (("earlier", at - 1), ("later", at)):
        if 0 <= first < len(all_of_them) - 1:
            swapped = [*all_of_them[:first], all_of_them[first + 1], all_of_them[first], *all_of_them[first + 2 :]]
            yield kind, Mutation(swapped)
    for ops, alter in _ALTERATIONS:
        if instruction.op in ops:
            yield from alter(place)


def _older_epoch(place: Place) -> Iterator[tuple[str, Mutation]]:
    yield "value-1", Mutation(place.replaced(place.instruction._replace(value=place.instruction.value - 1)))


def _smaller_group(place: Place) -> Iterator[tuple[str, Mutation]]:
    """Two groups take the place of one: those before the member that is left out, and those after it."""
    instruction, groups = place.instruction, place.plan.frame.groups
    group = groups[instruction.arg]
    for member in range(group.count):
        rest = [
            Group(group.first, member, group.stride),
            Group(group.doorbells[member] + group.stride, group.count - member - 1, group.stride),
        ]
        new = tuple(g for g in rest if g.count)
        waits = [instruction._replace(arg=len(groups) + k) for k in range(len(new))]
        yield f"without={member}", Mutation(place.replaced(*waits), new)


def _other_lines(place: Place) -> Iterator[tuple[str, Mutation]]:
    i = place.instruction
    region_bytes = place.plan.frame.regions[i.a.id].nbytes
    if i.nbytes > LINE_BYTES:
        yield "narrow", Mutation(place.replaced(i._replace(nbytes=(i.nbytes - 1) // LINE_BYTES * LINE_BYTES)))
    for kind, offset in (("line+1", i.a.offset + LINE_BYTES), ("line-1", i.a.offset - LINE_BYTES)):
        if 0 <= offset <= region_bytes - i.nbytes:
            yield kind, Mutation(place.replaced(i._replace(a=i.a._replace(offset=offset))))


def _other_doorbell(place: Place) -> Iterator[tuple[str, Mutation]]:
    i, layout = place.instruction, place.plan.layout
    owner = layout.owner(i.arg)
    for kind, doorbell in (("doorbell+1", i.arg + 1), ("doorbell-1", i.arg - 1)):
        if max(i.arg, doorbell) < layout.published_count and doorbell >= 0 and layout.owner(doorbell) == owner:
            yield kind, Mutation(place.replaced(i._replace(arg=doorbell)))


def _other_rank(place: Place) -> Iterator[tuple[str, Mutation]]:
    i, layout = place.instruction, place.plan.layout
    peer = (layout.owner(i.arg) + 1) % layout.ranks
    is_done = i.arg >= layout.published_count
    doorbell = layout.done(peer) if is_done else layout.published(peer, i.arg % layout.doorbells_per_rank)
    yield "rank+1", Mutation(place.replaced(i._replace(arg=doorbell)))


_ALTERATIONS: tuple[tuple[tuple[Op, ...], Callable[[Place], Iterator[tuple[str, Mutation]]]], ...] = (
    ((*WAITS, Op.WAIT_ALL), _older_epoch),
    ((Op.WAIT_ALL,), _smaller_group),
    (LINES, _other_lines),
    ((*WAITS, *RINGS), _other_doorbell),
    (WAITS, _other_rank),
)
