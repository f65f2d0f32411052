"""Faults at every instruction of every rank, or at some of them; and the table of how the runs ended."""

from __future__ import annotations

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
    """Make a scenario of each collective in each variant, or of the template's own algorithm.

    Args:
        collectives: Names of collectives; empty: all.
        template: What all scenarios have in common.
        variant: A name, or ``every``.

    Raises:
        ArgumentError: There is no such collective or variant.
    """
    if template.algorithm is not None:
        own = load_algorithm(template.algorithm)
        return [template.model_copy(update={"collective": own.collective, "variant": own.name})]
    names = collectives or tuple(COLLECTIVES)
    clusters = template.ranks_per_cluster > 1 and template.integrity is None
    checked = template.integrity is not None
    pairs = [(name, each) for name in names for each in _variants(name, variant, clusters, checked)]
    found = [template.model_copy(update={"collective": name, "variant": each}) for name, each in pairs]
    for scenario in found:
        _ = scenario.call
    return found


def _variants(collective: str, variant: str, clusters: bool, checked: bool) -> list[str]:
    contract_of(collective)
    return variants(collective, clusters=clusters, checksums=checked) if variant == "every" else [variant]


def everywhere(base: Scenario, kinds: Sequence[str]) -> Iterator[Scenario]:
    """Put one fault before each instruction of each rank in the first call.

    Args:
        base: The scenario without a fault; its seed and adversary are kept.
        kinds: Names of kinds of faults.

    Yields:
        A scenario for each kind, rank and instruction.
    """
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
            for number in range(plan.part(rank).instruction_count):
                fault = FAULTS[kind].at(rank, When(call=0, instruction=number))
                script = Script(seed=base.script.seed, adversary=base.script.adversary, faults=(fault,))
                yield base.model_copy(update={"script": script})


def some(scenarios: Sequence[Scenario], count: int, seed: int) -> list[Scenario]:
    """Draw some of the scenarios.

    Args:
        scenarios: All scenarios.
        count: How many to draw; all if there are no more.
        seed: Decides which.

    Returns:
        The scenarios that were drawn, in their order.
    """
    if count >= len(scenarios):
        return list(scenarios)
    chosen = sorted(random.Random(seed).sample(range(len(scenarios)), count))
    return [scenarios[index] for index in chosen]


class ScenarioResult(NamedTuple):
    """What came of one scenario.

    Attributes:
        scenario: The scenario.
        verdict: The verdict on it.
        happened: Whether a fault came.
        why: If the verdict is not ok, which rank it is about and how that rank ended.
    """

    scenario: Scenario
    verdict: ScenarioVerdict
    happened: bool
    why: str


@dataclass
class FaultSweepRow:
    """Counts for one collective in one variant under one kind of fault.

    Attributes:
        collective: Name of the collective.
        variant: Name of the variant.
        fault: Name of the kind.
        verdicts: How often each verdict was given.
        unreached: Runs in which the fault never came.
    """

    collective: str
    variant: str
    fault: str
    verdicts: Counter[ScenarioVerdict] = field(default_factory=Counter)
    unreached: int = 0

    def plain(self) -> dict[str, object]:
        """Give the row as JSON has it."""
        counts = {verdict.value.replace(" ", "_"): self.verdicts[verdict] for verdict in ScenarioVerdict}
        row = {"collective": self.collective, "variant": self.variant, "fault": self.fault}
        return {**row, "scenarios": self.verdicts.total(), "unreached": self.unreached, **counts}


def sweep(
    scenarios: Sequence[Scenario], *, executor: Executor | None = None, tell: Callable[[ScenarioResult], None]
) -> list[FaultSweepRow]:
    """Run all scenarios.

    Args:
        scenarios: Each has a script of one fault.
        executor: Runs them; None for this process, one after the other.
        tell: Called with each result, in the scenarios' order.

    Returns:
        A row for each collective, variant and kind of fault.
    """
    results: list[ScenarioResult] = []
    for result in map(_one, scenarios) if executor is None else executor.map(_one, scenarios, chunksize=16):
        results.append(result)
        tell(result)
    return summed_up(results)


def summed_up(results: Iterable[ScenarioResult]) -> list[FaultSweepRow]:
    """Add up results of a sweep, or of a part of it: a row for each collective, variant and kind of fault."""
    rows: dict[tuple[str, str, str], FaultSweepRow] = {}
    for result in results:
        key = (result.scenario.collective, result.scenario.variant, result.scenario.script.faults[0].kind)
        row = rows.setdefault(key, FaultSweepRow(*key))
        row.verdicts[result.verdict] += 1
        row.unreached += not result.happened
    return list(rows.values())


def _one(scenario: Scenario) -> ScenarioResult:
    report = run(scenario)
    return ScenarioResult(scenario, report.verdict, bool(report.happened), report.why)
