"""Two judges that share nothing must say the same of a plan and of each of its mutants.

The prover decides all executions at once, by happens-before; the explorer walks through them, on the abstract machine.
A plan on which they disagree shows a mistake in one of them.
"""

from collections.abc import Iterator
from typing import NamedTuple

from cxlemu.plan import Plan
from cxlemu.plan.rules import findings
from faults.explore.plans import explore_plan
from faults.explore.result import Budget
from faults.mutate.cases import MutationCase, plan_of
from faults.mutate.mutants import Mutant, apply, mutants
from faults.prove import prove_calls
from faults.verdict import Verdict

BUDGET = Budget(states=2_000_000, seconds=60.0)


class Opinions(NamedTuple):
    """The verdicts of prover and explorer on the calls of a plan, with a mistake or without one."""

    mutant: Mutant | None  # the mistake; None: the plan as it is
    prover: Verdict
    explorer: Verdict
    why: str  # what each of them found, for people

    @property
    def agree(self) -> bool:
        return self.prover is self.explorer is not Verdict.UNKNOWN


def opinions(case: MutationCase, calls: int = 1, budget: Budget = BUDGET) -> Iterator[Opinions]:
    """Ask both judges about a plan, and about every mutant of it that obeys the rules of plans."""
    plan = plan_of(case)
    yield _opinions(None, plan, calls, budget)
    for mutant in mutants(plan):
        mutated = apply(plan, mutant)
        if next(findings(mutated), None) is None:
            yield _opinions(mutant, mutated, calls, budget)


def _opinions(mutant: Mutant | None, plan: Plan, calls: int, budget: Budget) -> Opinions:
    proof = prove_calls([plan] * calls)
    explored = explore_plan([plan] * calls, budget=budget)
    reason = explored.finding.text if explored.finding else explored.reason
    return Opinions(
        mutant, proof.verdict, explored.verdict, f"prover: {proof.reason or '-'}; explorer: {reason or '-'}"
    )
