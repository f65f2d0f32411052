"""Operators: the kinds of mistake that mutation makes, one function each; faults/choices.py describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, NamedTuple

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DoorbellGroup, Instruction, Kind, Op, Plan, RankPart
from faults.choices import MUTATIONS
from faults.prove.rounds import rounds_of

WAITS = (Op.WAIT, Op.WAIT_DATA)
RINGS = (Op.SIGNAL, Op.SIGNAL_DATA)
LINES = (Op.FLUSH, Op.INVALIDATE)
FOLDS = (Op.REDUCE, Op.REDUCE_LOCAL)
SYNCHRONIZING = frozenset({*WAITS, *RINGS, *LINES, Op.FENCE, Op.WAIT_ALL, Op.RECORD, Op.AWAIT})
SOURCES = ("a", "b", "c")

Streams = Mapping[tuple[int, int], list[Instruction]]  # (rank, stream) -> its instructions


@dataclass(frozen=True)
class MutationSite:
    """An instruction, and all that its mutations need to know."""

    plan: Plan
    rank: int
    stream: int  # number of the rank's stream
    at: int  # number of the instruction in the stream

    @property
    def instructions(self) -> list[Instruction]:
        return self.plan.part(self.rank).streams[self.stream].instructions

    @property
    def instruction(self) -> Instruction:
        return self.instructions[self.at]

    def replaced(self, *instead: Instruction) -> Mutation:
        """Put ``instead`` in the place of the instruction; without any, the instruction is left out."""
        return self.stream_of([*self.instructions[: self.at], *instead, *self.instructions[self.at + 1 :]])

    def exchanged(self, first: int, second: int) -> Mutation:
        """Let two instructions of the stream, by their numbers, change places."""
        changed = list(self.instructions)
        changed[first], changed[second] = changed[second], changed[first]
        return self.stream_of(changed)

    def stream_of(self, instructions: list[Instruction]) -> Mutation:
        return Mutation({(self.rank, self.stream): instructions})


class Mutation(NamedTuple):
    streams: Streams  # the streams that change, as (rank, stream) -> instructions
    groups: tuple[DoorbellGroup, ...] = ()  # doorbell groups that the frame needs for them, after those that it has


Mutations = Iterator[tuple[str, Mutation]]  # kinds, and the mutations that they name


class MutationOperator(NamedTuple):
    name: str  # its name, with which the kind of each of its mutants begins
    what: str  # what it does, for people
    ops: frozenset[Op]  # the opcodes to which it is applied
    make: Callable[[MutationSite], Mutations]  # yields its mutations of an instruction


def _delete(place: MutationSite) -> Mutations:
    yield "delete", place.replaced()


def _duplicate(place: MutationSite) -> Mutations:
    yield "duplicate", place.replaced(place.instruction, place.instruction)


def _repeat(place: MutationSite) -> Mutations:
    yield "repeat", place.replaced(place.instruction, place.instruction)


def _earlier(place: MutationSite) -> Mutations:
    if place.at:
        yield "earlier", place.exchanged(place.at - 1, place.at)


def _later(place: MutationSite) -> Mutations:
    if place.at + 1 < len(place.instructions):
        yield "later", place.exchanged(place.at, place.at + 1)


def far_pairs(count: int) -> tuple[list[tuple[int, int]], int]:
    """Choose at most ``count`` pairs of instructions two or more apart, evenly among all, and count all of them."""
    pairs = [(first, second) for first, second in combinations(range(count), 2) if second - first > 1]
    return pairs[:: -(-len(pairs) // max(count, 1)) or 1], len(pairs)


def _far(place: MutationSite) -> Mutations:
    for first, second in far_pairs(len(place.instructions))[0]:
        if first == place.at:
            yield f"far={second}", place.exchanged(first, second)


def _older_epoch(place: MutationSite) -> Mutations:
    yield "value-1", place.replaced(place.instruction._replace(value=place.instruction.value - 1))


def _smaller_group(place: MutationSite) -> Mutations:
    """Two groups take the place of one: the members before the one that is left out, and those after it."""
    group = place.plan.frame.groups[place.instruction.arg]
    for member in range(group.count):
        rest = (
            DoorbellGroup(group.first, member, group.stride),
            DoorbellGroup(group.doorbells[member] + group.stride, group.count - member - 1, group.stride),
        )
        yield f"without={member}", _waits_instead(place, tuple(g for g in rest if g.count))


def _waits_instead(place: MutationSite, groups: tuple[DoorbellGroup, ...]) -> Mutation:
    first = len(place.plan.frame.groups)
    waits = [place.instruction._replace(arg=first + k) for k in range(len(groups))]
    return place.replaced(*waits)._replace(groups=groups)


def _fewer_lines(place: MutationSite) -> Mutations:
    i = place.instruction
    if i.nbytes > LINE_BYTES:
        yield "narrow", place.replaced(i._replace(nbytes=(i.nbytes - 1) // LINE_BYTES * LINE_BYTES))
        yield "narrow-first", place.replaced(i._replace(nbytes=i.nbytes - LINE_BYTES, a=i.a.at(LINE_BYTES)))


def _other_lines(place: MutationSite) -> Mutations:
    yield from _moved(place, "line", ("a",))


def _other_data(place: MutationSite) -> Mutations:
    yield from _moved(place, "read", SOURCES)


def _moved(place: MutationSite, name: str, fields: tuple[str, ...]) -> Mutations:
    """Move these operands, if they lie in the pool, a line further on or back in their region."""
    i = place.instruction
    for field in fields:
        operand = getattr(i, field)
        if operand.kind != Kind.REGION:
            continue
        suffix = f"={field}" if i.op in FOLDS else ""
        for sign, moved in (("+", operand.at(LINE_BYTES)), ("-", operand.at(-LINE_BYTES))):
            if 0 <= moved.offset <= place.plan.frame.regions[operand.id].nbytes - i.nbytes:
                elsewhere: dict[str, Any] = {field: moved}
                yield f"{name}{sign}1{suffix}", place.replaced(i._replace(**elsewhere))


def _other_doorbell(place: MutationSite) -> Mutations:
    i, layout = place.instruction, place.plan.layout
    owner = layout.owner(i.arg)
    for kind, doorbell in (("doorbell+1", i.arg + 1), ("doorbell-1", i.arg - 1)):
        if max(i.arg, doorbell) < layout.published_count and doorbell >= 0 and layout.owner(doorbell) == owner:
            yield kind, place.replaced(i._replace(arg=doorbell))


def _other_rank(place: MutationSite) -> Mutations:
    i, layout = place.instruction, place.plan.layout
    peer = (layout.owner(i.arg) + 1) % layout.ranks
    is_done = i.arg >= layout.published_count
    doorbell = layout.done(peer) if is_done else layout.published(peer, i.arg % layout.doorbells_per_rank)
    yield "rank+1", place.replaced(i._replace(arg=doorbell))


def _two_doorbells(place: MutationSite) -> Mutations:
    """Exchange two doorbells that a rank rings; this is made once for each pair, where the rank first rings the lower
    one."""
    plan, i = place.plan, place.instruction
    rung = [
        ((s, index), instruction.arg)
        for s, stream in enumerate(plan.part(place.rank).streams)
        for index, instruction in enumerate(stream.instructions)
        if instruction.op in RINGS and instruction.arg < plan.layout.published_count
    ]
    first = next((where for where, doorbell in rung if doorbell == i.arg), None)
    if first == (place.stream, place.at):
        for other in sorted({doorbell for _, doorbell in rung if doorbell > i.arg}):
            yield f"doorbells={other}", exchanged_everywhere(plan, {i.arg: other, other: i.arg})


def exchanged_everywhere(plan: Plan, names: Mapping[int, int]) -> Mutation:
    """Exchange doorbells in all streams that ring them or wait for them."""
    groups: list[DoorbellGroup] = []
    streams: dict[tuple[int, int], list[Instruction]] = {}
    for part in plan.parts:
        for s, stream in enumerate(part.streams):
            changed: list[Instruction] = []
            for i in stream.instructions:
                if i.op in (*WAITS, *RINGS):
                    changed.append(i._replace(arg=names.get(i.arg, i.arg)))
                elif i.op == Op.WAIT_ALL and (given := plan.frame.groups[i.arg].doorbells):
                    taken = {names.get(doorbell, doorbell) for doorbell in given}
                    if taken == set(given):
                        changed.append(i)
                        continue
                    for doorbell in sorted(taken):
                        changed.append(i._replace(arg=len(plan.frame.groups) + len(groups)))
                        groups.append(DoorbellGroup(doorbell, 1, 1))
                else:
                    changed.append(i)
            if changed != stream.instructions:
                streams[part.rank, s] = changed
    return Mutation(streams, tuple(groups))


def _other_sources(place: MutationSite) -> Mutations:
    i = place.instruction
    there = [field for field in SOURCES if getattr(i, field).kind]
    for one, other in combinations(there, 2):
        exchanged: dict[str, Any] = {one: getattr(i, other), other: getattr(i, one)}
        yield f"sources={one}{other}", place.replaced(i._replace(**exchanged))
    onward = next((index for index, j in _after(place) if j.op == i.op and j.a == i.dst), None)
    if onward is not None:  # a fold of more sources than an instruction has
        j, last = place.instructions[onward], there[-1]
        changed = list(place.instructions)
        taken: dict[str, Any] = {last: j.b}
        changed[place.at], changed[onward] = i._replace(**taken), j._replace(b=getattr(i, last))
        yield "sources=onward", place.stream_of(changed)


def _after(place: MutationSite) -> Iterator[tuple[int, Instruction]]:
    yield from list(enumerate(place.instructions))[place.at + 1 :]


def _without_round(place: MutationSite) -> Mutations:
    """Leave out a rank's part of a round; this is made once for each round, where the rank's first stream with a part
    in it begins it."""
    streams = place.plan.part(place.rank).streams
    rounds = _rounds(place.plan, place.rank)
    number = rounds[place.stream][place.at]
    if number in rounds[place.stream][: place.at] or any(number in numbers for numbers in rounds[: place.stream]):
        return
    left = {
        (place.rank, s): [
            i for i, round_number in zip(stream.instructions, rounds[s], strict=True) if round_number != number
        ]
        for s, stream in enumerate(streams)
        if number in rounds[s]
    }
    yield f"round={number}", Mutation(left)


_KNOWN: dict[str, tuple[RankPart, list[list[int]]]] = {}  # the part that was asked about last


def _rounds(plan: Plan, rank: int) -> list[list[int]]:
    """Find the round of every instruction in every stream of a rank. The last answer is kept: instructions are asked
    about one after another."""
    part = plan.part(rank)
    if "last" not in _KNOWN or _KNOWN["last"][0] is not part:
        found = [rounds_of(stream.records, plan.layout.slots).clip(0).tolist() for stream in part.streams]
        _KNOWN["last"] = (part, found)
    return _KNOWN["last"][1]


_ALL, _LINES, _FOLDS = frozenset(Op), frozenset(LINES), frozenset(FOLDS)
_READS = frozenset({Op.READ, Op.REDUCE})
_BELLS, _WAITS, _RINGS = frozenset({*WAITS, *RINGS}), frozenset(WAITS), frozenset(RINGS)

_APPLIED: dict[str, tuple[frozenset[Op], Callable[[MutationSite], Mutations]]] = {
    "delete": (SYNCHRONIZING, _delete),
    "duplicate": (SYNCHRONIZING, _duplicate),
    "earlier": (SYNCHRONIZING, _earlier),
    "later": (SYNCHRONIZING, _later),
    "far": (_ALL, _far),
    "value": (_WAITS | {Op.WAIT_ALL}, _older_epoch),
    "without": (frozenset({Op.WAIT_ALL}), _smaller_group),
    "narrow": (_LINES, _fewer_lines),
    "line": (_LINES, _other_lines),
    "read": (_READS, _other_data),
    "doorbell": (_BELLS, _other_doorbell),
    "rank": (_WAITS, _other_rank),
    "doorbells": (_RINGS, _two_doorbells),
    "sources": (_FOLDS, _other_sources),
    "repeat": (_FOLDS, _repeat),
    "round": (_ALL, _without_round),
}
OPERATORS = tuple(MutationOperator(name, what, *_APPLIED[name]) for name, what in MUTATIONS.items())


FAR = "far"  # the only operator that makes just some of its mutants


def operator_of(kind: str) -> str:
    return next((o.name for o in _LONGEST_FIRST if kind.startswith(o.name)), "")


_LONGEST_FIRST = sorted(OPERATORS, key=lambda operator: -len(operator.name))


def mutations(place: MutationSite) -> Mutations:
    for operator in OPERATORS:
        if place.instruction.op in operator.ops:
            yield from operator.make(place)
