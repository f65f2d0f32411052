"""Which plan a call on a modelled fabric takes, and which machine it takes it on."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from collectives.algorithms import catalog
from collectives.algorithms.choose import INTEGERS, Choice, choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.algorithms.modelled import Copies, candidates
from collectives.algorithms.nccl import RECIPES, Sends
from collectives.algorithms.nccl.protocols import take
from collectives.algorithms.nccl.room import room
from collectives.builder.recipes import Recipe
from collectives.contracts import COLLECTIVES
from collectives.defaults import AUTO
from collectives.in_heap import results_in_heap
from collectives.layouts import check_fits
from collectives.sweep.sweep import Case, load_algorithm
from collectives.sweep.virtual.rings import on_cards, virtual_layout
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import RANK_ORDER, Call, InHeap, Layout, Plan, rules
from cxlemu.topology import Space, Topology
from cxlemu.topology.clusters import apart, cluster_memory, ranks_per_cluster
from cxlemu.topology.failures import Failure
from cxlemu.units import counted, format_bytes

PRICED_MAX_RANKS = 16  # of more, pricing takes long, and rules alone choose
PRICED_MAX_ROUNDS = 16  # of a plan: longer ones are not priced
PRICED_LINES_MAX_BYTES = 4 << 10  # of a block in doorbell lines
PLANS_KEPT, KEPT_INSTRUCTIONS_MAX = 64, 15_000  # some 100 MB at most
CHEAPER = 0.9  # of the time of what rules choose: another candidate has to be as fast to be taken


def planned(
    topology: Topology,
    case: Case,
    algorithm: str | None = None,
    space: Space | None = None,
    layout: Layout | None = None,
    levels: bool = True,
) -> tuple[Plan, Choice]:
    """Plan a case on a modelled fabric; return the plan, and the variant with the reason for it."""
    call = replace(case.call, in_place=case.in_place)
    choice = Choice(call.algorithm, "")
    if algorithm is not None:
        recipe = load_algorithm(algorithm)
    else:
        if call.algorithm == AUTO:
            choice = _choice(topology, call, space or topology.pool_space, levels, modelled=layout is None)
        recipe = catalog.recipe(call.collective, choice.variant)
    return plan_of(topology, recipe, call, space or topology.pool_space, layout), choice


@lru_cache(256)  # a sweep, its baselines and a training step ask for the same ones again and again
def _choice(topology: Topology, call: Call, space: Space, levels: bool, *, modelled: bool) -> Choice:
    """Let rules choose, then ask the model: where it prices another candidate a tenth lower, take the lowest."""
    ways = TwoLevelEstimate.of(topology, call.ranks) if levels and space == topology.pool_space else None
    copies = Copies.of(topology, call.ranks, space) if modelled else None
    choice = choose(call.collective, call.nbytes, call.ranks, ways=ways, dtype=call.dtype, copies=copies)
    if not modelled or not call.nbytes or call.ranks > PRICED_MAX_RANKS:
        return choice
    others = candidates(call.collective)
    if ways is not None and COLLECTIVES[call.collective].basic:
        others.append(HIERARCHICAL)
    times = _times_ns(topology, call, space, dict.fromkeys((choice.variant, *others)))
    best = min(times, key=times.__getitem__, default=choice.variant)
    if not times.get(choice.variant) or times[best] > CHEAPER * times[choice.variant]:
        return choice
    what = f"{format_bytes(call.nbytes)} on {counted(call.ranks, 'rank')}"
    ours, theirs = (times[variant] / 1e3 for variant in (best, choice.variant))
    return Choice(best, f"{what}: {ours:,.1f} us by the model, {choice.variant} {theirs:,.1f} us")


def _times_ns(topology: Topology, call: Call, space: Space, variants: Iterable[str]) -> dict[str, int]:
    """Price variants of a call; those are left out that cannot have its operands, or that take too long to price."""
    times: dict[str, int] = {}
    model = model_of(topology, call.ranks)
    for variant in variants:
        recipe = catalog.recipe(call.collective, variant)
        long = recipe.spec.in_lines and call.nbytes > PRICED_LINES_MAX_BYTES
        reorders = recipe.fold_order != RANK_ORDER and not recipe.builder.takes_clusters
        if long or (reorders and call.dtype not in INTEGERS):
            continue
        try:
            plan = plan_of(topology, recipe, call, space)
            if plan.rounds <= PRICED_MAX_ROUNDS:
                times[variant] = simulate(model, [VirtualCall(plan, cards=model_cards(model, plan, space))]).time_ns
        except ArgumentError:  # no room on the cards for this one
            continue
    return times


@lru_cache(8)  # a sweep asks for the same ones again and again, and large fabrics have many routes
def model_of(topology: Topology, ranks: int, failures: tuple[Failure, ...] = ()) -> CostModel:
    return CostModel.of(topology, ranks, failures)


def plan_of(topology: Topology, recipe: Recipe, call: Call, space: Space, layout: Layout | None = None) -> Plan:
    """Plan a call, with heap and clusters as the recipe needs them, in a ring on a space (default: its own ring)."""
    if recipe.plan is not None:
        return _saved(topology, recipe.plan, space)
    cluster = ranks_per_cluster(topology, call.ranks) if recipe.builder.takes_clusters else 1
    heap = InHeap(0) if recipe.spec.zero_copy else results_in_heap() if recipe.spec.pushes else None
    call = replace(call, algorithm=recipe.name, heap=heap, cluster=cluster)
    if layout is None and issubclass(recipe.builder, Sends):
        cards, card_bytes, granule_bytes = on_cards(topology, space, call.ranks)
        layout = room(recipe, call, cards=cards, card_bytes=card_bytes, granule_bytes=granule_bytes)
    if layout is None:
        layout = virtual_layout(topology, recipe, call, space)
    if recipe.source:
        rules.check(plan := catalog.build(recipe, layout, call))
        return plan
    return _built(recipe, layout, call)


def _built(recipe: Recipe, layout: Layout, call: Call) -> Plan:
    """Build a plan once where it is short: other figures of a fabric, as intervals take hundreds of, mostly leave the
    ring as it is."""
    if call.ranks > PRICED_MAX_RANKS:
        return catalog.build(recipe, layout, call)
    kept = _kept(recipe, layout, call)
    plan = kept[0] if kept else catalog.build(recipe, layout, call)
    if not kept and plan.part(0).instruction_count * plan.ranks <= KEPT_INSTRUCTIONS_MAX:
        kept.append(plan)
    return plan


@lru_cache(PLANS_KEPT)
def _kept(recipe: Recipe, layout: Layout, call: Call) -> list[Plan]:
    return []


def _saved(topology: Topology, plan: Plan, space: Space) -> Plan:
    cards, card_bytes, granule_bytes = on_cards(topology, space, plan.ranks)
    owned = plan.layout.owned and cluster_memory(topology, plan.ranks) is not None
    check_fits(catalog.ring_of(plan), card_bytes, plan.ranks, cards, granule_bytes, owned=owned)
    return plan


def spoken(topology: Topology, case: Case, algorithm: str | None, space: Space) -> tuple[Topology, Plan, Choice]:
    """Plan a case on a space, and find the machine that speaks a protocol of it: NCCL's choice, else the first."""
    if space == topology.pool_space:
        topology = apart(topology)
        space = topology.pool_space
    if space.protocols is None:
        return topology, *planned(topology, case, algorithm, space)
    if algorithm is not None or not _sends(case.call):
        plan, choice = planned(topology, case, algorithm, space)
        first = space.protocols[0]
        reason = f"{choice.reason}; with {first.name}" if choice.reason else f"with {first.name}"
        return topology.speaking(space, first), plan, choice._replace(reason=reason)
    call = replace(case.call, in_place=case.in_place)
    spoken, recipe, _, reason = take(topology, space, call)
    home = next(its for its in spoken.spaces if its.name == space.name)
    return spoken, plan_of(spoken, recipe, call, home), Choice(recipe.name, reason)


def model_cards(model: CostModel, plan: Plan, space: Space) -> tuple[int, ...]:
    memory = cluster_memory(model.topology, plan.ranks) if plan.layout.owned else None
    return model.cards_of(space) + (model.cards_of(memory) if memory is not None else ())


def _sends(call: Call) -> bool:
    """Whether it is, or may be, one of the algorithms in which ranks send to each other."""
    return any(verb == call.collective and call.algorithm in (AUTO, name) for verb, name in RECIPES)
