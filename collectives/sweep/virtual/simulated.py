"""Rows of ``cxlemu simulate``: a call's time, speeds as nccl-tests has them, and what was busiest."""

from collections.abc import Sequence
from dataclasses import dataclass

from collectives import sizes
from collectives.algorithms.choose import Choice
from collectives.defaults import AUTO
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.bounds import lower_bound
from collectives.sweep.virtual.checked import check_size, execute
from collectives.sweep.virtual.in_switch import in_switch_ns
from collectives.sweep.virtual.plans import model_cards, model_of, spoken
from collectives.sweep.virtual.split import SPLIT, check_split, divisor, split_calls
from cxlemu import _virtual
from cxlemu.engines.virtual import Use, VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Plan, RankPart
from cxlemu.topology import Topology
from cxlemu.topology.failures import Failure
from cxlemu.units import format_bytes

INSTRUCTIONS_MAX = 150_000_000  # of one call, a minute or two
PACKED_BYTES_MAX = 4 << 30  # of one call's instructions, as the engine keeps them


@dataclass(frozen=True, slots=True)
class Simulated:
    """One row of ``cxlemu simulate``. ``wrong`` counts elements on all ranks; None where no data was moved.

    Utilization is of the whole time, from 0 to 1.
    """

    collective: str
    size_bytes: int
    count: int
    dtype: str
    redop: str
    root: int
    time_us: float
    algbw_gbytes_per_s: float
    busbw_gbytes_per_s: float
    busiest_card: str
    busiest_card_utilization: float
    busiest_link: str
    busiest_link_utilization: float
    busiest_engine: str
    busiest_engine_utilization: float
    busiest_engine_by_bytes: float  # of the same time, what its bytes take at its rate; the rest it waits for others
    bound_us: float | None  # the least that a call takes, by the bytes that must move; None where that is not known
    bound_by: str  # "reads", "writes" or "cards"
    started_bound_us: float | None  # the same with what no plan hides: launch, starts, a doorbell (virtual/bounds.py)
    in_switch_us: float | None  # of the same call where a switch folds (virtual/in_switch.py); None where none does
    exposed_wait_us: float  # of the rank that waits longest, a call
    queue_us: float  # how much longer than alone transfers took, in the mean
    wrong: int | None
    first_wrong: str | None
    variant: str
    chosen_by: str  # "auto" or "user"
    reason: str
    instructions: int
    rounds: int


