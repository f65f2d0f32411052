"""What ``cxlemu explore`` is given to search: a protocol in a user's file, or a plan of ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collectives.catalog import build, recipe
from collectives.choose import choose
from collectives.contracts import COLLECTIVES
from collectives.sizes import block_bytes
from cxlemu import userfile
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call
from cxlemu.units import format_bytes
from faults.explore.check import judge_ends
from faults.explore.plans import compile_plans, located, tiny_layout
from faults.explore.programs import Protocol
from faults.explore.result import Exploration
from faults.machine.steps import Machine
from faults.verdict import Verdict

DTYPE = "f32"


@dataclass(frozen=True)
class Target:
    name: str
    machine: Machine
    judge: Callable[[Exploration], Exploration]  # what a search found, and what is found beyond that
    known: Exploration | None = None  # no search is needed


def protocol_target(spec: str, ranks: int) -> Target:
    """Raises ArgumentError where there is no such protocol."""
    found, file, name = userfile.load(spec, "explore")
    if not isinstance(found, Protocol):
        raise ArgumentError(f"explore {spec}: {file} has no {name!r} decorated with @protocol")
    machine = Machine(found.program(ranks))
    return Target(name, machine, lambda explored: judge_ends(found, machine, explored))


def plan_target(collective: str, ranks: int, total_bytes: int | None, variant: str, calls: int) -> Target:
    """Calls of a collective one after the other, on a small ring. Raises ArgumentError for a call that cannot be."""
    nbytes = block_bytes(collective, total_bytes or LINE_BYTES * ranks, ranks, DTYPES[DTYPE].itemsize)
    chosen = choose(collective, nbytes, ranks).variant if variant == "auto" else variant
    op = "sum" if COLLECTIVES[collective].reduces else "none"
    call = Call(collective, chosen, ranks, nbytes, DTYPE, op, 0, False, None)
    plan = build(recipe(collective, chosen), tiny_layout(ranks, lines=ranks + 1), call)
    compiled = compile_plans([plan] * calls)
    machine = Machine(compiled.program)

    def judge(explored: Exploration) -> Exploration:
        finding = explored.finding and located(compiled, explored.finding, explored.schedule)
        return replace(explored, finding=finding)

    known = None
    if compiled.trouble is not None:
        finding, schedule = compiled.trouble.shown(machine, compiled.origins)
        known = Exploration(Verdict.VIOLATION, 0, 0, 0.0, finding, schedule)
    name = f"{collective} {chosen} of {format_bytes(nbytes)}" + (f", {calls} calls" if calls > 1 else "")
    return Target(name, machine, judge, known)
