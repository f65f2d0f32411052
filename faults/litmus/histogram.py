"""What a litmus test ended with on hardware, counted, and what that says about hardware and model."""

from dataclasses import dataclass, field

from faults.litmus.condition import Condition
from faults.litmus.language import Expectation, Litmus
from faults.verdict import Verdict

Values = tuple[int, ...]


@dataclass(frozen=True)
class LitmusTask:
    litmus: Litmus
    # every outcome that the abstract machine has, the values in the order of ``litmus.names``; None where that is not
    # known
    possible: frozenset[Values] | None = None


@dataclass
class Histogram:
    """How often a test ended how."""

    task: LitmusTask
    # for each outcome, the values in the order of ``litmus.names``, how many rounds ended so
    counts: dict[Values, int] = field(default_factory=dict)
    hangs: int = 0  # rounds in which a rank waited for what no rank could bring any more
    wanted: int = 0  # rounds that were asked for
    seconds: float = 0.0  # how long they took
    skipped: str = ""  # why the test was not run; empty if it was

    @property
    def rounds(self) -> int:
        return sum(self.counts.values()) + self.hangs

    def add(self, values: Values, count: int) -> None:
        self.counts[values] = self.counts.get(values, 0) + count

    def seen(self, condition: Condition) -> int:
        return sum(count for values, count in self.counts.items() if condition.holds(self.named(values)))

    def named(self, values: Values) -> dict[str, int]:
        return dict(zip(self.task.litmus.names, values, strict=True))

    def observation(self, condition: Condition) -> str:
        """Say "never", "sometimes" or "always", of all rounds."""
        count = self.seen(condition)
        return "never" if not count else "always" if count == self.rounds else "sometimes"

    def foreign(self, values: Values) -> bool:
        """Whether the abstract machine is known not to have this outcome."""
        return self.task.possible is not None and values not in self.task.possible

    def breaks(self, values: Values) -> bool:
        """Whether this outcome is forbidden, by the test or by the abstract machine."""
        named = self.named(values)
        return self.foreign(values) or any(
            not e.allowed and e.condition.holds(named) for e in self.task.litmus.expectations
        )

    @property
    def forbidden(self) -> tuple[Expectation, ...]:
        return tuple(e for e in self.task.litmus.expectations if not e.allowed and self.seen(e.condition))

    @property
    def unseen(self) -> tuple[Expectation, ...]:
        return tuple(e for e in self.task.litmus.expectations if e.allowed and not self.seen(e.condition))

    @property
    def impossible(self) -> tuple[Expectation, ...]:
        """What the test allows and the abstract machine is known not to have."""
        ends = None if self.task.possible is None else [self.named(values) for values in self.task.possible]
        allowed = [] if ends is None else [e for e in self.task.litmus.expectations if e.allowed]
        return tuple(e for e in allowed if not any(map(e.condition.holds, ends or [])))

    @property
    def verdict(self) -> Verdict:
        """Violation if a round ended as none may, or the test allows what no execution can be; unknown if none was run.

        What was not seen proves nothing.
        """
        hangs = self.hangs and not self.task.litmus.hangs
        if hangs or any(map(self.breaks, self.counts)) or (self.impossible and not self.skipped):
            return Verdict.VIOLATION
        return Verdict.UNKNOWN if self.skipped or not self.rounds else Verdict.OK
