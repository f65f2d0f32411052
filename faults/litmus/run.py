"""Runs litmus tests: every execution, and what is expected against what can happen."""

from __future__ import annotations

from dataclasses import dataclass

from faults.explore.check import exhaustive
from faults.explore.result import Budget, Exploration
from faults.litmus.condition import Condition
from faults.litmus.language import Expectation, Litmus
from faults.machine.schedule import Schedule
from faults.machine.steps import Machine
from faults.verdict import Verdict


@dataclass(frozen=True)
class LitmusResult:
    litmus: Litmus
    exploration: Exploration

    @property
    def complete(self) -> bool:
        return self.exploration.verdict != Verdict.UNKNOWN

    @property
    def hangs(self) -> bool:
        return self.exploration.finding is not None

    def witness(self, condition: Condition) -> Schedule | None:
        """An execution that ends so."""
        for outcome, schedule in self.exploration.outcomes.items():
            if condition.holds(self.litmus.values(outcome)):
                return schedule
        return None

    def verdict_of(self, expectation: Expectation) -> Verdict:
        """What was seen is certain; that something is never seen takes the whole search."""
        seen = self.witness(expectation.condition) is not None
        if not seen and not self.complete:
            return Verdict.UNKNOWN
        return Verdict.OK if seen == expectation.allowed else Verdict.VIOLATION

    @property
    def verdict_of_hangs(self) -> Verdict:
        if not self.hangs and not self.complete:
            return Verdict.UNKNOWN
        return Verdict.OK if self.hangs == self.litmus.hangs else Verdict.VIOLATION

    @property
    def verdict(self) -> Verdict:
        verdicts = {self.verdict_of_hangs, *map(self.verdict_of, self.litmus.expectations)}
        return next(v for v in (Verdict.VIOLATION, Verdict.UNKNOWN, Verdict.OK) if v in verdicts)

    def outcomes(self) -> list[dict[str, int]]:
        """The complete set, if the search was: registers and the pool."""
        ends = {tuple(self.litmus.values(outcome).items()) for outcome in self.exploration.outcomes}
        return [dict(end) for end in sorted(ends)]


def run(litmus: Litmus, budget: Budget, engine: str) -> LitmusResult:
    return LitmusResult(litmus, exhaustive(Machine(litmus.program), budget, engine, past_hangs=True))
