"""Which plan a call on a modelled fabric takes, and which machine it takes it on."""

from dataclasses import replace

from collectives.algorithms import catalog
from collectives.algorithms.choose import Choice, choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.algorithms.modelled import Copies
from collectives.algorithms.nccl import RECIPES, Sends
from collectives.algorithms.nccl.protocols import take
from collectives.algorithms.nccl.room import room
from collectives.builder.recipes import Recipe
from collectives.defaults import AUTO
from collectives.in_heap import results_in_heap
from collectives.layouts import check_fits
from collectives.sweep.sweep import Case, load_algorithm
from collectives.sweep.virtual.rings import on_cards, virtual_layout
from cxlemu.cost import CostModel
from cxlemu.plan import Call, InHeap, Layout, Plan, rules
from cxlemu.topology import Space, Topology
from cxlemu.topology.clusters import apart, cluster_memory, ranks_per_cluster


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
            where = space or topology.pool_space
            ways = TwoLevelEstimate.of(topology, call.ranks) if levels and where == topology.pool_space else None
            copies = Copies.of(topology, call.ranks, where) if layout is None else None
            choice = choose(call.collective, call.nbytes, call.ranks, ways=ways, dtype=call.dtype, copies=copies)
        recipe = catalog.recipe(call.collective, choice.variant)
    return plan_of(topology, recipe, call, space or topology.pool_space, layout), choice


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
    plan = catalog.build(recipe, layout, call)
    if recipe.source:
        rules.check(plan)
    return plan


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
