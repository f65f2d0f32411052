"""Collectives on two levels: the same results, proved, broken on purpose, run with real bytes, costed and chosen."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, load_plan, recipe, variants
from collectives.algorithms.choose import choose
from collectives.algorithms.hierarchical.estimate import TwoLevelEstimate
from collectives.algorithms.hierarchical.levels import HIERARCHICAL
from collectives.builder.recipes import with_checksums
from collectives.checking.symbolic import verify
from collectives.communicator.communicator import Communicator
from collectives.sweep.sweep import Case as Row
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.errors import ArgumentError, ContractError, PlanError
from cxlemu.memory import AdversaryRates, MemorySpec
from cxlemu.plan import DTYPES, Call, Kind, Layout, Op, Plan
from cxlemu.plan import file as plan_file
from cxlemu.plan.rules import check
from cxlemu.topology import Topology
from cxlemu.topology.clusters import cluster_memory, cluster_sizes, ranks_per_cluster
from cxlemu.world import RankContext, launch
from faults.lockstep.lockstep import Lockstep
from faults.lockstep.orders import in_random_order, slow
from faults.mutate.cases import MutationCase, cases, plan_of
from faults.mutate.mutants import mutants
from faults.mutate.trial import Fate, Trial
from faults.prove import prove
from faults.prove.cases import prove_case
from faults.verdict import Verdict
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.expected import OPS, REDUCTIONS, expected, input_bytes, same
from tests.helpers.lockstep_orders import readers_first, writers_first
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

MOVING = ("all_gather", "broadcast", "gather", "scatter", "all_reduce", "reduce_scatter", "reduce", "all_to_all")
ROOTED = ("broadcast", "gather", "scatter", "reduce")
SHAPES = [(4, 2), (6, 2), (6, 3), (8, 4), (9, 3), (12, 4)]  # ranks, and how many in a cluster
TWO_CLUSTERS = Topology.load("two-clusters")
WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)


def call_of(collective: str, ranks: int, cluster: int, nbytes: int = 4096, dtype: str = "f32", op: str = "sum") -> Call:
    op = op if collective in REDUCTIONS else "none"
    return Call(collective, HIERARCHICAL, ranks, nbytes, dtype, op, cluster=cluster)


def layout_of(ranks: int, *, owned: bool, slots: int = 4, lines: int = 128) -> Layout:
    """A ring on three cards; ``owned``: and on a memory of each rank."""
    pool = Layout(ranks, 3, slots, lines * 64, 2 * ranks + 2, 256)
    if not owned:
        return pool
    own = 2 * ranks
    doorbells = pool.doorbells_per_rank + own
    return replace(pool, cards=3 + ranks, doorbells_per_rank=doorbells, owned=True, own_doorbells=own)


def plan(call: Call, layout: Layout) -> Plan:
    return build(recipe(call.collective, call.algorithm), layout, call)


# --- clusters -----------------------------------------------------------------------------------------------------


def test_clusters_are_hosts_or_domains_with_equally_many_ranks() -> None:
    assert [ranks_per_cluster(TWO_CLUSTERS, ranks) for ranks in (1, 4, 5, 6, 8)] == [1, 1, 1, 1, 4]
    assert ranks_per_cluster(TWO_CLUSTERS, 8, [0, 1, 4, 5]) == 2
    assert ranks_per_cluster(TWO_CLUSTERS, 8, [0, 4, 1, 5]) == 1  # not one after another
    assert ranks_per_cluster(TWO_CLUSTERS, 8, [0, 1, 4]) == 1
    assert ranks_per_cluster(Topology.load("six-cards"), 4) == 1
    assert ranks_per_cluster(Topology.load("mixed-2x4"), 8) == 4  # hosts of one accelerator each, on two XLinks
    assert ranks_per_cluster(Topology.load("racks-2x72"), 144) == 72
    memory = cluster_memory(TWO_CLUSTERS, 8)
    assert memory is not None and memory.name == "hbm"
    assert cluster_memory(TWO_CLUSTERS, 4) is None
    assert [cluster_sizes(ranks) for ranks in (1, 2, 3, 4, 6, 8, 12)] == [[], [], [], [2], [2, 3], [2, 4], [2, 3, 4, 6]]


def test_what_has_no_clusters_is_refused() -> None:
    for cluster in (1, 4):
        with pytest.raises(ArgumentError, match="needs clusters: equally many of its 4 ranks"):
            plan(call_of("all_reduce", 4, cluster), layout_of(4, owned=False))
    with pytest.raises(ArgumentError, match="4 ranks do not divide into clusters of 3"):
        plan(call_of("all_reduce", 4, 3), layout_of(4, owned=False))
    with pytest.raises(ArgumentError, match="hierarchical carries no checksums"):
        with_checksums(recipe("all_reduce", "hierarchical"))
    with pytest.raises(ArgumentError, match="need as many doorbells, the layout has 2 and 2 per rank"):
        assert plan(call_of("all_to_all", 4, 2), replace(layout_of(4, owned=False), doorbells_per_rank=4)).parts


# --- what is computed ---------------------------------------------------------------------------------------------


@pytest.mark.deep(rows=lambda collective: collective not in ("all_reduce", "scatter"))
@pytest.mark.parametrize("collective", MOVING)
def test_every_plan_keeps_its_contract_on_symbols(collective: str) -> None:
    for (ranks, cluster), owned in product(SHAPES, (False, True)):
        for nbytes in (0, 4, 3000) if ranks < 8 else (72,):
            for in_place, root in product((False, True), (0, ranks - 2) if collective in ROOTED else (0,)):
                call = replace(call_of(collective, ranks, cluster, nbytes, op="avg"), root=root, in_place=in_place)
                made = plan(call, layout_of(ranks, owned=owned))
                verify(made)
                check(made)


def test_another_order_of_folding_breaks_the_contract() -> None:
    """Each way round, and as the prover sees it, which has a checker of its own."""
    flat = Call("all_reduce", "two_shot", 8, 4096, "f32", "sum")
    layout = layout_of(8, owned=False)
    made = plan(call_of("all_reduce", 8, 4), layout)
    for wrong in (
        Plan(replace(flat, cluster=4), layout, build(recipe("all_reduce", "two_shot"), layout, flat).build),
        Plan(replace(made.call, cluster=2), layout, made.build),
        Plan(replace(made.call, cluster=1), layout, made.build),
    ):
        with pytest.raises(ContractError, match=r"the contract says rank 0"):
            verify(wrong)
        verify(Plan(replace(wrong.call, fold_order="uniform"), layout, wrong.build))

        proof = prove(wrong)
        assert proof.violation is not None and proof.violation.rule == "fold_order"


@pytest.mark.parametrize("collective", MOVING)
@examples(10, derandomize=True)
@given(st.data())
def test_every_result_is_right_bit_for_bit(collective: str, data: st.DataObject) -> None:
    """Two calls on a ring that wraps, a cluster on one host, whatever caches do; floats fold in the declared order."""
    ranks, cluster = data.draw(st.sampled_from(SHAPES))
    layout = layout_of(ranks, owned=data.draw(st.booleans()), slots=data.draw(st.integers(1, 3)))
    seed = data.draw(st.integers(0, 1 << 20))
    memory = data.draw(st.sampled_from([MemorySpec("shm"), MemorySpec(), MemorySpec(seed=seed, rates=WILD)]))
    order = data.draw(st.sampled_from([in_random_order(seed), writers_first(), readers_first(), slow(seed % ranks)]))
    dtype = data.draw(st.sampled_from(["f32", "bf16", "i32"]))
    nbytes = 4 * data.draw(st.sampled_from([0, 1, 16, 17, 50, 250, 900]))
    operations = [op for op in OPS if dtype == "i32" or op not in ("band", "bor", "bxor")]
    call = call_of(collective, ranks, cluster, nbytes, dtype, data.draw(st.sampled_from(operations)))
    call = replace(call, root=data.draw(st.integers(0, ranks - 1)), in_place=data.draw(st.booleans()))
    rng = np.random.default_rng(seed)
    sizes = [input_bytes(call, rank) // DTYPES[dtype].itemsize for rank in range(ranks)]
    inputs = [rng.normal(0, 100, size).astype(DTYPES[dtype]).view(np.uint8) for size in sizes]
    hosts = [rank // cluster for rank in range(ranks)]
    lockstep = Lockstep(layout, hosts=hosts, memory=memory, order=order)
    for outputs in lockstep.calls([(plan(call, layout), inputs)] * 2):
        for rank, wanted in enumerate(expected(call, inputs)):
            assert same(outputs[rank], wanted, dtype), f"{call}, rank {rank}"


# --- proved, and broken on purpose --------------------------------------------------------------------------------


@pytest.mark.parametrize("collective", MOVING)
def test_every_plan_is_proved_on_two_clusters(collective: str) -> None:
    found = recipe(collective, "hierarchical")
    for (ranks, cluster), owned, in_place in product([(4, 2), (8, 4)], (False, True), (False, True)):
        call = replace(call_of(collective, ranks, cluster, 1000), in_place=in_place)
        proof = prove_case(found, layout_of(ranks, owned=owned, slots=2), call)
        assert proof.verdict is Verdict.OK, f"{call}: {proof.reason}"


@pytest.mark.parametrize("collective", ["all_reduce", "all_to_all", "gather"])
def test_a_deletion_breaks_the_plan(collective: str) -> None:
    """Of one rank; `cxlemu mutate -n 4 --variant hierarchical` has all mutants of all ranks."""
    case = MutationCase(collective, "hierarchical", 4, cluster=2)
    trial = Trial(case)
    deleted = [m for m in mutants(plan_of(case)) if m.kind == "delete" and m.rank == 1]
    assert len(deleted) > 10
    fates = {str(mutant): trial.judge(mutant).fate for mutant in deleted[:: max(1, len(deleted) // 12)]}
    assert {name: fate for name, fate in fates.items() if fate not in (Fate.REFUSED, Fate.CONFIRMED)} == {}


def test_cases_have_every_size_of_clusters() -> None:
    found = [str(case) for case in cases("all_reduce", "hierarchical", 6)]
    assert len(found) == len(set(found)) == 6
    assert "all_reduce hierarchical 6 ranks clusters of 3 2 rounds" in found
    assert list(cases("all_reduce", "hierarchical", 3)) == []
    assert all(plan_of(case).rounds == case.rounds for case in cases("all_to_all", "hierarchical", 4))


# --- where it lies ------------------------------------------------------------------------------------------------


def test_inside_lies_in_the_ranks_memories_and_only_neighbours_touch_them() -> None:
    layout = layout_of(8, owned=True)
    for collective in MOVING:
        made = plan(call_of(collective, 8, 4), layout)
        touched = set()
        for part in made.parts:
            for instruction in (i for stream in part.streams for i in stream.instructions):
                for operand in instruction.operands:
                    card = made.frame.regions[operand.id].first_card if operand.kind == Kind.REGION else 0
                    if card >= layout.pool_cards:
                        touched.add((part.rank, card - layout.pool_cards))
                if instruction.op in (Op.SIGNAL, Op.WAIT):
                    card, _ = layout.doorbell_address(instruction.arg, 1)
                    if card >= layout.pool_cards:
                        touched.add((part.rank, card - layout.pool_cards))
        assert touched and all(rank // 4 == owner // 4 for rank, owner in touched), collective


def test_no_two_doorbells_of_a_slot_share_a_line() -> None:
    layout = layout_of(5, owned=True)
    for epoch in range(layout.slots):
        places = {layout.doorbell_address(bell, epoch) for bell in range(layout.doorbell_count)}
        assert len(places) == layout.doorbell_count
        assert all(offset < layout.data_offset for _, offset in places)
        for bell in range(layout.doorbell_count):
            own = layout.doorbells_of(layout.owner(bell))
            card, offset = layout.doorbell_address(bell, epoch)
            assert any(its.card == card and its.offset <= offset < its.offset + its.nbytes for its in own)


def test_a_plan_on_memories_goes_through_a_file(tmp_path: Path) -> None:
    made = plan(call_of("reduce_scatter", 8, 4), layout_of(8, owned=True))
    plan_file.save(made, tmp_path / "two.plan")
    assert load_plan(tmp_path / "two.plan") == made


@with_rows(
    ({"cards": 8}, "all of the layout's 8 cards are memories of its 8 ranks"),
    ({"own_doorbells": 1000}, "1000 of a rank's doorbells lie in its own memory"),
    ({"owned": False, "cards": 3}, "16 of a rank's doorbells lie in its own memory, which has no room"),
)
def test_a_layout_that_is_impossible_is_refused(changes: dict[str, Any], message: str) -> None:
    layout = layout_of(8, owned=True)
    made = plan(call_of("all_gather", 8, 4), layout)
    with pytest.raises(PlanError, match=message):
        check(Plan(made.call, replace(layout, **changes), lambda rank: (made.frame, made.part(rank))))


# --- run ----------------------------------------------------------------------------------------------------------


def everything(context: RankContext) -> tuple[list[str], int]:
    """All collectives on whole numbers, on two levels: what was wrong, and the size of clusters of the even ranks."""
    wrong = []
    with Communicator.world(context) as comm:
        n, me, size = comm.size, comm.rank, 3000
        x = np.arange(n * size, dtype=np.int32).reshape(n, size) * (me + 1)
        total = sum(range(1, n + 1))
        all_in = np.arange(n * size, dtype=np.int32).reshape(n, size)
        ways = {
            "all_reduce": (comm.all_reduce(x.copy(), variant="hierarchical"), all_in * total),
            "reduce_scatter": (comm.reduce_scatter(x, variant="hierarchical"), all_in[me : me + 1] * total),
            "all_gather": (comm.all_gather(x[0], variant="hierarchical"), np.outer(np.arange(1, n + 1), all_in[0])),
            "all_to_all": (comm.all_to_all(x, variant="hierarchical"), np.outer(np.arange(1, n + 1), all_in[me])),
            "broadcast": (comm.broadcast(x.copy(), root=n - 1, variant="hierarchical"), all_in * n),
        }
        for name, (got, wanted) in ways.items():
            if not np.array_equal(np.asarray(got), wanted):
                wrong.append(name)
        if comm.choice("all_reduce", 1 << 20).variant != "hierarchical":
            wrong.append("choice")
        evens = comm.split(color=me % 2)
        assert evens is not None
        y = np.full(5000, me, np.int64)
        evens.all_reduce(y, variant="hierarchical")
        if y[0] != sum(evens.members):
            wrong.append("split")
        return wrong, evens.cluster


def test_real_bytes_behind_caches_of_two_hosts() -> None:
    results = launch(everything, ranks=8, topology="two-clusters", how="threads", memory=MemorySpec(seed=7))
    assert results == [([], 2)] * 8


def alone(context: RankContext) -> None:
    with Communicator.world(context) as comm:
        comm.all_reduce(np.zeros(64), variant="hierarchical")


def test_without_clusters_a_call_says_so_before_anything_is_sent() -> None:
    with pytest.raises(ArgumentError, match="needs clusters: equally many of its 2 ranks"):
        launch(alone, ranks=2, topology="six-cards", how="threads")


# --- cost and choice ----------------------------------------------------------------------------------------------


def simulated(topology: Topology, collective: str, nbytes: int, variant: str, *, checked: bool = False) -> float:
    call = replace(call_of(collective, 8, 1, nbytes), algorithm=variant)
    row, _ = simulate_case(topology, Row(call, in_place=False), check=checked)
    assert row.wrong in (None, 0), row.first_wrong
    return row.time_us


@pytest.mark.parametrize("collective", MOVING)
def test_auto_takes_what_is_faster_in_virtual_time(collective: str) -> None:
    ways = TwoLevelEstimate.of(TWO_CLUSTERS, 8)
    assert ways is not None
    for nbytes in (1 << 10, 1 << 17, 8 << 20):
        flat = choose(collective, nbytes, 8).variant
        levels_us, flat_us = (simulated(TWO_CLUSTERS, collective, nbytes, v) for v in ("hierarchical", flat))
        chosen = choose(collective, nbytes, 8, ways=ways)
        assert (chosen.variant == "hierarchical") == (levels_us < flat_us), (nbytes, levels_us, flat_us)
        if chosen.variant == "hierarchical":
            assert "on clusters of 4: about" in chosen.reason
            assert simulated(TWO_CLUSTERS, collective, nbytes, "auto") <= levels_us


def test_auto_knows_that_many_small_copies_wait() -> None:
    """On two racks of 72, where virtual time takes 2,146 and 1,611 us, and 2,144 and 5,458 us."""
    ways = TwoLevelEstimate.of(Topology.load("racks-2x72"), 144)
    assert choose("all_reduce", 1 << 20, 144, ways=ways).variant == "two_shot"
    assert choose("all_gather", (64 << 20) // 144, 144, ways=ways).variant == "hierarchical"


@pytest.mark.deep
def test_virtual_time_moves_the_right_bytes() -> None:
    for collective in MOVING:
        simulated(TWO_CLUSTERS, collective, 4096, "hierarchical", checked=True)
        simulated(Topology.load("mixed-2x4"), collective, 4096, "hierarchical", checked=True)


def test_what_costs_nothing_more_to_know_changes_nothing_without_clusters() -> None:
    assert TwoLevelEstimate.of(Topology.load("six-cards"), 3) is None
    assert TwoLevelEstimate.of(Topology.load("one-host-four-ranks"), 4) is None
    assert choose("all_reduce", 100, 8, ways=TwoLevelEstimate.of(TWO_CLUSTERS, 8)).variant == "line"
    assert "hierarchical" not in variants("all_reduce")
    assert "hierarchical" in variants("all_reduce", clusters=True)


# --- the command line ---------------------------------------------------------------------------------------------


def test_prove_takes_every_size_of_clusters() -> None:
    document = with_json("prove", "gather", "-n", "4,6", "--variant", "hierarchical", code=0)[1]
    assert [(row["ranks"], row["cluster"]) for row in document["rows"]] == [(4, 2), (6, 2), (6, 3)]


@with_rows(
    (["prove", "gather", "-n", "2-3", "--variant", "hierarchical"], "cannot make two clusters of two or more ranks"),
    (["run", "gather", "-n", "3", "--variant", "hierarchical"], "hierarchical needs clusters, two or more hosts"),
    (["plan", "show", "gather", "-n", "4", "--variant", "hierarchical"], "needs clusters: equally many of its 4"),
    (["simulate", "gather", "-n", "4", "--variant", "hierarchical"], "hierarchical needs clusters"),
    (
        ["run", "gather", "-n", "8", "-c", "two-clusters", "--variant", "hierarchical", "--integrity", "crc32c"],
        "hierarchical carries no checksums",
    ),
)
def test_bad_input_gets_one_sentence(arguments: list[str], message: str) -> None:
    done = cxlemu(*arguments, code=2)
    assert message in done.output
    assert "Traceback" not in done.output


def test_run_says_why_it_took_two_levels() -> None:
    arguments = "run all_gather -c two-clusters -n 8 -b 4M -e 4M --iters 1 --warmup 0 -v --launch threads"
    done = cxlemu(*arguments.split(), code=0)
    assert "hierarchical: 512 KiB on clusters of 4: about" in done.output
    assert "us on one, by the cost model's figures" in done.output
