"""Faults at every instruction of every rank, or at some of them; and the table of how the runs ended."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from collectives.algorithms.catalog import build, variants
from collectives.contracts import COLLECTIVES, contract_of
from collectives.in_heap import results_in_heap, told_in_heap
from collectives.layouts import check_fits_world, world_layout
from collectives.sweep.sweep import load_algorithm
from cxlemu.plan import rules
from faults.inject.fault import FAULTS, When
from faults.inject.judge import ScenarioVerdict
from faults.inject.scenario import REGION_BYTES, Scenario, run
from faults.inject.script import Script


def bases(collectives: Sequence[str], template: Scenario, *, variant: str = "every") -> list[Scenario]:
    """Make a scenario of each collective in each variant, or of the template's own algorithm."""
    if template.algorithm is not None:
        own = load_algorithm(template.algorithm)
        return [template.model_copy(update={"collective": own.collective, "variant": own.name})]
    names = collectives or tuple(COLLECTIVES)
    clusters = template.ranks_per_cluster > 1 and template.integrity is None
    checked = template.integrity is not None
    pairs = [(name, each) for name in names for each in _variants(name, variant, clusters, checked)]
    scenarios = [template.model_copy(update={"collective": name, "variant": each}) for name, each in pairs]
    for scenario in scenarios:
        _ = scenario.call
    return scenarios


def _variants(collective: str, variant: str, clusters: bool, checked: bool) -> list[str]:
    contract_of(collective)
    return variants(collective, clusters=clusters, checksums=checked) if variant == "every" else [variant]


def everywhere(base: Scenario, kinds: Sequence[str]) -> Iterator[Scenario]:
    """Put one fault before each instruction of each rank in the first call that it fits; seed and adversary stay."""
    topology, chosen = base.world().topology, base.chosen
    layout = base.ring
    if layout is None:
        layout = world_layout(topology, base.ranks, region_bytes=REGION_BYTES)
    else:
        check_fits_world(layout, topology, base.ranks)
    call = replace(base.call, in_place=base.in_place)
    if chosen.spec.pushes:
        call = replace(call, heap=call.heap or results_in_heap())
    elif chosen.spec.zero_copy and call.heap is None:
        call = replace(call, heap=told_in_heap(call, layout, output=base.in_place))
    plan = build(chosen, layout, call)
    if chosen.source:
        rules.check(plan)
    for kind in kinds:
        for rank in range(base.ranks):
            for number in FAULTS[kind].places(plan.part(rank)):
                fault = FAULTS[kind].at(rank, When(call=0, instruction=number))
                script = Script(seed=base.script.seed, adversary=base.script.adversary, faults=(fault,))
                yield base.model_copy(update={"script": script})


def some(scenarios: Sequence[Scenario], count: int, seed: int) -> list[Scenario]:
    """Draw ``count`` of the scenarios, in their order; all if there are no more."""
    if count >= len(scenarios):
        return list(scenarios)
    chosen = sorted(random.Random(seed).sample(range(len(scenarios)), count))
    return [scenarios[index] for index in chosen]


class ScenarioResult(NamedTuple):
    scenario: Scenario
    verdict: ScenarioVerdict
    # if the verdict is not ok, which rank it is about and how that rank ended; if the fault never happened, why
    why: str


@dataclass
class FaultSweepRow:
    """Counts for one collective in one variant under one kind of fault."""

    collective: str
    variant: str
    fault: str  # name of the kind
    verdicts: Counter[ScenarioVerdict] = field(default_factory=Counter)  # how often each verdict was given

    def plain(self) -> dict[str, object]:
        counts = {verdict.value.replace(" ", "_"): self.verdicts[verdict] for verdict in ScenarioVerdict}
        row = {"collective": self.collective, "variant": self.variant, "fault": self.fault}
        return {**row, "scenarios": self.verdicts.total(), **counts}


def sweep(
    scenarios: Sequence[Scenario], *, executor: Executor | None = None, tell: Callable[[ScenarioResult], None]
) -> list[FaultSweepRow]:
    """Run all scenarios, and return a row per collective, variant and kind; ``tell`` gets the results in order."""
    results: list[ScenarioResult] = []
    for result in map(_one, scenarios) if executor is None else executor.map(_one, scenarios, chunksize=16):
        results.append(result)
        tell(result)
    return summed_up(results)


def summed_up(results: Iterable[ScenarioResult]) -> list[FaultSweepRow]:
    """Add up results of a sweep, or of a part of it: a row for each collective, variant and kind of fault."""
    rows: dict[tuple[str, str, str], FaultSweepRow] = {}
    for result in results:
        key = key_of(result.scenario)
        row = rows.setdefault(key, FaultSweepRow(*key))
        row.verdicts[result.verdict] += 1
    return list(rows.values())


def key_of(scenario: Scenario) -> tuple[str, str, str]:
    """Return the collective, the variant and the kind of fault, by which results are added up."""
    return scenario.collective, scenario.variant, scenario.script.faults[0].kind


def _one(scenario: Scenario) -> ScenarioResult:
    report = run(scenario)
    return ScenarioResult(scenario, report.verdict, report.why)
