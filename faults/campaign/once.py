"""A small campaign inside a test: the first failure ends it."""

from __future__ import annotations

from faults.campaign.judge import judge
from faults.campaign.run import Finding
from faults.campaign.shrink import shrink
from faults.campaign.spec import Spec

SHRINK_BUDGET_S = 10.0


class WentWrong(AssertionError):
    """``finding`` is the failure, made small."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(f"{finding.judgement.detail}\nsmallest: {finding.smallest}\nagain: {finding.command}")
        self.finding = finding


def check(spec: Spec, *, seeds: int, seed: int) -> None:
    """Every case of ``spec`` with ``seeds`` seeds from ``seed`` on. Raises WentWrong, or as `Spec.sweep`."""
    for case in spec.sweep(seeds):
        script = case.script.model_copy(update={"seed": seed + case.script.seed})
        case = case.model_copy(update={"script": script})
        found = judge(case)
        if found.fails:
            shrunk = shrink(case, found, budget_s=SHRINK_BUDGET_S)
            raise WentWrong(Finding(shrunk.judgement, case, shrunk.case, 1, shrunk.tried, shrunk.done))
