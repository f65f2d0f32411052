"""What ``cxlemu explore`` is given to search: a protocol or an algorithm in a user's file, or a collective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from collectives.catalog import build, own_recipe, recipe
from collectives.choose import choose
from collectives.contracts import COLLECTIVES
from collectives.hierarchical.needs import needs
from collectives.recipes import Recipe
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
STORE_BUFFERS = "ranks of one host see each other's stores at once: store buffers are not modelled"
BYTES_MAX = 64 << 10  # of all ranks' blocks: a thousand lines, each with its steps


@dataclass(frozen=True)
class Target:
    name: str
    machine: Machine
    judge: Callable[[Exploration], Exploration]  # what a search found, and what is found beyond that
    known: Exploration | None = None  # no search is needed
    note: str = ""  # beside the verdict


@dataclass(frozen=True)
class Calls:
    """Of a collective, one after the other; None where the command line does not say."""

    total_bytes: int | None = None
    variant: str | None = None
    number: int | None = None
    cluster: int | None = None  # ranks on each host


def target(spec: str, ranks: int, calls: Calls) -> Target:
    """Raises ArgumentError where there is no such program, or no such call."""
    if spec in COLLECTIVES:
        return _plan_target(_shipped(spec, ranks, calls), ranks, calls)
    found, file, name = userfile.load(spec, "explore")
    if isinstance(found, Protocol):
        if calls != Calls():
            raise ArgumentError(
                "--bytes, --variant, --calls and --cluster go with a collective, not with a protocol of your own"
            )
        machine = Machine(found.program(ranks))
        note = STORE_BUFFERS if len(set(found.hosts(ranks))) < ranks else ""
        return Target(name, machine, lambda explored: judge_ends(found, machine, explored), note=note)
    own = own_recipe(found, name, spec)
    if own is None:
        raise ArgumentError(f"explore {spec}: {file} has no {name!r} decorated with @protocol or @algorithm")
    if calls.variant is not None:
        raise ArgumentError("--variant does not go with an algorithm of your own: it has none")
    return _plan_target(own, ranks, calls)


def _shipped(collective: str, ranks: int, calls: Calls) -> Recipe:
    if calls.variant in (None, "auto"):
        return recipe(collective, choose(collective, _block_bytes(collective, ranks, calls), ranks).variant)
    return recipe(collective, str(calls.variant))


def _block_bytes(collective: str, ranks: int, calls: Calls) -> int:
    return block_bytes(collective, calls.total_bytes or LINE_BYTES * ranks, ranks, DTYPES[DTYPE].itemsize)


def _plan_target(chosen: Recipe, ranks: int, calls: Calls) -> Target:
    """On a ring with room for few lines."""
    collective, nbytes = chosen.collective, _block_bytes(chosen.collective, ranks, calls)
    number = calls.number or 1
    if nbytes * ranks * number > BYTES_MAX:
        raise ArgumentError(f"{number} x {nbytes} bytes of {ranks} ranks are too many to search: {BYTES_MAX} at most")
    op = "sum" if COLLECTIVES[collective].reduces else "none"
    cluster = calls.cluster or 1
    if ranks % cluster:
        raise ArgumentError(f"--cluster: {ranks} ranks are not on hosts of {cluster} each")
    call = Call(collective, chosen.name, ranks, nbytes, DTYPE, op, 0, False, None)
    lines = ranks + 1
    if chosen.style.levels:
        call = replace(call, cluster=cluster)
        inside, across, _ = needs(call)
        lines = inside + across
    plan = build(chosen, tiny_layout(ranks, lines=lines), call)
    compiled = compile_plans([plan] * number, [rank // cluster for rank in range(ranks)])
    machine = Machine(compiled.program)

    def judge(explored: Exploration) -> Exploration:
        finding = explored.finding and located(compiled, explored.finding, explored.schedule)
        return replace(explored, finding=finding)

    known = None
    if compiled.trouble is not None:
        finding, schedule = compiled.trouble.shown(machine, compiled.origins)
        known = Exploration(Verdict.VIOLATION, 0, 0, 0.0, finding, schedule)
    what = f"{chosen.name} of {format_bytes(nbytes)}" + (f", {cluster} ranks a host" if cluster > 1 else "")
    name = f"{collective} {what}" + (f", {number} calls" if number > 1 else "")
    return Target(name, machine, judge, known)
