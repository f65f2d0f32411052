"""A call whose result is wrong: which one, on which rank, from which element on, and which instruction made it so."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from collectives.communicator.arrays import Array
from collectives.communicator.calls.planner import CallArguments
from cxlemu.errors import CxlemuError
from cxlemu.plan import Kind, Op, Plan
from cxlemu.plan.text import text
from faults.prove import prove

OUTPUT = 1  # of a part's buffers


def rank_of(rank: int, world_rank: int) -> str:
    """Name a rank of a group, and its number in the world where that is another one."""
    return f"rank {rank}" + f" ({world_rank} in the world)" * (world_rank != rank)


@dataclass(frozen=True)
class ShadowedCall:
    group: str
    number: int  # which of the group's calls, as its errors count them
    collective: str
    op: str  # the reduction; "none" where there is none
    root: int  # the root's rank in the group
    dtype: str  # the elements' type, as plans name it
    elements: int  # how many elements this rank brings
    ranks: int

    def __str__(self) -> str:
        op = "" if self.op == "none" else f" {self.op}"
        return f"call {self.number} of group {self.group}, {self.collective}{op} of {self.elements} x {self.dtype}"


@dataclass(frozen=True)
class Difference:
    call: ShadowedCall
    rank: int  # the first rank in the group with a wrong result
    world_rank: int  # the same in the world
    element: int  # the first wrong element of its result
    count: int  # how many of its elements are wrong
    of: int  # how many elements its result has
    got: str  # the wrong element
    right: str  # what it must be
    instruction: str = ""  # the instruction that stored the element; "" on other ranks, and where none is found
    reason: str = ""  # why the rank's plan can store something else, as the prover has it; "" where it finds nothing

    @classmethod
    def explained(
        cls,
        call: ShadowedCall,
        rank: int,
        element: int,
        count: int,
        of: int,
        got: str,
        right: str,
        comm: Any,
        x: Array,
        out: Array | None,
        as_run: Callable[[Plan], Plan],
    ) -> Difference:
        """Describe a difference, and on the rank that has it also look for the instruction."""
        instruction = reason = ""
        if rank == comm.rank and out is not None:
            plan = _plan_of(comm, call, x, out)
            if plan is not None:
                instruction = _storing(plan, rank, element * out.itemsize)
                reason = re.sub(r"\(call \d+, ", "(", prove(as_run(plan)).reason)  # the prover's own number of it
        return cls(call, rank, comm.members[rank], element, count, of, got, right, instruction, reason)

    def sentence(self) -> str:
        where = f"{rank_of(self.rank, self.world_rank)}, element {self.element}: {self.got} instead of {self.right}"
        words = f"{self.call} differs from Gloo: {where} ({self.count} of {self.of} elements are wrong)"
        if self.instruction:
            words += f"; stored by {self.instruction}"
        if self.reason:
            words += f"; the prover: {self.reason}"
        return words

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def _plan_of(comm: Any, call: ShadowedCall, x: Array, out: Array) -> Plan | None:
    try:
        plan: Plan = comm._planner.collective(CallArguments(call.collective, x, out, call.op, call.root, "auto")).plan
        return plan
    except (CxlemuError, KeyError):
        return None  # a call made of several


def _storing(plan: Plan, rank: int, byte: int) -> str:
    place = ""
    for stream in plan.part(rank).streams:
        for index, i in enumerate(stream.instructions):
            target = i.dst
            if target.kind != Kind.BUFFER or target.id != OUTPUT or i.op in (Op.RECORD, Op.AWAIT):
                continue
            if target.offset <= byte < target.offset + i.nbytes:
                place = f"rank {rank} {stream.name}:{index} {text(i, plan, rank)}"
    return place
