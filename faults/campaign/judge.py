"""Runs one case and judges it: the one function that campaigns, shrinking and replays share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from collectives.algorithms.catalog import build
from collectives.layouts import world_layout
from cxlemu.plan import Layout, Plan
from cxlemu.rounding import round_up
from cxlemu.topology.clusters import memories_behind_pool
from faults.campaign.case import CampaignCase
from faults.campaign.record import Execution
from faults.inject import ScenarioVerdict, run
from faults.inject.scenario import REGION_BYTES
from faults.lockstep.counterexample import CallSequence, Counterexample, CounterexampleKind
from faults.lockstep.orders import Order, in_random_nature, replay
from faults.lockstep.places import data_lines
from faults.mutate.mutants import Mutant, apply
from faults.zero_copy_calls import lent_if_zero_copy, with_heap

SLOTS = 2  # few: slots are soon reused, and lines stale
SLOT_RANK_BYTES = 1024
INTERLEAVE_BYTES = 256
NATURE_RATE = 0.2

RIGHT, NEVER = "right", ScenarioVerdict.NEVER.value
FINE = frozenset({RIGHT, *(verdict.value for verdict in ScenarioVerdict if verdict.ok)})


@dataclass(frozen=True)
class Judgement:
    """What came of a case. Equal findings have kind, rule and place in common."""

    kind: str  # one of FINE, or what is wrong
    rule: str = ""  # what was broken: a mutant, kinds of faults, or every schedule
    place: str = ""  # where, such as a collective and its variant
    detail: str = ""  # a sentence for people

    @property
    def fails(self) -> bool:
        return self.kind not in FINE

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.rule, self.place

    def plain(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Judgement:
        """Read a judgement from JSON; a missing field is empty, and each is cut off after 4000 characters."""
        return cls(*(str(plain.get(name, ""))[:4000] for name in ("kind", "rule", "place", "detail")))


def judge(case: CampaignCase) -> Judgement:
    """Run a case and judge it; this is deterministic for ranks in lockstep and in turns."""
    return _judged_in_lockstep(case) if case.launch == "lockstep" else _judged_with_faults(case)


def _judged_with_faults(case: CampaignCase) -> Judgement:
    report = run(case.scenario())
    kinds = "+".join(sorted({fault.kind for fault in case.script.faults})) or "nature"
    place = f"{case.collective} {case.variant}"
    if report.verdict is ScenarioVerdict.WRONG_ERROR:  # the same wrong error in several algorithms has one cause
        place = report.why.partition(": ")[2].partition(":")[0]
    return Judgement(report.verdict.value, kinds, place, report.why)


def executed(case: CampaignCase) -> Execution:
    """Run a case in lockstep once more, as an execution that can be watched move by move."""
    shown, plans, meant = _run_in_lockstep(case)
    given, right = CallSequence.of(plans), CallSequence.of(meant)
    return Execution(
        layout_in_lockstep(case),
        list(zip(given.plans, given.inputs, strict=True)),
        shown.schedule,
        hosts=case.hosts,
        meant=list(zip(right.plans, right.inputs, strict=True)),
    )


def _judged_in_lockstep(case: CampaignCase) -> Judgement:
    shown, _, _ = _run_in_lockstep(case)
    if shown.kind is CounterexampleKind.NOTHING:
        return Judgement(RIGHT)
    return Judgement(
        shown.kind.value, case.mutant or "every schedule", f"{case.collective} {case.variant}", shown.detail
    )


def _run_in_lockstep(case: CampaignCase) -> tuple[Counterexample, list[Plan], list[Plan]]:
    meant = meant_plans(case)
    plans = mutated(case, meant)
    program = CallSequence.of(meant, case.hosts).with_plan(meant[0], plans[0])
    return program.run(_order(case, plans)), plans, meant


def _order(case: CampaignCase, plans: list[Plan]) -> Order:
    moves = case.schedule
    if moves is not None:
        return replay(moves)
    return in_random_nature(case.script.seed, sorted(set(case.hosts)), data_lines(plans), NATURE_RATE)


def layout_in_lockstep(case: CampaignCase) -> Layout:
    """Make a ring just large enough that a call takes one round or a few."""
    cards = min(case.topology.pool_card_count, 2) if case.topology else 2
    room = round_up(max(SLOT_RANK_BYTES * case.ranks, case.nbytes), INTERLEAVE_BYTES * cards) // cards
    doorbells = 2 * (case.ranks + 1)
    layout = Layout(case.ranks, cards, SLOTS, room, doorbells, INTERLEAVE_BYTES)
    if case.topology and memories_behind_pool(case.topology, case.ranks):
        more: dict[str, Any] = {"doorbells_per_rank": 2 * doorbells, "own_doorbells": doorbells}
        layout = replace(layout, cards=cards + case.ranks, owned=True, **more)
    return with_heap(layout)


def meant_plans(case: CampaignCase) -> list[Plan]:
    """Build the plans of the case's calls without any mistake: the same plan for each."""
    if case.launch == "lockstep":
        recipe = case.recipe()
        return [build(recipe, layout_in_lockstep(case), lent_if_zero_copy(case.call, recipe))] * case.calls
    scenario, recipe = case.scenario(), case.recipe()
    layout = world_layout(scenario.world().topology, case.ranks, region_bytes=REGION_BYTES)
    call = replace(lent_if_zero_copy(scenario.call, recipe), in_place=scenario.in_place)
    return [build(recipe, layout, call)] * case.calls


def mutated(case: CampaignCase, plans: list[Plan]) -> list[Plan]:
    """Make the case's mistake in its plans; return ``plans`` themselves if it has none."""
    if case.mutant is None:
        return plans
    mutant = Mutant.parse(case.mutant)
    return [apply(plans[0], mutant)] * len(plans)
