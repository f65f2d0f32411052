"""Links and switches that fail while a modelled call runs: to the nanosecond, around it or to a clear end."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.sweep.sweep import Case, Sweep
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, VirtualRun, simulate
from cxlemu.errors import ArgumentError, CutOffError
from cxlemu.topology import Topology
from cxlemu.topology.failures import Failure, cut_off
from studies.training.timeline import COMPUTE, Part, TimelineProgram
from studies.training.timeline import run as run_program
from tests.helpers.by_hand import FENCE, signal, wait
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import Ranks, plan, read, write
from tests.helpers.hierarchy_helpers import KINDS, LEAF_SPINE, machine, machine_text
from tests.helpers.tables import with_rows
from tests.helpers.tiers import examples

MB = 1_000_000
TWO_WAYS = Topology.parse(
    b"""
name: two-ways
hosts: {count: 2, memory: {latency_ns: 100, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}
cards: {count: 2, capacity_bytes: 1GiB, latency_ns: 300, read_gbytes_per_s: 100, write_gbytes_per_s: 100,
        total_gbytes_per_s: 200}
switches: [{name: near, port_latency_ns: 10}, {name: a, port_latency_ns: 100}, {name: b, port_latency_ns: 700}]
links:
  - {name: port, ends: [hosts, near], gbytes_per_s: 100, latency_ns: 0}
  - {name: up-a, ends: [near, a], gbytes_per_s: 10, latency_ns: 0}
  - {name: up-b, ends: [near, b], gbytes_per_s: 1, latency_ns: 0}
  - {name: down-a, ends: [a, cards], gbytes_per_s: 100, latency_ns: 0}
  - {name: down-b, ends: [b, cards], gbytes_per_s: 100, latency_ns: 0}
spaces: [{name: pool, kind: cxl_pool, coherent: false, interleave_bytes: 64KiB}]
emulation: {card_bytes: 1MiB}
""",
    "two-ways.yaml",
)
FAST_NS = MB // 10 + 2 * 110 + 300  # a read over a: 10 GB/s, the way there and back, the card
SLOW_NS = MB + 2 * 710 + 300


def run(ranks: Ranks, *fails: str, topology: Topology = TWO_WAYS) -> VirtualRun:
    failures = [Failure.parse(text, topology) for text in fails]
    model = CostModel.of(topology, len(ranks), failures)
    return simulate(model, [VirtualCall(plan(ranks, topology.card_count))])


def test_what_begins_after_a_failure_takes_another_way() -> None:
    reads = [[[read(0, MB)] * 2]]
    assert run(reads).time_ns == 2 * FAST_NS
    assert run(reads, "link:up-a@1").time_ns == FAST_NS + SLOW_NS
    assert run(reads, "switch:a@0").time_ns == 2 * SLOW_NS


def test_the_moment_counts_to_the_nanosecond() -> None:
    reads = [[[read(0, MB)] * 2]]
    assert run(reads, f"link:up-a@{FAST_NS / 1000:.3f}").time_ns == FAST_NS + SLOW_NS
    assert run(reads, f"link:up-a@{(FAST_NS + 1) / 1000:.3f}us").time_ns == 2 * FAST_NS


def test_one_card_of_a_link_fails_alone() -> None:
    reads = [[[read(0, MB), read(1, MB)]]]
    assert run(reads, "link:down-a/card1@0").time_ns == FAST_NS + SLOW_NS
    assert run(reads, "link:down-a/card0@0").time_ns == SLOW_NS + FAST_NS


def test_doorbells_take_the_ways_that_are_left() -> None:
    ranks = [[[write(0, 64), FENCE, signal(0)]], [[wait(0)]]]
    usual, detour = run(ranks), run(ranks, "switch:a@0")
    written = 64 * 1_000_000 // 10_000_000 + 1  # 64 B at 10 GB/s, rounded up
    assert usual.time_ns == written + 2 * 110 + 110 + 2 * 110 + 300
    assert detour.time_ns == 64 + 2 * 710 + 710 + 2 * 710 + 300


def test_a_host_without_a_way_ends_the_run_and_is_named() -> None:
    reads: Ranks = [[[read(0, MB)] * 3], [[read(1, MB)] * 3]]
    with pytest.raises(CutOffError) as caught:
        run(reads, "link:port/host1@150")
    assert (caught.value.host, caught.value.card, caught.value.exit_code) == (1, 1, 1)
    assert str(caught.value) == (
        "host 1 has no route to card 1, which rank 1 needs: link port/host1 at 150 us cut off host 1 from cards 0, 1"
    )


def test_who_needs_nothing_any_more_may_be_cut_off() -> None:
    reads: Ranks = [[[read(0, MB)] * 3], [[read(1, MB)]]]
    assert run(reads, "link:port/host1@150").time_ns == run(reads).time_ns


def test_a_rank_that_waits_is_cut_off_when_its_doorbell_rings() -> None:
    ranks: Ranks = [[[read(0, MB), read(0, MB), signal(0)]], [[wait(0)]]]
    with pytest.raises(CutOffError, match="host 1 has no route to card 0, which rank 1 needs"):
        run(ranks, "link:port/host1@50")


def test_failures_add_up() -> None:
    reads = [[[read(0, MB)] * 2]]
    with pytest.raises(CutOffError, match=r"switch b at 5 us cut off hosts 0, 1 from cards 0, 1$"):
        run(reads, "switch:b@5", "switch:a@3")


def test_a_change_says_which_ways_it_changes() -> None:
    failures = [Failure.parse(text, TWO_WAYS) for text in ("link:down-a/card1@2", "switch:b@3", "link:up-a@3")]
    first, second = CostModel.of(TWO_WAYS, 2, failures).changes
    assert (first.at_ns, first.ways, first.rerouted, first.ended) == (2000, 4, 2, ())
    assert first.describe() == [
        "link down-a/card1 at 2 us: 2 of 4 routes change, 0 end",
        "  host0 - card1: near a (3 links, 110 ns) becomes near b (3 links, 710 ns)",
    ]
    assert (second.ways, second.rerouted, len(second.ended)) == (4, 0, 4)
    assert second.describe() == [
        "switch b at 3 us, link up-a at 3 us: 0 of 4 routes change, 4 end",
        "  cut off: hosts 0, 1 from cards 0, 1",
    ]


def small_case(collective: str, ranks: int, nbytes: int) -> Case:
    (case,) = Sweep((collective,), sizes=(nbytes,), dtypes=("f32",), check=True).cases(ranks)
    return case


@examples(25)
@given(st.sampled_from(list(KINDS)), st.sampled_from(["first", "spread"]), st.data())
def test_results_are_right_or_somebody_is_cut_off(kind: str, routing: str, data: st.DataObject) -> None:
    """Whatever fails whenever: real bytes move in the order of the run, and the same run twice is the same."""
    topology = machine(KINDS[kind], more=f"routing: {routing}\ncosts: {{copy_ns: 1000}}")
    switches, links = topology.expanded
    names = [f"switch:{its.name}" for its in switches] + [f"link:{its.name}" for its in links]
    fails = data.draw(st.lists(st.tuples(st.sampled_from(names), st.integers(0, 60)), min_size=1, max_size=3))
    failures = [Failure.parse(f"{name}@{at}", topology) for name, at in fails]
    case = small_case(data.draw(st.sampled_from(["all_gather", "all_reduce", "broadcast"])), 8, 1 << 16)
    try:
        row, seen = simulate_case(topology, case, failures=failures, check=True)
    except CutOffError as error:
        lost = {failure.name for failure in failures}
        assert topology.fabric(lost).route(error.host, error.card) is None
        return
    assert row.wrong == 0
    assert simulate_case(topology, case, failures=failures)[1].time_ns == seen.time_ns


def test_who_is_cut_off_is_named_with_the_card_that_it_lost() -> None:
    """One doorbell wakes several ranks, of which some have lost its card: the first of them ends the run."""
    topology, cut = machine(LEAF_SPINE, more="routing: first\ncosts: {copy_ns: 1000}"), []
    for name in [its.name for its in topology.expanded[0]]:
        for collective in ("broadcast", "all_gather"):
            failures = [Failure.parse(f"switch:{name}@1", topology)]
            try:
                simulate_case(topology, small_case(collective, 8, 1 << 16), failures=failures)
            except CutOffError as error:
                assert topology.fabric({name}).route(error.host, error.card) is None
                cut.append((name, collective))
    assert ("cxl-leaf1", "broadcast") in cut


def test_half_of_the_trunks_take_twice_as_long() -> None:
    """Four hosts on two leaves read from the other leaf's card: the trunks are what they wait for."""
    text = LEAF_SPINE.replace("leaves: 4", "leaves: 2").replace("gbytes_per_s: 128", "gbytes_per_s: 4")
    topology = machine(text, hosts=4, cards=2, more="routing: spread")
    ranks = [[[read(1 - host // 2, MB)] * 100] for host in range(4)]
    usual, half = run(ranks, topology=topology), run(ranks, "switch:cxl-spine0@0", topology=topology)
    assert 1.98 < half.time_ns / usual.time_ns <= 2
    after = run(ranks, f"switch:cxl-spine0@{usual.time_ns / 2000:.3f}", topology=topology)
    assert 1.48 < after.time_ns / usual.time_ns < 1.52


@with_rows(
    ("near@3", "a failure is link:NAME@TIME_us, link:NAME/host3@TIME_us or switch:NAME@TIME_us, not 'near@3'"),
    ("link:up-a", "a failure is "),
    ("link:up-a@-1", "'link:up-a@-1' has no time"),
    ("link:up-a@1e300", "has no time"),
    ("link:up-a@1.2.3", "has no time"),
    ("link:up-c@1", "two-ways has no link up-c; did you mean up-"),
    ("switch:up-a@1", "two-ways has no switch up-a; "),
    ("switch:near/host1@1", "two-ways has no switch near/host1"),
    ("link:up-a/host1@1", "link up-a of two-ways does not end at host1"),
    ("link:down-a/host1@1", "link down-a of two-ways does not end at host1"),
)
def test_a_failure_that_means_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Failure.parse(text, TWO_WAYS)
    assert message in str(caught.value)


@pytest.fixture
def config(tmp_path: Path) -> str:
    file = tmp_path / "hierarchy.yaml"
    file.write_text(machine_text(LEAF_SPINE.replace("gbytes_per_s: 128", "gbytes_per_s: 4"), more="routing: spread"))
    return str(file)


simulated = partial(cxlemu, "simulate")


# --- in a training step ----------------------------------------------------------------------------------------------


def test_operations_that_begin_after_a_failure_take_what_they_take_then() -> None:
    def program(send_ns: int) -> TimelineProgram:
        made = TimelineProgram()
        first = made.add("send", 0, "network", [Part("send", send_ns)])
        second = made.add("compute", 0, COMPUTE, [Part("compute", 50)], [first])
        made.add("send again", 0, "network", [Part("send", send_ns)], [second])
        return made

    usual, slow = program(100), program(300)
    assert run_program(usual).time_ns == 250
    assert run_program(usual, [(0, slow)]).time_ns == 300 + 50 + 300
    assert run_program(usual, [(1, slow)]).time_ns == run_program(usual, [(150, slow)]).time_ns == 100 + 50 + 300
    assert run_program(usual, [(151, slow)]).time_ns == 250
    twice = run_program(usual, [(1, slow), (120, program(1000))])
    assert twice.time_ns == 100 + 50 + 1000
    assert twice.billed(0) == {"send": 1100, "compute": 50}


STEP = ("training", "-n", "8", "--batch", "8")


def test_a_step_goes_on_around_a_failed_switch(config: str) -> None:
    result, document = with_json("simulate", *STEP, "-c", config, "--fail", "switch:cxl-spine1@1000000", code=0)
    usual, failing = document["steps"]
    assert usual["billed_ns"]["forward"] == failing["billed_ns"]["forward"]
    assert usual["time_ns"] < failing["time_ns"] < 2 * usual["time_ns"]
    assert "# fails    switch cxl-spine1 at 1000000 us: 12 of 32 routes change, 0 end" in result.output
    before, after = usual["time_ns"] / 1e6, failing["time_ns"] / 1e6
    last = f"What fails takes the step from {before:.1f} to {after:.1f} ms: {after / before - 1:+.1%}."
    assert result.output.splitlines()[-1] == last


def test_a_step_that_somebody_is_cut_off_from_ends_with_a_sentence(config: str) -> None:
    result = simulated(*STEP, "-c", config, "--fail", "link:cxl-leaf3-hosts@1000000", code=1)
    assert result.stderr.startswith("cxlemu: host 6 has no route to card ")
    assert result.stderr.endswith(", which the step needs: link cxl-leaf3-hosts at 1000000 us\n")


def test_a_failure_after_the_step_costs_nothing(config: str) -> None:
    assert " ms: +0.0%." in simulated(*STEP, "-c", config, "--fail", "link:cxl-leaf3-hosts@1e9", code=3).output


# --- cxlemu simulate --fail ------------------------------------------------------------------------------------------


def test_the_cost_of_a_failure_is_shown(config: str, tmp_path: Path) -> None:
    where = tmp_path / "out.json"
    simulated("all_gather", "-c", config, "-b", "4M", "--json", str(where), code=0)
    (row,) = json.loads(where.read_text())["rows"]
    half_us = round(row["time_us"] / 2)
    result = simulated(
        "all_gather", "-c", config, "-b", "4M", "--fail", f"switch:cxl-spine1@{half_us}", "--json", str(where), code=0
    )
    lines = result.output.splitlines()
    assert f"# fails    switch cxl-spine1 at {half_us} us: 12 of 32 routes change, 0 end" in lines
    document = json.loads(where.read_text())
    (failed,) = document["rows"]
    assert document["unfailed_time_us"] == [row["time_us"]]
    assert document["failures"] == [
        {"at_us": half_us, "failures": ["switch:cxl-spine1"], "ways": 32, "rerouted": 12, "ended": []}
    ]
    more = failed["time_us"] / row["time_us"] - 1
    assert more > 0.05
    assert f"#   without failures {row['time_us']:.1f} us: {more:+.1%}" in lines


def test_a_failure_after_the_end_says_so(config: str) -> None:
    result = simulated("broadcast", "-c", config, "-b", "64K", "--fail", "switch:cxl-spine1@1e6", code=3)
    assert "us, before anything failed" in result.output


def test_who_is_cut_off_is_one_sentence_and_exit_code_1(config: str) -> None:
    result = simulated("all_gather", "-c", config, "-b", "64K", "--fail", "link:cxl-leaf3-hosts@10", code=1)
    assert "#            cut off: hosts 6, 7 from cards 0 to 3" in result.output
    assert result.stderr.startswith("cxlemu: host 6 has no route to card ")
    assert result.stderr.count("\n") == 1


def test_memory_of_a_rank_is_called_by_its_owner() -> None:
    result = simulated(
        *("all_gather", "-c", "two-clusters", "-b", "64K", "-e", "64K", "--variant", "hierarchical"),
        *("--fail", "switch:nvswitch@1"),
    )
    assert result.stderr.startswith("cxlemu: host 0 has no route to card 7 (rank1 memory), which rank 0 needs: ")


def test_a_wrong_name_is_bad_input(config: str) -> None:
    result = simulated("all_gather", "-c", config, "-b", "64K", "--fail", "switch:spine9@1", code=2)
    assert "has no switch spine9; did you mean cxl-spine" in result.stderr


def test_without_failures_nothing_changes() -> None:
    model = CostModel.of(TWO_WAYS, 2)
    assert model.changes == () and model.route_of.shape == (1, 2, 2) and np.unique(model.route_of).tolist() == [0]


def test_hosts_that_lose_other_cards_are_named_apart() -> None:
    told = cut_off([(host, card) for host in range(6) for card in range(4) if (host < 3) == (card > 1)])
    assert told == "hosts 0 to 2 from cards 2, 3; hosts 3 to 5 from cards 0, 1"
