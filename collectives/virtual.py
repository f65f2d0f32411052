"""Calls of collectives on the modelled fabric: rings as large as modelled cards allow, speeds as nccl-tests has them.

A real pool has room for whole messages, so a ring's slot takes all of a call; only messages that the cards cannot hold
four times over go in several rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from collectives import catalog, contracts, oracle, sizes
from collectives.bench import AUTO, Case, WrongElement, load_algorithm
from collectives.builder import HIERARCHICAL, NAIVE
from collectives.choose import Choice, choose
from collectives.contracts import COLLECTIVES
from collectives.hierarchical.estimate import Ways
from collectives.hierarchical.needs import needs
from collectives.layouts import MIN_DOORBELLS_PER_RANK, SLOTS_MIN
from collectives.nccl import RECIPES
from collectives.nccl.protocols import take
from collectives.nccl.room import room
from collectives.recipes import Recipe
from cxlemu.clusters import cluster_memory, ranks_per_cluster
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding
from cxlemu.engines.virtual import Use, VirtualCall, VirtualRun, replay, simulate
from cxlemu.errors import ArgumentError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import DTYPES, Call, InHeap, Layout, Plan
from cxlemu.plan.instructions import RECORD_DTYPE
from cxlemu.plan.layout import DATA_ALIGN_BYTES
from cxlemu.rounding import round_down, round_up
from cxlemu.timing import CostModel
from cxlemu.topology import Space, Topology
from cxlemu.topology.failures import Failure
from cxlemu.units import format_bytes

SPLIT = "split"  # the name of an all-reduce in two levels
CHECKED_BYTES_MAX = 1 << 28  # of all cards and buffers together, where results are checked
CHECKED_INSTRUCTIONS_MAX = 200_000
RECORDS_BYTES_MAX = 6 << 30  # of one simulation


@dataclass(frozen=True, slots=True)
class Simulated:
    """One row. ``wrong``: elements on all ranks, None where no data was moved. Utilization is of the whole time."""

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
    exposed_wait_us: float  # of the rank that waits longest, a call
    queue_us: float  # how much longer than alone transfers took, in the mean
    wrong: int | None
    first_wrong: str | None
    variant: str
    chosen_by: str  # "auto" or "user"
    reason: str
    instructions: int
    rounds: int


def virtual_layout(topology: Topology, call: Call, space: Space | None = None) -> Layout:
    """A ring in which a round takes all of the call, where the cards have room for it.

    It lies on ``space`` (default: the pool). On owned memory its cards are the ranks' own, one each, and a doorbell
    whose index is k more than a multiple of the ranks lies in rank k's. Raises ArgumentError where the cards have not
    even room for doorbells and a line for each rank.
    """
    if call.cluster > 1:
        return _layout_on_levels(topology, call)
    space, ranks = space or topology.pool_space, call.ranks
    cards, room_bytes, granule = _on_cards(topology, space, ranks)
    many = COLLECTIVES[call.collective].input_blocks == "ranks" or call.collective == "all_reduce"
    doorbells = max(MIN_DOORBELLS_PER_RANK, 2 * ranks) if many else MIN_DOORBELLS_PER_RANK
    bare = Layout(ranks, cards, SLOTS_MIN, 0, round_up(doorbells, cards) if space.owned else doorbells, granule)
    blocks = ranks if COLLECTIVES[call.collective].input_blocks == "ranks" else 1
    # what one rank publishes: its input, and in two shots a slice of the result; every block begins with a line
    area = blocks * round_up(call.nbytes, LINE_BYTES) + round_up(-(-call.nbytes // ranks), LINE_BYTES)
    area += (ranks + 1) * LINE_BYTES
    sharers, least_cards = -(-ranks // cards), max(1, cards // ranks)
    in_ranges = -(-area // least_cards) * sharers
    over_all = (area + (cards + 1) * granule) * ranks // cards
    heap_rank_bytes = round_up(contracts.buffers(call, call.root)[0].nbytes, DATA_ALIGN_BYTES) if call.heap else 0
    most = (room_bytes - bare.data_offset - sharers * heap_rank_bytes - DATA_ALIGN_BYTES) // SLOTS_MIN
    wanted = round_up(max(in_ranges, over_all) + sharers * granule, granule)
    if call.algorithm == NAIVE.name:  # one area after another, from card 0 on: a real card has room for all
        wanted *= cards
    slot_card_bytes = min(wanted, round_down(most, granule))
    if slot_card_bytes * cards < ranks * LINE_BYTES:
        raise ArgumentError(
            f"cards of {format_bytes(room_bytes)} have no room for the doorbells and data of {ranks} ranks: "
            f"give the topology larger cards or more of them"
        )
    return replace(bare, slot_card_bytes=slot_card_bytes, heap_card_bytes=sharers * heap_rank_bytes)


def _layout_on_levels(topology: Topology, call: Call) -> Layout:
    """The same for two levels: blocks inside lie in the ranks' own memories, where the topology has such."""
    inside, across, block_bytes = needs(call)
    pool, memory = topology.pool_space, cluster_memory(topology, call.ranks)
    cards, granule = len(topology.cards_of(pool)), pool.granule_bytes
    own = HIERARCHICAL.chunks * inside
    bells = HIERARCHICAL.chunks * across + own
    bare = Layout(call.ranks, cards, SLOTS_MIN, 0, bells, granule)
    if memory is not None:
        bare = replace(bare, cards=cards + call.ranks, owned=True, own_doorbells=own)
    area = round_up(block_bytes, LINE_BYTES) + LINE_BYTES
    in_pool = area * (across if memory is not None else inside + across) + granule
    wanted = -(-in_pool // max(1, cards // call.ranks)) * -(-call.ranks // cards) + 2 * granule
    spaces = [pool] if memory is None else [pool, memory]
    room = min(topology.card(topology.cards_of(space)[0]).capacity_bytes for space in spaces)
    most = (room - bare.data_offset - DATA_ALIGN_BYTES) // SLOTS_MIN
    wanted = wanted if memory is None else max(wanted, area * inside)
    size = min(round_up(wanted, granule), round_down(most, granule))
    if size < granule:
        raise ArgumentError(f"memories of {format_bytes(room)} have no room for the doorbells of {call.ranks} ranks")
    return replace(bare, slot_card_bytes=size)


def _on_cards(topology: Topology, space: Space, ranks: int) -> tuple[int, int, int]:
    """A layout's cards on a space, their bytes, and the granule."""
    numbers = topology.cards_of(space)
    card_bytes = min(group.capacity_bytes for its, group in topology.card_groups() if set(numbers).intersection(its))
    return ranks if space.owned else len(numbers), card_bytes, space.granule_bytes


def planned(
    topology: Topology,
    case: Case,
    algorithm: str | None = None,
    space: Space | None = None,
    layout: Layout | None = None,
) -> tuple[Plan, Choice]:
    """The plan of a case, and why this variant; on a ring of its own, or on one that is there.

    Raises ArgumentError for a case that is not possible.
    """
    call = replace(case.call, in_place=case.in_place)
    choice = Choice(call.algorithm, "")
    if algorithm is not None:
        recipe = load_algorithm(algorithm)
    else:
        if call.algorithm == AUTO:
            ways = Ways.of(topology, call.ranks) if space in (None, topology.pool_space) else None
            choice = choose(call.collective, call.nbytes, call.ranks, ways=ways)
        recipe = catalog.recipe(call.collective, choice.variant)
    return plan_of(topology, recipe, call, space or topology.pool_space, layout), choice


def plan_of(topology: Topology, recipe: Recipe, call: Call, space: Space, layout: Layout | None = None) -> Plan:
    """The call's plan in a ring on this space. Raises ArgumentError where there is no room for it."""
    cluster = ranks_per_cluster(topology, call.ranks) if recipe.style.levels else 1
    call = replace(call, algorithm=recipe.name, heap=InHeap(0) if recipe.style.heap else None, cluster=cluster)
    if layout is None and recipe.style.slice_bytes:
        cards, card_bytes, granule_bytes = _on_cards(topology, space, call.ranks)
        layout = room(recipe, call, cards=cards, card_bytes=card_bytes, granule_bytes=granule_bytes)
    return catalog.build(recipe, layout or virtual_layout(topology, call, space), call)


def _spoken(topology: Topology, case: Case, algorithm: str | None, space: Space) -> tuple[Topology, Plan, Choice]:
    """A case on a space, and the machine that speaks a protocol of it: the one that NCCL takes, else the first."""
    if space.protocols is None:
        return topology, *planned(topology, case, algorithm, space)
    if algorithm is not None or not _sends(case.call):
        plan, choice = planned(topology, case, algorithm, space)
        first = space.protocols[0]
        reason = f"{choice.reason}; with {first.name}" if choice.reason else f"with {first.name}"
        return topology.speaking(space, first), plan, choice._replace(reason=reason)
    call = replace(case.call, in_place=case.in_place)
    spoken, recipe, _, reason = take(topology, space, call)
    its = next(its for its in spoken.spaces if its.name == space.name)
    return spoken, plan_of(spoken, recipe, call, its), Choice(recipe.name, reason)


def _model_cards(model: CostModel, plan: Plan, space: Space) -> tuple[int, ...]:
    """Which of the model's cards those of a plan's layout on this space are."""
    memory = cluster_memory(model.topology, plan.ranks) if plan.layout.owned else None
    return model.cards_of(space) + (model.cards_of(memory) if memory is not None else ())


def split_calls(topology: Topology, case: Case, group: int) -> list[VirtualCall]:
    """An all-reduce in two levels: reduce-scatter in groups of consecutive ranks, all-reduce of each slice across the
    groups, all-gather in the groups; what ``comm.split`` and three calls do.

    Plans are the same for all groups and made once, so that memory grows with ranks, not with their square. Raises
    ArgumentError for anything but an all_reduce of ranks that come in such groups.
    """
    call, ranks = case.call, case.call.ranks
    if call.collective != "all_reduce" or call.algorithm not in (AUTO, SPLIT):
        raise ArgumentError(f"--split is for all_reduce without a variant, not for {call.collective} {call.algorithm}")
    if group < 2 or ranks % group or ranks // group < 2:
        raise ArgumentError(
            f"{ranks} ranks do not come in groups of {group}: give a divisor, such as {_divisor(ranks)}"
        )
    itemsize = DTYPES[call.dtype].itemsize
    slice_bytes = -(-call.nbytes // (group * itemsize)) * itemsize
    steps = {
        "reduce_scatter": replace(call, collective="reduce_scatter", ranks=group, nbytes=slice_bytes, algorithm=AUTO),
        "all_reduce": replace(call, ranks=ranks // group, nbytes=slice_bytes, algorithm=AUTO),
        "all_gather": replace(
            call, collective="all_gather", ranks=group, nbytes=slice_bytes, redop="none", algorithm=AUTO
        ),
    }
    inside = [tuple(range(first, first + group)) for first in range(0, ranks, group)]
    across = [tuple(range(member, ranks, group)) for member in range(group)]
    found = []
    for name, step in steps.items():
        plan, _ = planned(topology, Case(step, in_place=False))
        found += [VirtualCall(plan, members) for members in (across if name == "all_reduce" else inside)]
    return found


def _divisor(ranks: int) -> int:
    """Of those that are groups, the one nearest to a square."""
    return min((d for d in range(2, ranks) if ranks % d == 0), key=lambda d: abs(d - ranks // d), default=ranks)


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
    """One row, and the run it comes from. ``calls`` follow each other; times are their mean.

    ``space``: on which of the topology's (default: the pool). ``split``: in groups of so many ranks, see
    ``split_calls``. ``failures``: of links and switches, at their times after the first call began. ``check``: the same
    run moves real bytes through caches that nothing keeps coherent, and every result is compared with NumPy's.
    ``log_max``: log the run, which has so many instructions at most. Raises ArgumentError for a case that is too large
    for memory, either, and as ``planned``; CutOffError where failures leave no way that is needed.
    """
    where = topology.pool_space if space is None else topology.space(space)
    if split is None:
        machine, plan, choice = _spoken(topology, case, algorithm, where)
        model = CostModel.of(machine, case.call.ranks, failures)
        program = [VirtualCall(plan, cards=_model_cards(model, plan, where))]
    elif space is not None or where.owned:
        raise ArgumentError("--split is for a pool: its calls do not lie on memory of hosts or ranks, nor on --space")
    else:
        model = CostModel.of(topology, case.call.ranks, failures)
        program = split_calls(topology, case, split)
        plan, choice = program[0].plan, Choice(SPLIT, f"groups of {split}: the user's choice")
    check_memory(program)
    if check:
        if split is not None:
            raise ArgumentError("--check does not go with --split: its calls are of communicators split off")
        _check_size(plan)
    program *= calls
    if log_max and (instructions := sum(_instructions(call.plan) for call in program)) > log_max:
        raise ArgumentError(
            f"[{case.call}]: {instructions} instructions are too many for a trace, {log_max} are the most"
        )
    run = simulate(model, program, log=bool(log_max) or check)
    wrong, first_wrong = _wrong(case, plan, run, seed) if check else (None, None)
    time_ns = max(run.time_ns, 1) / calls
    algbw = sizes.algbw_gbytes_per_s(case.size_bytes, time_ns)
    used = {kind: _used(run, kind) for kind in ("card", "link", "engine")}
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


def _sends(call: Call) -> bool:
    """Whether it is, or may be, one of the algorithms in which ranks send to each other."""
    return any(its == call.collective and call.algorithm in (AUTO, name) for its, name in RECIPES)


def _used(run: VirtualRun, kind: str) -> tuple[str, float]:
    use: Use | None = run.busiest(kind)
    return ("", 0.0) if use is None else (use.resource.name, use.busy_ns / max(run.time_ns, 1))


def _instructions(plan: Plan) -> int:
    return sum(part.instruction_count for part in plan.parts)


def check_memory(program: Sequence[VirtualCall]) -> None:
    """Raises ArgumentError for plans too large to be held: the root's instructions and those of one other rank tell."""
    for call in program:
        plan, ranks = call.plan, call.plan.ranks
        root, other = (plan.part(rank % ranks).instruction_count for rank in (plan.call.root, plan.call.root + 1))
        nbytes = (root + (ranks - 1) * other) * RECORD_DTYPE.itemsize
        if nbytes > RECORDS_BYTES_MAX:
            raise ArgumentError(
                f"[{call.plan.call}]: instructions of {call.plan.ranks} ranks take some {format_bytes(nbytes)}, "
                f"{format_bytes(RECORDS_BYTES_MAX)} are the most: take fewer ranks or, for an all_reduce, --split "
                f"{_divisor(call.plan.ranks)}"
            )


def _check_size(plan: Plan) -> None:
    layout = plan.layout
    nbytes = layout.cards * layout.extent_bytes
    nbytes += sum(buffer.nbytes for part in plan.parts for buffer in part.buffers)
    instructions = _instructions(plan)
    if nbytes > CHECKED_BYTES_MAX or instructions > CHECKED_INSTRUCTIONS_MAX:
        raise ArgumentError(
            f"[{plan.call}] is too large to be checked on real bytes: {format_bytes(nbytes)} and {instructions} "
            f"instructions, where {format_bytes(CHECKED_BYTES_MAX)} and {CHECKED_INSTRUCTIONS_MAX} are the most"
        )


def _wrong(case: Case, plan: Plan, run: VirtualRun, seed: int) -> tuple[int, str | None]:
    """Execute the run's instructions in its order on real bytes; how many elements are wrong, and the first of them."""
    layout, hosts = plan.layout, run.model.hosts
    cards = [np.zeros(layout.extent_bytes, np.uint8) for _ in range(layout.cards)]
    caches = {host: HostCache.private(cards) for host in hosts}
    memory = MemorySpec(seed=seed)
    memories = [memory.open(cards, host_cache=caches[host], host=host, rank=rank) for rank, host in enumerate(hosts)]
    runners: list[list[Runner]] = []
    epoch = 1
    for serial in range(len(run.calls)):
        binding = Binding(layout, 0, epoch, plan.call.tag())
        runners.append([])
        for rank in range(plan.ranks):
            buffers = _buffers(plan, rank, oracle.inputs(plan.call, rank, seed, serial))
            runners[-1].append(
                Runner(plan.call, plan.frame, plan.part(rank), binding, memory=memories[rank], buffers=buffers)
            )
        epoch += plan.rounds
    replay(run, runners)
    wrong, first = 0, None
    for serial, call in enumerate(runners):
        for rank, runner in enumerate(call):
            right = oracle.expected(plan.call, rank, seed, serial)
            if right is None:
                continue
            got = runner.buffers[1].view(right.dtype)
            places = oracle.wrong_elements(got, right)
            wrong += places.size
            if places.size and first is None:
                at = int(places[0])
                bits = (int(a.reshape(-1).view(f"u{right.dtype.itemsize}")[at]) for a in (got, right))
                first = f"rank {rank}, {WrongElement(serial, at, *bits).describe(case.call.dtype)}"
    return wrong, first


def _buffers(plan: Plan, rank: int, x: np.ndarray | None) -> list[np.ndarray]:
    """Input, output and scratch of one rank, as the plan's table says; what is not input begins as poison."""
    arrays = [np.full(buffer.nbytes, 0xA5, np.uint8) for buffer in plan.part(rank).buffers]
    source, target, _ = plan.part(rank).buffers
    if source.inside:
        arrays[0] = arrays[1][source.at : source.at + source.nbytes]
    if target.inside:
        arrays[1] = arrays[0][target.at : target.at + target.nbytes]
    if x is not None:
        arrays[0][:] = x.reshape(-1).view(np.uint8)
    return arrays
