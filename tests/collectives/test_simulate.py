"""`cxlemu simulate`: every collective on the modelled fabric, its bytes, its table, its files, and traces."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from collectives.algorithms import catalog
from collectives.algorithms.catalog import recipe
from collectives.cli import simulate_run as simulate_cli
from collectives.contracts import COLLECTIVES
from collectives.sweep.sweep import Case, Sweep
from collectives.sweep.virtual.plans import planned
from collectives.sweep.virtual.rings import virtual_layout
from collectives.sweep.virtual.simulated import simulate_case
from collectives.sweep.virtual.split import check_split, split_calls
from cxlemu.cli import INTERRUPTED
from cxlemu.cost import CostModel
from cxlemu.engines.trace import GROUPS, events, perfetto
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.plan import Call, Op, Plan
from cxlemu.topology import Topology
from cxlemu.topology.intervals import changed
from faults.mutate.cases import loops_of
from tests.helpers.by_hand import FENCE, signal, wait
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.fabric_helpers import plan, read, write
from tests.helpers.hierarchy_helpers import LEAF_SPINE, machine
from tests.helpers.tables import with_rows

TITAN = Topology.load("titan2-6xcz120")
VARIANTS = [(c, v) for c in COLLECTIVES for v in catalog.variants(c)]


def case_of(collective: str, variant: str = "auto", *, ranks: int = 3, nbytes: int = 1 << 20) -> Case:
    (case,) = Sweep((collective,), [nbytes], variant=variant).cases(ranks)
    return case


@pytest.mark.each_value_once
@pytest.mark.parametrize(("collective", "variant"), VARIANTS)
def test_the_run_that_takes_the_time_computes_the_result(collective: str, variant: str) -> None:
    for nbytes, calls in ((96, 6), (30_000, 2)):
        row, run = simulate_case(TITAN, case_of(collective, variant, nbytes=nbytes), calls=calls, check=True)
        assert (row.wrong, row.first_wrong) == (0, None)
        assert row.time_us > 20
        assert (
            row.instructions
            == run.instructions
            == calls * sum(part.instruction_count for part in run.calls[0].plan.parts)
        )


@with_rows(("naive", 1), ("line", 2))
def test_fabrics_that_differ_in_a_rate_have_one_plan_where_it_is_short(
    variant: str, plans: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = catalog.build, list[Plan]()
    monkeypatch.setattr(catalog, "build", lambda *its: built.append(build(*its)) or built[-1])  # type: ignore[func-returns-value]
    case = case_of("all_gather", variant, nbytes=1000_000)
    slower = changed(TITAN, {("costs", "copy_ns"): 6000.0, ("costs", "doorbell_observe_ns"): 6000.0})
    rows = [simulate_case(topology, case)[0] for topology in (TITAN, slower)]
    assert len(built) == plans and rows[0].instructions == rows[1].instructions
    assert rows[0].time_us < rows[1].time_us


def test_a_wrong_plan_computes_wrong_results(tmp_path: Path) -> None:
    """A reader that does not wait: the run says so in virtual time, and the bytes show it."""
    (tmp_path / "hasty.py").write_text(
        "from collectives.builder import Builder\nfrom collectives.builder.recipes import algorithm\n"
        "from cxlemu.plan import Op\n"
        "@algorithm('broadcast')\n"
        "def hasty(b: Builder) -> None:\n"
        "    emit = b._emit\n"
        "    b._emit = lambda stream, op, **more: None if op == Op.WAIT else emit(stream, op, **more)\n"
        "    for chunks in b.rounds(b.nbytes, writers=[b.root], spread='cards'):\n"
        "        for chunk in chunks:\n"
        "            if b.is_root:\n"
        "                b.publish(chunk, b.input(chunk.offset))\n"
        "            else:\n"
        "                b.retrieve(b.output(chunk.offset), chunk, b.root)\n"
    )
    result = cxlemu(
        "simulate", "broadcast", "-b", "64K", "--check", "--algorithm", f"{tmp_path}/hasty.py:hasty", code=1
    )
    assert "# 1 result, " in result.output
    assert "first wrong: rank 1, call 0, element 0: " in result.output


def test_results_do_not_depend_on_being_logged_or_checked() -> None:
    case = case_of("all_reduce")
    times = {simulate_case(TITAN, case, check=check, log_max=log)[0].time_us for check in (0, 1) for log in (0, 999)}
    assert len(times) == 1


@pytest.mark.deep(rows=lambda first: first > 0)
@pytest.mark.parametrize("first", range(3))
def test_a_slot_takes_the_whole_call_where_cards_have_room(first: int) -> None:
    """Each variant with each number of ranks; in the fast tier with one of them."""
    topology = Topology.load("twelve-hosts")
    for number, (collective, variant) in enumerate(VARIANTS):
        if variant != "line":
            ranks = (3, 4, 7)[(first + number) % 3]
            plan, _ = planned(topology, case_of(collective, variant, ranks=ranks, nbytes=5 << 20))
            loops = loops_of(recipe(collective, variant), plan.call)
            assert plan.rounds == len(loops), (collective, variant, ranks)


def test_where_cards_are_small_a_call_takes_rounds_or_is_refused() -> None:
    tight = TITAN.model_copy(
        update={"cards": (TITAN.cards[0].model_copy(update={"capacity_bytes": 1 << 20, "count": 6}),)}
    )
    case = case_of("all_gather", "all", nbytes=64 << 20)
    assert planned(tight, case)[0].rounds > 1
    assert simulate_case(tight, case)[0].time_us > simulate_case(TITAN, case)[0].time_us
    with pytest.raises(ArgumentError, match="no room for the doorbells and data of 4096 ranks"):
        virtual_layout(tight, recipe("all_gather", "all"), Call("all_gather", "all", 4096, 64))


def test_overlap_pays_and_one_card_costs() -> None:
    """CCCL's ablation: naive lies on few cards, aggregate on all, all overlaps."""
    us = {
        v: simulate_case(TITAN, case_of("broadcast", v, nbytes=256 << 20))[0].time_us
        for v in ("naive", "aggregate", "all")
    }
    assert us["all"] < 0.7 * us["aggregate"] < us["aggregate"] < us["naive"]


