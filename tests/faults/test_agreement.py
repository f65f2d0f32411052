"""The prover and the explorer agree on plans and on all of their mutants. `scripts/agree` has all of them."""

from collections import Counter

import pytest

from cxlemu.plan.features import features
from faults.mutate import agreement
from faults.mutate.agreement import opinions
from faults.mutate.cases import MutationCase, plan_of, shipped_and_checked
from faults.prove import prove_calls
from faults.verdict import Verdict

CASES = [
    (MutationCase("all_gather", "all", 2), 1),
    (MutationCase("broadcast", "naive", 2), 2),
    (MutationCase("broadcast", "all", 3), 1),
    (MutationCase("all_reduce", "line", 2), 2),
    (MutationCase("scatter", "zero_copy", 2), 1),
    (MutationCase("barrier", "line", 3), 2),
    (MutationCase("all_gather_gemm", "fused", 2), 1),
    (MutationCase("gemm_reduce_scatter", "medium", 2), 1),
    (MutationCase("scatter", "hierarchical", 4, cluster=2), 1),
    (MutationCase("broadcast", "naive", 2, checked=True), 2),
    (MutationCase("gather", "push", 2), 1),
    (MutationCase("reduce", "binomial", 2), 1),
]


FEW = (("all_gather", False), ("broadcast", True), ("gather", False))


@pytest.mark.deep(rows=lambda case: (case.collective, case.checked) not in FEW)
@pytest.mark.parametrize(("case", "calls"), CASES, ids=str)
def test_they_agree_on_a_plan_and_on_all_of_its_mutants(case: MutationCase, calls: int) -> None:
    found = list(opinions(case, calls))
    assert [one for one in found if not one.agree] == []
    counted = Counter(one.prover for one in found)
    assert found[0].prover is Verdict.OK and counted[Verdict.VIOLATION] > 5 and counted[Verdict.OK] > 3


def test_the_plans_have_every_feature_of_the_shipped_ones() -> None:
    """Whether each judge models each of them, test_features.py asks."""
    shipped = frozenset().union(*(features(plan_of(case)) for case in shipped_and_checked(2)))
    assert frozenset().union(*(features(plan_of(case)) for case, _ in CASES)) == shipped


@pytest.mark.parametrize("rule", ["fresh", "landed", "order"])
def test_a_prover_without_one_of_its_rules_is_contradicted(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "prove_calls", lambda plans: prove_calls(plans, without={rule}))
    contradicted = [one for one in opinions(MutationCase("gather", "naive", 2, rounds=2)) if not one.agree]
    assert {(one.prover, one.explorer) for one in contradicted} == {(Verdict.OK, Verdict.VIOLATION)}
