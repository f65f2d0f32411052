"""The calls of plans that ``cxlemu explore`` searches: of a collective, of an algorithm in a user's file, or saved."""

from dataclasses import replace

import click

from collectives.algorithms.catalog import build, check, load_algorithm, own_recipe, recipe
from collectives.algorithms.choose import choose
from collectives.algorithms.hierarchical.needs import needs
from collectives.builder.recipes import Recipe
from collectives.choices import is_plan
from collectives.cli.targets import check_applies
from collectives.contracts import COLLECTIVES, NO_ZERO_COPY_IN_PLACE
from collectives.sizes import block_bytes
from cxlemu import userfile
from cxlemu.errors import ArgumentError
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, Plan
from cxlemu.topology.clusters import hosts_of
from cxlemu.units import counted, format_bytes, typed_bytes
from faults.cli.searchable import Calls, Searchable
from faults.explore.plans import compile_plans, located, tiny_layout
from faults.explore.programs import RANKS_MAX
from faults.explore.result import Exploration
from faults.machine.steps import Machine
from faults.verdict import Verdict
from faults.zero_copy_calls import placed

DTYPE = "f32"
BYTES_MAX = 64 << 10  # of all ranks' blocks: a thousand lines, each with its steps
LINES_MAX = 100_000  # that all calls touch, each as often as it does
NO_ROUND = "nothing was judged: no rank takes a step in the pool"
BLOCKS_MAX = 8  # a user's algorithm may publish this many times as many as a shipped one


def shipped_calls(spec: str, ranks: int, calls: Calls) -> Searchable:
    """Compile calls of a collective, or of a saved plan."""
    if spec in COLLECTIVES:
        return _plans(_built(_shipped(spec, ranks, calls), ranks, calls), calls)
    if not is_plan(spec):
        userfile.load(spec, "explore")  # says what is wrong with it
    return _saved(spec, calls)


def own_calls(function: object, name: str, spec: str, file: str, ranks: int, calls: Calls) -> Searchable:
    """Compile calls of a user's own algorithm."""
    own = own_recipe(function, name, spec)
    if own is None:
        raise ArgumentError(f"explore {spec}: {file} has no {name!r} decorated with @protocol or @algorithm")
    if calls.variant is not None:
        raise ArgumentError("--variant does not go with an algorithm of your own: it has none")
    return _plans(_built(own, ranks, calls), calls)


def _shipped(collective: str, ranks: int, calls: Calls) -> Recipe:
    if calls.variant in (None, "auto"):
        chosen = choose(collective, _block_bytes(collective, ranks, calls), ranks, dtype=DTYPE)
        return recipe(collective, chosen.variant)
    return recipe(collective, str(calls.variant))


def _block_bytes(collective: str, ranks: int, calls: Calls) -> int:
    itemsize = DTYPES[calls.dtype or DTYPE].itemsize
    size = LINE_BYTES * ranks if calls.total_bytes is None else calls.total_bytes
    return block_bytes(collective, size, ranks, itemsize)


def _built(chosen: Recipe, ranks: int, calls: Calls) -> Plan:
    """Build the plan on a ring with room for few lines."""
    collective, nbytes = chosen.collective, _block_bytes(chosen.collective, ranks, calls)
    check_applies(click.get_current_context(), (collective,))
    number = calls.number or 1
    if nbytes * ranks * number > BYTES_MAX:
        each = f"blocks of {typed_bytes(nbytes)} on {counted(ranks, 'rank')}"
        calls_of = f"{counted(number, 'call')} with {each}"
        raise ArgumentError(f"{calls_of} are too large to search: {format_bytes(BYTES_MAX)} in all at most")
    op = calls.op or ("sum" if COLLECTIVES[collective].reduces else "none")
    hosts_of(ranks, calls.cluster or 1)
    if chosen.spec.zero_copy and calls.in_place and collective in NO_ZERO_COPY_IN_PLACE:
        raise ArgumentError(f"{collective} in place cannot be zero copy: {NO_ZERO_COPY_IN_PLACE[collective]}")
    call = Call(collective, chosen.name, ranks, nbytes, calls.dtype or DTYPE, op, calls.root or 0, calls.in_place)
    lines = ranks + 1
    if chosen.builder.takes_clusters:
        call = replace(call, cluster=calls.cluster or 1)
        inside, across, _ = needs(call)
        lines = inside + across
    check(call)
    for more in range(1, BLOCKS_MAX + 1) if chosen.source else (1,):
        asked, layout = placed(chosen, call, tiny_layout(ranks, lines=more * lines))
        try:
            plan = build(chosen, layout, asked)
            _ = plan.parts
            return plan
        except ArgumentError:
            if more == BLOCKS_MAX or not chosen.source:
                raise
    raise AssertionError("the last one returns or raises")


def _saved(file: str, calls: Calls) -> Searchable:
    """Take a saved plan as it is: on its own ring, however large that is."""
    plan = load_algorithm(file).plan
    assert plan is not None
    call = plan.call
    if call.ranks > RANKS_MAX:
        raise ArgumentError(f"{file} is of {counted(call.ranks, 'rank')}, too many to search: {RANKS_MAX} at most")
    return _plans(plan, replace(calls, cluster=calls.cluster or call.cluster))


def _lines(plan: Plan) -> int:
    """Count the lines that a call touches, each as often as it is touched."""
    records = (stream.records["nbytes"] for part in plan.parts for stream in part.streams)
    return sum(len(nbytes) + int(nbytes.sum()) // LINE_BYTES for nbytes in records)


def _plans(plan: Plan, calls: Calls) -> Searchable:
    call, cluster, number = plan.call, calls.cluster or 1, calls.number or 1
    if (lines := _lines(plan) * number) > LINES_MAX:
        touched = f"{counted(number, 'call')} of {format_bytes(call.nbytes)}: {counted(lines, 'line')} touched"
        raise ArgumentError(f"{touched}, too many to search; {LINES_MAX} at most: give fewer bytes or calls")
    compiled = compile_plans([plan] * number, hosts_of(plan.ranks, cluster))
    machine = Machine(compiled.program)

    def judge(explored: Exploration) -> Exploration:
        if explored.verdict is Verdict.OK and not plan.rounds:
            return replace(explored, verdict=Verdict.UNKNOWN, reason=NO_ROUND)
        finding = explored.finding and located(compiled, explored.finding, explored.schedule)
        return replace(explored, finding=finding)

    name = f"{call.collective} {call.algorithm} of {format_bytes(call.nbytes)}"
    name += f", {counted(cluster, 'rank')} a host" if cluster > 1 else ""
    name += ", in place" if call.in_place else ""
    name += f", {counted(number, 'call')}" if number > 1 else ""
    return Searchable(name, plan.ranks, machine, judge, compiled.known(machine))