def test_more_hosts_on_the_same_cards_take_longer() -> None:
    twelve = Topology.load("twelve-hosts")
    us = [simulate_case(twelve, case_of("all_gather", ranks=n, nbytes=n << 24))[0].time_us for n in (3, 6, 12)]
    assert us[0] < us[1] < us[2]


def test_the_same_command_prints_the_same_bytes(tmp_path: Path) -> None:
    def run(number: int) -> tuple[str, bytes, bytes]:
        files = [tmp_path / f"{number}.json", tmp_path / f"{number}.trace"]
        flags = ["-b", "4K", "-e", "1M", "-f", "16", "--json", str(files[0]), "--trace", str(files[1]), "-v"]
        result = cxlemu("simulate", "all_gather", "all_reduce", "-c", "titan2-6xcz120", *flags, code=0)
        return result.output, files[0].read_bytes(), files[1].read_bytes()

    assert run(1) == run(2)


def test_bytes_that_meet_no_link_have_no_speed() -> None:
    """One rank whose copies are free takes no time: a terabyte a second was the rounding's."""
    row, _ = simulate_case(machine(LEAF_SPINE, 1), case_of("all_gather", ranks=1))
    assert (row.algbw_gbytes_per_s, row.busbw_gbytes_per_s, row.busiest_link) == (0, 0, "")


