"""Mutants: plans with one mistake each. operators.py makes the mistakes.

A mutant is data, four words that a token can hold, and `apply` makes it a plan. Every call of the plan has the mistake.
A mutant that another one equals, record for record, is not made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from cxlemu.errors import ArgumentError
from cxlemu.plan import Frame, Plan, RankPart, encode
from faults.mutate.operators import Mutation, MutationSite, far_pairs, mutations, operator_of


class Mutant(NamedTuple):
    """One mistake in a plan; as text, ``RANK.STREAM.AT:KIND``."""

    rank: int
    stream: int  # number of the rank's stream
    at: int  # number of the instruction in the stream, before the mutation
    kind: str  # the mistake: the name of an operator, and what tells its mutants apart

    def __str__(self) -> str:
        return f"{self.rank}.{self.stream}.{self.at}:{self.kind}"

    @property
    def operator(self) -> str:
        return operator_of(self.kind)

    @classmethod
    def parse(cls, text: str) -> Mutant:
        if not (match := re.fullmatch(r"(\d{1,9})\.(\d{1,9})\.(\d{1,9}):([a-z0-9=+-]{1,32})", text, re.ASCII)):
            raise ArgumentError(f"a mutant is written RANK.STREAM.AT:KIND, such as 1.0.3:delete, not {text[:80]!r}")
        return cls(int(match[1]), int(match[2]), int(match[3]), match[4])


def mutants(plan: Plan) -> Iterator[Mutant]:
    """Yield every mutant of a plan; no two of them are equal."""
    seen: set[object] = {_content(plan, Mutation({}))}
    for part in plan.parts:
        for s, stream in enumerate(part.streams):
            for index in range(len(stream.instructions)):
                for kind, mutation in mutations(MutationSite(plan, part.rank, s, index)):
                    content = _content(plan, mutation)
                    if content not in seen:
                        seen.add(content)
                        yield Mutant(part.rank, s, index, kind)


def pairs_apart(plan: Plan) -> int:
    """Count the pairs of instructions from which the operator ``far`` takes those that it exchanges."""
    return sum(far_pairs(len(stream.records))[1] for part in plan.parts for stream in part.streams)


def apply(plan: Plan, mutant: Mutant) -> Plan:
    streams = plan.part(mutant.rank).streams if mutant.rank < plan.ranks else ()
    if mutant.stream < len(streams) and mutant.at < len(streams[mutant.stream].records):
        for kind, mutation in mutations(MutationSite(plan, mutant.rank, mutant.stream, mutant.at)):
            if kind == mutant.kind:
                return _plan(plan, mutation)
    there = next(mutants(plan), None)
    more = "it has none" if there is None else f"one that it has is {there}"
    raise ArgumentError(f"[{plan.call}] has no mutant {mutant}: {more}")


def _plan(plan: Plan, mutation: Mutation) -> Plan:
    frame = replace(plan.frame, groups=(*plan.frame.groups, *mutation.groups))
    ranks = {rank for rank, _ in mutation.streams}

    def build(rank: int) -> tuple[Frame, RankPart]:
        part = plan.part(rank)
        if rank not in ranks:
            return frame, part
        streams = list(part.streams)
        for (whose, s), instructions in mutation.streams.items():
            if whose == rank:
                streams[s] = replace(streams[s], records=encode(instructions))
        return frame, replace(part, streams=tuple(streams))

    return Plan(plan.call, plan.layout, build)


def _content(plan: Plan, mutation: Mutation) -> object:
    """Describe what a mutation changes: equal for equal mutants, and empty for a mutation that changes nothing."""
    changed = {
        (rank, s): instructions
        for (rank, s), instructions in mutation.streams.items()
        if instructions != plan.part(rank).streams[s].instructions
    }
    return mutation.groups, tuple(sorted((place, encode(each).tobytes()) for place, each in changed.items()))
