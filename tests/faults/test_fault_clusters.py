"""Clusters in campaigns, sweeps and explorations: what is missing between hosts is found, inside one only doorbells."""

from collections import Counter

import pytest

from collectives.algorithms.catalog import variants
from cxlemu.errors import ArgumentError
from cxlemu.plan import Op
from faults.campaign.case import CampaignCase
from faults.campaign.judge import judge, layout_in_lockstep, meant_plans, mutated
from faults.campaign.shrink import shrink
from faults.campaign.spec import Spec
from faults.explore.plans import explore_plan
from faults.inject.fault import Fault, When
from faults.inject.scenario import Scenario, run
from faults.inject.script import NatureRates, Script
from faults.inject.sweep import bases, everywhere, some
from faults.mutate.mutants import mutants
from faults.prove import prove_calls
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

TWO_HOSTS = CampaignCase(collective="all_gather", variant="hierarchical", ranks=4, nbytes=150, cluster=2)
XLINK = CampaignCase(collective="all_gather", variant="hierarchical", ranks=8, nbytes=150, config="two-clusters")


def with_seed(case: CampaignCase, seed: int) -> CampaignCase:
    return case.model_copy(update={"script": Script(seed=seed, adversary=NatureRates())})


# --- worlds ----------------------------------------------------------------------------------------------------------


def test_ranks_of_a_cluster_share_a_host_and_their_memories_lie_behind_the_pool() -> None:
    assert (TWO_HOSTS.hosts, TWO_HOSTS.call.cluster) == ((0, 0, 1, 1), 2)
    assert (XLINK.hosts, XLINK.call.cluster) == ((0,) * 4 + (1,) * 4, 4)
    assert not layout_in_lockstep(TWO_HOSTS).owned
    layout = layout_in_lockstep(XLINK)
    assert layout.owned and layout.cards == layout.pool_cards + 8


def test_a_campaign_takes_the_ranks_that_clusters_have() -> None:
    def shapes(**given: object) -> set[tuple[int, str]]:
        spec = Spec.model_validate({"collectives": ("gather",), "kinds": ("nature",)} | given)
        return {(case.ranks, case.variant) for case in spec.sweep(1)}

    checkable = {"naive", "aggregate", "all", "line", "zero_copy"}
    flat = checkable | {"batched"}
    assert shapes() == {(ranks, variant) for ranks in (2, 3) for variant in flat}
    assert shapes(cluster=2) == {(4, variant) for variant in flat | {"hierarchical"}}
    assert shapes(config="two-clusters") == {(8, variant) for variant in flat | {"hierarchical"}}
    assert shapes(cluster=2, integrity="crc32c") == {(4, variant) for variant in checkable}  # the others carry none
    with pytest.raises(ArgumentError, match="two-clusters already sets each host's number of ranks"):
        shapes(config="two-clusters", cluster=2)
    with pytest.raises(ArgumentError, match="needs clusters"):
        shapes(variants=("hierarchical",))


# --- campaigns -------------------------------------------------------------------------------------------------------


@pytest.mark.each_value_once
@pytest.mark.parametrize("collective", ["all_gather", "all_reduce", "all_to_all"])
@pytest.mark.parametrize("case", [TWO_HOSTS, XLINK], ids=["hosts", "xlink"])
def test_nothing_is_wrong_whatever_caches_do(case: CampaignCase, collective: str) -> None:
    op = "sum" if collective == "all_reduce" else "none"
    for seed in range(2):
        right = case.model_copy(update={"collective": collective, "op": op})
        assert judge(with_seed(right.check(), seed)).kind == "right"


def deletions(case: CampaignCase) -> list[tuple[Op, str]]:
    """Of rank 0."""
    plan = meant_plans(case)[0]
    found = [m for m in mutants(plan) if (m.rank, m.kind) == (0, "delete")]
    return [(Op(plan.part(0).streams[m.stream].instructions[m.at].op), str(m)) for m in found]


@pytest.mark.deep
def test_what_is_missing_between_hosts_is_found_and_inside_a_host_only_doorbells_matter() -> None:
    """Three lines cross the pool each way; what their cluster reads, too, comes by way of the host's own cache."""
    found: Counter[tuple[Op, Verdict]] = Counter()
    for op, mutant in deletions(TWO_HOSTS):
        case = TWO_HOSTS.model_copy(update={"mutant": mutant}).check()
        proof = prove_calls(mutated(case, meant_plans(case)), hosts=case.hosts)
        found[op, proof.verdict] += 1
        fails = any(judge(with_seed(case, seed)).fails for seed in range(20 if proof.violation else 1))
        assert fails == (proof.verdict is Verdict.VIOLATION), (op, mutant)
    chain = {(op, verdict): found[op, verdict] for op in (Op.FLUSH, Op.FENCE, Op.INVALIDATE) for verdict in Verdict}
    assert all(chain[op, Verdict.VIOLATION] == 3 and chain[op, Verdict.OK] == 6 for op, _ in chain)
    assert found[Op.SIGNAL, Verdict.OK] == found[Op.WAIT, Verdict.OK] == 0
    assert found[Op.SIGNAL, Verdict.VIOLATION] + found[Op.WAIT, Verdict.VIOLATION] == 19