def test_the_table_and_json_say_the_same() -> None:
    result, document = with_json("simulate", "all_reduce", "-n", "3", "-b", "1M", "-e", "4M", "-f", "4", "-v")
    lines = result.output.splitlines()
    assert "# ranks    3 ranks on 3 hosts (1+1+1)" in lines
    rows = [line.split() for line in lines if line.startswith(" ")]
    small, tiny = with_json("simulate", "all_reduce", "-n", "3", "-b", "64", "-v")
    ((bound, times),) = re.findall(r"lower bound: (\S+) us by \w+; (\S+) times that", small.output)
    assert float(bound) * float(times) == pytest.approx(tiny["rows"][0]["time_us"], rel=0.05)
    assert document["config"]["hosts"]["memory"]["latency_ns"] == {"value": 214, "source": "CCCL, local DRAM load"}
    assert [row[0] for row in rows] == [str(row["size_bytes"]) for row in document["rows"]] == ["1048576", "4194304"]
    assert [row[5] for row in rows] == [f"{row['time_us']:.1f}" for row in document["rows"]]
    assert [row["variant"] for row in document["rows"]] == ["two_shot_staged-1", "two_shot_staged-2"]
    assert {row["chosen_by"] for row in document["rows"]} == {"auto"}
    why = "reading 2(N-1)/N instead of N-1 vectors pays for a second step; one chunk, as starting a copy costs more"
    assert f"#   two_shot_staged-1: 1 MiB on 3 ranks: {why}" in lines
    for row in document["rows"]:
        assert 0 < row["busiest_card_utilization"] <= 1
        assert row["busbw_gbytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3 * 4 / 3)


def test_every_collective_runs_by_default() -> None:
    result = cxlemu("simulate", "-b", "64K", code=0)
    assert [line[2:] for line in result.output.splitlines() if line[2:] in COLLECTIVES] == [
        name for name, contract in COLLECTIVES.items() if contract.among_all
    ]
    assert result.output.endswith("# 8 results, not checked\n")


def test_every_variant_runs_and_line_only_where_it_makes_sense() -> None:
    def variants(size: str) -> list[str]:
        result = cxlemu("simulate", "all_gather", "-b", size, "--variant", "every", "-n", "2")
        return [line.split()[-1] for line in result.output.splitlines() if line.startswith(" ")]

    assert variants("128K") == catalog.variants("all_gather")
    assert variants("256K") == [name for name in catalog.variants("all_gather") if name != "line"]


def test_a_topology_without_a_description_is_its_name() -> None:
    fabric = Path(__file__).parents[2] / "examples/fabric.yaml"
    assert "# config   my-fabric\n" in cxlemu("simulate", "all_gather", "-c", fabric, "-b", "1M").output


@with_rows(
    (["all_gatherer"], "unknown collective 'all_gatherer'"),
    (["all_gather", "--variant", "two_shot"], "all_gather has no variant 'two_shot'"),
    (["all_gather", "-c", "nowhere"], "is neither a file nor a shipped topology"),
    (["all_gather", "-b", "1G", "--check"], "is too large to be checked on real bytes"),
    (
        ["all_gather", "-n", "2", "-b", "1K", "-e", "1G", "-f", "1024", "--check"],
        "leave out --check, or use a smaller -e",
    ),
    (["broadcast", "-r", "9"], "root 9 is not one of the ranks"),
    (["all_gather", "--json", "/proc/nothing"], "--json /proc/nothing cannot be written"),
    (["all_gather", "--trace", "/proc/nothing"], "--trace /proc/nothing cannot be written"),
    (["all_gather", "--trace", "x.json"], "instructions exceed the limit of a trace, "),
    (["all_gather", "-b", "2M", "-e", "1M"], "--minbytes 2M is more than --maxbytes 1M"),
)
def test_bad_input_is_one_sentence(arguments: list[str], message: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulate_cli, "TRACED_INSTRUCTIONS_MAX", 400)
    result = cxlemu("simulate", *arguments, code=2)
    assert result.stderr.startswith("cxlemu: ") and message in result.stderr
    assert result.stderr.count("\n") == 1 and ("--check" not in arguments or result.stdout == "")
    assert list(tmp_path.iterdir()) == []


def test_a_trace_is_what_perfetto_opens(tmp_path: Path) -> None:
    """Chrome's trace event format: metadata first, complete events with microseconds, slices of a track in order."""
    file = tmp_path / "trace.json"
    assert (
        cxlemu("simulate", "all_gather", "-n", "3", "-b", "1M", "-e", "4M", "-f", "4", "--trace", str(file)).exit_code
        == 0
    )
    trace = json.loads(file.read_text())
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, str] = {}
    slices: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        key = event["pid"], event["tid"]
        if event["ph"] == "M":
            assert not slices, "metadata comes first"
            if event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            elif event["name"] == "thread_name":
                names[key] = event["args"]["name"]
            continue
        assert event["ph"] == "X" and event["ts"] >= 0 and event["dur"] >= 0
        assert {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"} == set(event)
        assert processes[event["pid"]] == event["cat"]
        slices.setdefault(key, []).append(event)
    assert set(slices) == set(names) and len(set(names.values())) == len(names)
    assert tuple(processes.values()) == GROUPS
    for its in slices.values():
        for one, other in pairwise(its):
            assert one["ts"] + one["dur"] <= other["ts"] + 1e-6, "slices of a track never overlap"
    tracks = set(names.values())
    assert {f"rank{rank} {stream}" for rank in range(3) for stream in ("publish", "retrieve")} <= tracks
    assert {"card0 reads", "card5 writes", "host-x16 host2 from the pool", "card-x8 card0 to the pool"} <= tracks
    moved = sum(e["args"]["bytes"] for key, its in slices.items() if names[key].endswith(" reads") for e in its)
    assert moved == 3 * 2 * (349524 + 1398100)  # every rank reads two blocks, at both sizes


def test_a_trace_holds_what_happened_when() -> None:
    root, reader = [write(0, 1000), FENCE, signal(0)], [wait(0), read(0, 1000)]
    made = plan([[root], [reader]], 6)
    run = simulate(CostModel.of(TITAN, 2), [VirtualCall(made)], log=True)
    found = list(events(run, start_ns=7))
    named = {(event.track, event.name.split()[0]): event for event in found if event.group == "ranks"}
    started = 20_000 + 7
    copied, acknowledged = started + 5000 + 50, started + 5050 + 280
    assert named["rank0 s0", "WRITE"][3:5] == (started, copied)
    assert named["rank0 s0", "FENCE"][3:5] == (copied, acknowledged)
    assert named["rank0 s0", "SIGNAL"][3:] == (acknowledged, acknowledged + 1500, {
        "call": "pencil pencil 0 B u8", "at": 2, "doorbell": 0, "round": 0,
    })  # fmt: skip
    assert named["rank1 s0", "WAIT"][3:5] == (started, acknowledged + 1500 + 140 + 2142 + 658)
    assert perfetto(found) == perfetto(reversed(found))


def test_two_levels_are_three_calls_of_communicators_split_off() -> None:
    """Four ranks in pairs: (0, 1), (2, 3), then (0, 2), (1, 3), then the pairs again; each call as it is alone."""
    (case,) = Sweep(("all_reduce",), [1 << 20]).cases(4)
    four = Topology.load("six-cards")
    program = split_calls(four, case, 2)
    assert [(call.plan.call.collective, call.members) for call in program] == [
        ("reduce_scatter", (0, 1)),
        ("reduce_scatter", (2, 3)),
        ("all_reduce", (0, 2)),
        ("all_reduce", (1, 3)),
        ("all_gather", (0, 1)),
        ("all_gather", (2, 3)),
    ]
    assert {call.plan.call.nbytes for call in program} == {1 << 19}
    row, run = simulate_case(four, case, split=2)
    assert row.instructions == sum(part.instruction_count for call in program for part in call.plan.parts)
    first = simulate(CostModel.of(four, 4), program[:2])
    assert [its.tolist() for its in run.end_ns[:2]] == [its.tolist() for its in first.end_ns]
    assert (run.begin_ns[2] >= run.end_ns[0].min()).all()
    assert row.time_us * 1000 == max(its.max() for its in run.end_ns[-2:])


def test_groups_whose_ranks_are_in_as_many_clusters_go_through_the_pool() -> None:
    """Across groups of four the calls are of ranks 0, 4, 8, ..., which have no clusters as ranks 0, 1, 2, ... have."""
    both = Topology.load("two-clusters")
    many = both.model_copy(update={"hosts": both.hosts.model_copy(update={"count": 8})})
    row, run = simulate_case(many, case_of("all_reduce", ranks=32, nbytes=1 << 20), split=4)
    assert {call.plan.call.cluster for call in run.calls} == {1} and row.time_us > 0


@with_rows(
    ("all_gather", 4, 2, "--split is for all_reduce without a variant, not for all_gather auto"),
    ("all_reduce", 4, 3, "4 ranks do not divide into several groups of 3: give a divisor, such as 2"),
    ("all_reduce", 4, 4, "4 ranks do not divide into several groups of 4: give a divisor, such as 2"),
)
def test_only_an_all_reduce_in_groups_is_split(collective: str, ranks: int, group: int, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        check_split(TITAN, case_of(collective, ranks=ranks).call, group, None, check=False)


def test_a_thousand_ranks_fit_and_too_many_are_told() -> None:
    thousand = Topology.load("thousand-hosts")
    row, run = simulate_case(thousand, case_of("all_reduce", ranks=1024, nbytes=1 << 26), split=32)
    assert (row.instructions, len(run.end_ns)) == (run.instructions, 96)
    with pytest.raises(ArgumentError, match=r"some .* instructions of 8192 ranks take .* --split 64"):
        simulate_case(thousand, case_of("all_reduce", "two_shot_staged-1", ranks=8192, nbytes=1 << 26))


def test_the_bound_with_starts_adds_what_no_plan_hides() -> None:
    thousand = Topology.load("thousand-hosts")
    row, _ = simulate_case(thousand, case_of("all_gather", ranks=32))
    assert row.bound_us and row.started_bound_us and row.bound_by == "reads"
    latency_us = thousand.load_latency_ns(0, 63) / 1e3
    assert row.started_bound_us - row.bound_us == pytest.approx(20 + 5 + 1.5 + 2.142 + 5 + latency_us)
    row, _ = simulate_case(Topology.load("twelve-hosts"), case_of("all_to_all", ranks=12))
    assert row.bound_us and row.started_bound_us and row.bound_by == "cards"
    assert row.started_bound_us - row.bound_us == pytest.approx(25)  # cards may be busy between a write and its read


def test_statistics_add_up() -> None:
    row, run = simulate_case(TITAN, case_of("all_to_all", nbytes=12 << 20), log_max=1000)
    columns = run.executed
    for op, total in run.ops.items():
        of_op = [
            end - begin
            for begin, end, rank, stream, at in columns[["begin_ns", "end_ns", "rank", "stream", "at"]].tolist()
            if run.calls[0].plan.part(rank).streams[stream].records[at]["op"] == op
        ]
        assert (total.count, total.ns) == (len(of_op), sum(of_op))
    busy = {use.resource.name: (use.busy_ns, use.bytes, use.uses) for use in run.uses}
    for number, resource in enumerate(run.model.resources):
        its = run.reserved[run.reserved["resource"] == number]
        expected = int((its["end_ns"] - its["begin_ns"]).sum()), int(its["bytes"].sum()), len(its)
        assert busy.get(resource.name, (0, 0, 0)) == expected
        order = np.sort(its, order="begin_ns")
        assert (order["end_ns"][:-1] <= order["begin_ns"][1:]).all(), "one transfer at a time"
    assert run.ops[Op.WRITE].count == run.ops[Op.READ].count == 3 * 2 * 4
    assert row.exposed_wait_us * 1000 == run.exposed_wait_ns.max()


def test_ctrl_c_keeps_the_sizes_that_are_simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[Case] = []

    def third_is_interrupted(topology: Topology, case: Case, **told: Any) -> Any:
        begun.append(case)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return simulate_case(topology, case, **told)

    monkeypatch.setattr(simulate_cli, "simulate_case", third_is_interrupted)
    files = tmp_path / "rows.json", tmp_path / "trace.json"
    sizes = ("-b", "1K", "-e", "4K", "-f", "2")
    result = cxlemu(
        "simulate", "all_gather", *sizes, "--json", str(files[0]), "--trace", str(files[1]), code=INTERRUPTED
    )
    document = json.loads(files[0].read_text())
    assert document["interrupted"] and [row["size_bytes"] for row in document["rows"]] == [1024, 2048]
    assert json.loads(files[1].read_text())["traceEvents"]
    assert "# 2 results, not checked" in result.stdout
    assert result.stderr == "cxlemu: interrupted; 1 case not finished\n"
