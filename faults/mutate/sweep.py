"""All mutants of many plans, tried by any executor, in shares of a size that keeps every worker busy."""

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
    case: MutationCase
    mutants: int
    # count of pairs of instructions that are two or more apart, of which the operator "far" exchanges some
    pairs: int = 0
    # by operator: how often each fate befell its mutants
    operators: dict[str, Counter[Fate]] = field(default_factory=dict)
    survivors: list[MutantJudgement] = field(default_factory=list)
    # the judgements of equivalent deletions, whose instructions the plan does not need
    needless: list[MutantJudgement] = field(default_factory=list)
    seconds: float = 0.0  # processor time of all workers together

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
        """Count of mutants that a rule of plans or the prover rejects, and rightly, as far as executions show it."""
        return killed(self.fates)

    @property
    def equivalent(self) -> int:
        """Count of mutants that the prover proves right."""
        return equivalent(self.fates)

    @property
    def survived(self) -> int:
        return len(self.survivors)

    @property
    def judged(self) -> int:
        """Count of mutants that were judged so far."""
        return sum(fates.total() for fates in self.operators.values())


def killed(fates: Counter[Fate]) -> int:
    """Count the mutants that a rule of plans or the prover rejects, but for those that an execution should show."""
    return fates[Fate.REFUSED] + fates[Fate.CONFIRMED] + fates[Fate.HIDDEN]


def equivalent(fates: Counter[Fate]) -> int:
    """Count the mutants that the prover proves right."""
    return fates[Fate.EQUIVALENT] + fates[Fate.INDEBTED]


def survived(fates: Counter[Fate]) -> int:
    """Count the mutants about which prover and executions disagree, or the prover cannot tell."""
    return sum(count for fate, count in fates.items() if fate.survived)


@lru_cache(maxsize=4)
def _trial(case: MutationCase) -> Trial:
    return Trial(case)


@dataclass(frozen=True)
class Share:
    """Some of a plan's mutants, judged by one worker."""

    case: MutationCase
    judgements: list[MutantJudgement]  # one for each mutant
    seconds: float  # processor time that they took


def judge(case: MutationCase, mutants: Sequence[Mutant]) -> Share:
    """Judge some mutants of a case, in a worker.

    Executions that confirm the prover's finding are not kept: their schedules are long.
    """
    begun, trial = process_time(), _trial(case)
    judgements = [trial.judge(mutant) for mutant in mutants]
    kept = [j if j.fate.survived else j._replace(shown=None) for j in judgements]
    return Share(case, kept, process_time() - begun)


def sweep(cases: Sequence[MutationCase], executor: Executor) -> Iterator[MutationRow]:
    """Judge all mutants of all cases; yield a case's row again whenever more of its mutants are judged."""
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
    rank, stream, index, kind = judgement.mutant
    if judgement.fate is not Fate.EQUIVALENT or kind != "delete":
        return False
    here, *after = plan.part(rank).streams[stream].instructions[index:]

    def line(i: Instruction) -> tuple[int, int]:
        return plan.layout.doorbell_address(i.arg, i.value)

    if here.op not in RINGS:
        return True
    again = next((k for k, i in enumerate(after) if i.op in RINGS and line(i) == line(here)), 0)
    return all(i.op in RINGS for i in after[:again])