@pytest.mark.deep
def test_what_is_found_shrinks_and_its_token_replays() -> None:
    flush = next(
        case
        for op, mutant in deletions(XLINK)
        if op == Op.FLUSH
        and (case := with_seed(XLINK.model_copy(update={"mutant": mutant}).check(), 0))
        and judge(case).fails
    )
    shrunk = shrink(flush, judge(flush), budget_s=20.0)
    assert shrunk.case.variant == "hierarchical" and shrunk.case.ranks_per_cluster > 1
    found = cxlemu(
        *("faults", "campaign", "all_gather", "--cluster", "2", "-n", "4", "--variant", "hierarchical"),
        *("--mutant", next(m for op, m in deletions(TWO_HOSTS) if op == Op.SIGNAL), "--seeds", "1", "-j", "1"),
        code=1,
    )
    [command] = {line.strip() for line in found.output.splitlines() if line.strip().startswith("cxlemu replay ")}
    assert "fails again, exactly as recorded" in cxlemu(*command.split()[1:], code=1).output


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda runs: runs == 4)
@pytest.mark.parametrize(
    ("world", "runs"), [({"ranks": 4, "cluster": 2}, 24), ({"ranks": 8, "config": "two-clusters"}, 4)], ids=str
)
def test_every_fault_is_survived_or_detected(world: dict[str, object], runs: int) -> None:
    template = Scenario.model_validate({"collective": "all_gather", "deadline_s": 0.5} | world)
    scenarios = [
        each
        for base in bases((), template)
        if base.variant == "hierarchical"
        for each in everywhere(base, ("crash", "kill", "poison", "lose_card", "link_down", "skip_doorbell"))
    ]
    on_levels = {
        base.collective for base in bases((), template) if "hierarchical" in variants(base.collective, clusters=True)
    }
    assert {each.collective for each in scenarios} == on_levels and len(on_levels) > 6
    for scenario in some(scenarios, runs, seed=5):
        report = run(scenario)
        assert report.ok, (scenario.collective, str(scenario.script.faults[0]), report.why)


def test_a_rank_of_many_that_is_a_little_slow_is_not_taken_for_dead() -> None:
    """In turns no sleep is shorter than a turn of everybody's: a hundred short ones are not a hundred turns."""
    for collective in ("all_gather", "scatter"):
        fault = Fault(kind="slow", rank=1, when=When(call=0, instruction=0), seconds=0.001)
        scenario = Scenario(collective=collective, variant="hierarchical", ranks=4, cluster=2, nbytes=152)
        report = run(scenario.model_copy(update={"script": Script(faults=(fault,))}))
        assert (report.verdict.value, len(report.happened)) == ("survived", 1), report.why


# --- explorations ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", ["broadcast", "gather", "scatter", "all_gather"])
def test_every_execution_of_a_collective_on_two_hosts_is_right(collective: str) -> None:
    done = cxlemu("explore", collective, "-n", "4", "--cluster", "2", "--variant", "hierarchical", code=0)
    assert "2 ranks a host, 4 ranks: ok, in every execution" in done.output, done.output


def test_an_exploration_finds_what_the_pool_needs_and_the_host_does_not() -> None:
    case = TWO_HOSTS.model_copy(update={"collective": "gather", "nbytes": 64, "calls": 1})
    for op, mutant in deletions(case):
        if op in (Op.FLUSH, Op.FENCE):
            [plan] = mutated(case.model_copy(update={"mutant": mutant}), meant_plans(case))
            assert explore_plan(plan, case.hosts).verdict is prove_calls([plan], hosts=case.hosts).verdict, mutant


@with_rows(
    (["explore", "gather", "-n", "3", "--cluster", "2"], "3 ranks are not on hosts of 2 each"),
    (["explore", "gather", "-n", "4", "--variant", "hierarchical"], "needs clusters"),
    (
        ["faults", "sweep", "gather", "-c", "two-clusters", "--cluster", "2"],
        "already sets each host's number of ranks",
    ),
    (["faults", "sweep", "gather", "-n", "3", "--cluster", "2"], "-n 3 is not a multiple of --cluster 2"),
)
def test_clusters_that_there_are_not_are_refused(arguments: list[str], says: str) -> None:
    done = cxlemu(*arguments)
    assert (done.exit_code, says in done.output) == (2, True), done.output
