"""All mutants of many plans, tried by any executor, in shares of a size that keeps every worker busy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from time import process_time

from cxlemu.plan import Instruction, Plan
from faults.mutate.cases import MutationCase
from faults.mutate.mutants import Mutant, pairs_apart
from faults.mutate.operators import RINGS
from faults.mutate.trial import Fate, MutantJudgement, Trial

SHARE = 60  # mutants that a worker takes at once


@dataclass
class MutationRow:
    """What became of the mutants of one plan. ``seconds`` are those of all workers."""

    case: MutationCase
    mutants: int
    pairs: int = 0  # of instructions two or more apart, of which operator "far" exchanges some
    operators: dict[str, Counter[Fate]] = field(default_factory=dict)  # of the mutants that each makes
    survivors: list[MutantJudgement] = field(default_factory=list)
    needless: list[MutantJudgement] = field(default_factory=list)  # deletions that are equivalent
    seconds: float = 0.0

    @property
    def fates(self) -> Counter[Fate]:
        return sum(self.operators.values(), Counter())

    @property
    def confirmed(self) -> int:
        return self.fates[Fate.CONFIRMED]

    @property
    def refused(self) -> int:
        return self.fates[Fate.REFUSED]

    @property
    def killed(self) -> int:
        """By a rule of plans, or by the prover."""
        return killed(self.fates)

    @property
    def equivalent(self) -> int:
        return equivalent(self.fates)

    @property
    def survived(self) -> int:
        return len(self.survivors)

    @property
    def judged(self) -> int:
        return sum(fates.total() for fates in self.operators.values())


def killed(fates: Counter[Fate]) -> int:
    return fates[Fate.REFUSED] + fates[Fate.CONFIRMED] + fates[Fate.HIDDEN] + fates[Fate.UNCONFIRMED]


def equivalent(fates: Counter[Fate]) -> int:
    return fates[Fate.EQUIVALENT] + fates[Fate.INDEBTED]


def survived(fates: Counter[Fate]) -> int:
    return sum(count for fate, count in fates.items() if fate.survived)


@lru_cache(maxsize=4)
def _trial(case: MutationCase) -> Trial:
    return Trial(case)


@dataclass(frozen=True)
class Share:
    """Some of a plan's mutants, and the time that they took."""

    case: MutationCase
    judgements: list[MutantJudgement]
    seconds: float


def judge(case: MutationCase, mutants: Sequence[Mutant]) -> Share:
    """Judge some mutants of a case, in a worker.

    Executions that confirm the prover's finding are not kept: their schedules are long.
    """
    begun, trial = process_time(), _trial(case)
    judgements = [trial.judge(mutant) for mutant in mutants]
    kept = [j if j.fate.survived else j._replace(shown=None) for j in judgements]
    return Share(case, kept, process_time() - begun)


def sweep(cases: Sequence[MutationCase], executor: Executor) -> Iterator[MutationRow]:
    """One row a case, given when its mutants are known and again whenever more are judged, until all are."""
    rows: dict[MutationCase, MutationRow] = {}
    futures: list[Future[Share]] = []
    for case in cases:
        mutants = list(_trial(case).mutants())
        rows[case] = MutationRow(case, len(mutants), pairs_apart(_trial(case).plan))
        for start in range(0, len(mutants), SHARE):
            futures.append(executor.submit(judge, case, mutants[start : start + SHARE]))
        yield rows[case]
    for future in as_completed(futures):
        share = future.result()
        row, plan = rows[share.case], _trial(share.case).plan
        row.seconds += share.seconds
        for judgement in share.judgements:
            row.operators.setdefault(judgement.mutant.operator, Counter())[judgement.fate] += 1
            if judgement.fate.survived:
                row.survivors.append(judgement)
            elif is_needless(plan, judgement):
                row.needless.append(judgement)
        yield row


def is_needless(plan: Plan, judgement: MutantJudgement) -> bool:
    """Say whether the plan would be as good without the mutated instruction.

    A signal is not needless if it lets other ranks go on sooner: before work that precedes the next signal of its line.
    """
    rank, stream, at, kind = judgement.mutant
    if judgement.fate is not Fate.EQUIVALENT or kind != "delete":
        return False
    here, *after = plan.part(rank).streams[stream].instructions[at:]

    def line(i: Instruction) -> tuple[int, int]:
        return plan.layout.doorbell_address(i.arg, i.value)

    if here.op not in RINGS:
        return True
    again = next((k for k, i in enumerate(after) if i.op in RINGS and line(i) == line(here)), 0)
    return all(i.op in RINGS for i in after[:again])
