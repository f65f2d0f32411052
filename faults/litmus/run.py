"""Runs litmus tests: searches every execution, and compares what is expected with what can happen."""

from dataclasses import dataclass
from functools import cached_property

from faults.explore.exhaustive import exhaustive
from faults.explore.result import Budget, Exploration, FinalState
from faults.litmus.condition import Condition
from faults.litmus.language import Expectation, Litmus
from faults.machine.schedule import Schedule
from faults.machine.steps import Machine
from faults.verdict import Verdict


@dataclass(frozen=True)
class LitmusResult:
    litmus: Litmus
    exploration: Exploration  # the search's result

    @property
    def complete(self) -> bool:
        """Whether the search saw every execution."""
        return self.exploration.verdict != Verdict.UNKNOWN

    @property
    def hangs(self) -> bool:
        """Whether the search found an execution that never ends."""
        return self.exploration.finding is not None

    def witness(self, condition: Condition) -> Schedule | None:
        """Return an execution at whose end the condition holds; None if the search found none."""
        outcome = self._seen(condition)
        return None if outcome is None else self.exploration.outcomes[outcome]

    def sees(self, condition: Condition) -> bool:
        """Say whether the search found an execution at whose end the condition holds."""
        return self._seen(condition) is not None

    def _seen(self, condition: Condition) -> FinalState | None:
        """Return the first outcome for which the condition holds; its schedule is not worked out."""
        return next((end for end in self.exploration.outcomes if condition.holds(self.litmus.values(end))), None)

    def verdict_of(self, expectation: Expectation) -> Verdict:
        """Judge an expectation: UNKNOWN if the outcome was not seen and the search is not complete.

        What is forbidden at the end of executions is UNKNOWN, too, where none ends.
        """
        seen = self.sees(expectation.condition)
        if not seen and not (self.complete and (expectation.allowed or self.exploration.outcomes)):
            return Verdict.UNKNOWN
        return Verdict.OK if seen == expectation.allowed else Verdict.VIOLATION

    @property
    def verdict_of_hangs(self) -> Verdict:
        """The verdict on ``hangs``; UNKNOWN if no hang was found and the search is not complete."""
        if not self.hangs and not self.complete:
            return Verdict.UNKNOWN
        return Verdict.OK if self.hangs == self.litmus.hangs else Verdict.VIOLATION

    @cached_property
    def verdict(self) -> Verdict:
        """The worst of all verdicts: a violation, then unknown, then ok."""
        verdicts = {self.verdict_of_hangs, *map(self.verdict_of, self.litmus.expectations)}
        return next(v for v in (Verdict.VIOLATION, Verdict.UNKNOWN, Verdict.OK) if v in verdicts)

    def outcomes(self) -> list[dict[str, int]]:
        """List the outcomes, sorted: the value of each register and of each word of the pool.

        Every outcome is there if the search is `complete`.
        """
        ends = {tuple(self.litmus.values(outcome).items()) for outcome in self.exploration.outcomes}
        return [dict(end) for end in sorted(ends)]


def run(litmus: Litmus, budget: Budget, engine: str) -> LitmusResult:
    """Search every execution of a litmus test, past hangs."""
    return LitmusResult(litmus, exhaustive(Machine(litmus.program), budget, engine, past_hangs=True))