def simulate_case(
    topology: Topology,
    case: Case,
    *,
    algorithm: str | None = None,
    space: str | None = None,
    split: int | None = None,
    failures: Sequence[Failure] = (),
    calls: int = 1,
    check: bool = False,
    seed: int = 1,
    log_max: int = 0,
) -> tuple[Simulated, VirtualRun]:
    """Simulate calls of one case that follow each other."""
    where = topology.pool_space if space is None else topology.space(space)
    if split is None:
        machine, plan, choice = spoken(topology, case, algorithm, where)
        model = model_of(machine, case.call.ranks, tuple(failures))
        program = [VirtualCall(plan, cards=model_cards(model, plan, machine.space(where.name)))]
    else:
        check_split(topology, case.call, split, space, check=check)
        model = model_of(topology, case.call.ranks, tuple(failures))
        program = split_calls(topology, case, split)
        plan, choice = program[0].plan, Choice(SPLIT, f"groups of {split}: the user's choice")
    check_memory(program)
    if check:
        check_size(plan)
    program *= calls
    if log_max and (instructions := sum(_instructions(call.plan) for call in program)) > log_max:
        raise ArgumentError(f"[{case.call}]: {instructions} instructions exceed the limit of a trace, {log_max}")
    run = simulate(model, program, log=bool(log_max) or check)
    wrong, first_wrong = execute(case, plan, run, seed) if check else (None, None)
    time_ns = max(run.time_ns, 1) / calls
    algbw = sizes.algbw_gbytes_per_s(case.size_bytes, time_ns) if run.time_ns else 0.0  # no byte met a link
    used = {kind: _used(run, kind) for kind in ("card", "link", "engine")}
    bound = lower_bound(topology, plan.call, where) if split is None else None
    folded_ns = None if failures else in_switch_ns(topology, plan.call, case.size_bytes)
    copies = sum(use.uses for use in run.uses if use.resource.kind == "engine")
    queue_ns = sum(total.queue_ns for total in run.ops.values())
    row = Simulated(
        collective=case.call.collective,
        size_bytes=case.size_bytes,
        count=case.count,
        dtype=case.call.dtype,
        redop=case.call.redop,
        root=case.root,
        time_us=time_ns / 1e3,
        algbw_gbytes_per_s=algbw,
        busbw_gbytes_per_s=sizes.busbw_gbytes_per_s(case.call.collective, case.call.ranks, algbw),
        busiest_card=used["card"][0],
        busiest_card_utilization=used["card"][1],
        busiest_link=used["link"][0],
        busiest_link_utilization=used["link"][1],
        busiest_engine=used["engine"][0],
        busiest_engine_utilization=used["engine"][1],
        busiest_engine_by_bytes=used["engine"][2],
        bound_us=None if bound is None else bound.ns / 1e3,
        bound_by="" if bound is None else bound.by,
        started_bound_us=None if bound is None else bound.started_ns / 1e3,
        in_switch_us=None if folded_ns is None else folded_ns / 1e3,
        exposed_wait_us=int(run.exposed_wait_ns.max()) / calls / 1e3,
        queue_us=queue_ns / copies / 1e3 if copies else 0.0,
        wrong=wrong,
        first_wrong=first_wrong,
        variant=choice.variant,
        chosen_by="auto" if case.call.algorithm == AUTO else "user",
        reason=choice.reason,
        instructions=run.instructions,
        rounds=sum(its.rounds for its in dict.fromkeys(call.plan for call in program)),
    )
    return row, run


def _used(run: VirtualRun, kind: str) -> tuple[str, float, float]:
    """The busiest resource of a kind: its name, and for which share of the time it is in use, and moves its bytes."""
    use: Use | None = run.busiest(kind)
    if use is None:
        return "", 0.0, 0.0
    rate, time_ns = use.resource.gbytes_per_s, max(run.time_ns, 1)
    return use.resource.name, use.busy_ns / time_ns, use.bytes / rate / time_ns if rate else 0.0


def check_cases(topology: Topology, cases: Sequence[Case], *, algorithm: str | None, space: str | None) -> None:
    """Check that the largest case of each variant is small enough for real bytes, before any is simulated."""
    where = topology.pool_space if space is None else topology.space(space)
    largest = {(case.call.collective, case.call.algorithm): case for case in sorted(cases, key=lambda c: c.size_bytes)}
    for case in largest.values():
        _, plan, _ = spoken(topology, case, algorithm, where)
        check_memory([VirtualCall(plan)])
        check_size(plan)


def _instructions(plan: Plan) -> int:
    return sum(part.instruction_count for part in plan.parts)


def check_memory(program: Sequence[VirtualCall]) -> None:
    """Check that the plans of a program can be held in memory; the root's instructions and another rank's tell."""
    for call in program:
        plan, ranks = call.plan, call.plan.ranks
        root, other = (plan.part(rank % ranks) for rank in (plan.call.root, plan.call.root + 1))
        count = root.instruction_count + (ranks - 1) * other.instruction_count
        nbytes = _packed_bytes(root) + (ranks - 1) * _packed_bytes(other)
        if count > INSTRUCTIONS_MAX or nbytes > PACKED_BYTES_MAX:
            raise ArgumentError(
                f"[{call.plan.call}]: some {count:,} instructions of {ranks} ranks take {format_bytes(nbytes)}, the "
                f"limits are {INSTRUCTIONS_MAX:,} and {format_bytes(PACKED_BYTES_MAX)}: take fewer ranks or, for an "
                f"all_reduce, --split {divisor(ranks)}"
            )


def _packed_bytes(part: RankPart) -> int:
    return sum(_virtual.repacked(stream.records)[0] for stream in part.streams)
