"""Memory-bound workloads on tiers: to the nanosecond where a pencil can tell, analytic sums, and no byte lost."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cxlemu.cli import INTERRUPTED
from cxlemu.cost import CostModel
from cxlemu.errors import ArgumentError, ConfigError
from cxlemu.topology import Topology
from studies.published import tiers
from studies.published.tiers import CLUSTERS, SCALEPOOL, TierStudy, told, variations
from studies.tiering.placement import Move
from studies.tiering.program import Program, timed
from studies.tiering.snoops import SnoopFilter
from studies.tiering.study import ACCESSES, Memory
from studies.tiering.tiers import tiers_of
from studies.tiering.workloads import Workload, zipf_shares, zipf_sums
from tests.helpers.commands import cxlemu
from tests.helpers.fabric_helpers import ns
from tests.helpers.tables import with_rows

TEXT = """
name: four
hosts: {count: 4, memory: {latency_ns: 100, read_gbytes_per_s: 100, write_gbytes_per_s: 100}}
cards:
  - {count: 2, capacity_bytes: 64MiB, latency_ns: 300, read_gbytes_per_s: 20, write_gbytes_per_s: 20,
     total_gbytes_per_s: 40}
  - {owner: hosts, capacity_bytes: 8MiB, latency_ns: 90, read_gbytes_per_s: 1000, write_gbytes_per_s: 1000,
     total_gbytes_per_s: 2000}
switches:
  - {name: xs, port_latency_ns: 150}
  - {name: cxl, port_latency_ns: 100}
links:
  - {name: xlink, ends: [hosts, xs], gbytes_per_s: 400, latency_ns: 30}
  - {name: port, ends: [hosts, cxl], gbytes_per_s: 63, latency_ns: 20}
  - {name: node, ends: [cards, cxl], gbytes_per_s: 31.5, latency_ns: 20}
spaces:
  - {name: nodes, kind: tier2, coherent: false, interleave_bytes: 64KiB}
  - {name: hbm, kind: xlink, coherent: true, over: [xs], coherence_ns: 40}
emulation: {card_bytes: 1MiB}
"""
FOUR = Topology.parse(TEXT.encode(), "four.yaml")
OWN, PEERS, NODES = range(3)  # nearest first
MIB = 1 << 20
CHASE, EMBEDDING, KV = (Workload.load(name) for name in ("pointer-chase", "embedding", "kv-cache"))


def load_ns(tier: int, nbytes: int = 64) -> int:
    """By hand: the slowest part of the way, the way there and back, and the memory."""
    if tier == OWN:
        return ns(nbytes, 1000) + 90
    if tier == PEERS:
        return 40 + ns(nbytes, 400) + 2 * (30 + 150 + 30) + 90
    return ns(nbytes, 20) + 2 * (20 + 100 + 20) + 300


def test_tiers_are_a_topologys_spaces_nearest_first() -> None:
    memory = Memory(FOUR)
    assert [(t.name, t.own, t.capacity_bytes // MIB) for t in memory.tiers] == [
        ("hbm", True, 8),
        ("hbm of peers", False, 24),
        ("nodes", False, 128),
    ]
    assert [tier.load_ns for tier in memory.tiers] == [load_ns(tier) for tier in (OWN, PEERS, NODES)]
    shared = Memory(FOUR, ranks=2)
    assert [tier.capacity_bytes // MIB for tier in shared.tiers] == [8, 8, 64]  # two lend, to two
    assert len(Memory(FOUR, ranks=4).tiers) == 2  # nobody is left to lend
    with pytest.raises(ArgumentError, match="four has 4 places for ranks, not 5"):
        Memory(FOUR, ranks=5)
    part = TEXT.replace("interleave_bytes: 64KiB}", "interleave_bytes: 64KiB, capacity_bytes: 96MiB}")
    assert Memory(Topology.parse(part.encode(), "four.yaml"), ranks=2).tiers[-1].capacity_bytes == 48 * MIB


def test_a_chase_in_one_tier_is_its_latency_exactly() -> None:
    assert Memory(FOUR).measure(CHASE, 8 * MIB).access_ns == load_ns(OWN)


@pytest.mark.parametrize("workload", [CHASE, EMBEDDING, KV], ids=lambda its: its.name)
@pytest.mark.parametrize("size", [16, 32, 100, 160])
def test_without_moves_a_mean_is_the_sum_over_tiers(workload: Workload, size: int) -> None:
    """Of the part of the working set that lies there by what an access takes there."""
    measured = Memory(FOUR).measure(workload, size * MIB)
    parts = [8, min(size, 32) - 8, max(size - 32, 0)]
    exact = sum(part * load_ns(tier, workload.access_bytes) for tier, part in enumerate(parts)) / size
    pages = measured.accesses
    assert pages == min(size * MIB // workload.page_bytes, pages)
    slack = max(load_ns(tier, workload.access_bytes) for tier in range(3)) * 2 / pages  # rooms are whole pages
    assert measured.access_ns == pytest.approx(exact, abs=slack)
    for tier, part in zip(measured.tiers, parts, strict=True):
        assert tier.accesses == pytest.approx(pages * part / size, abs=2)


def test_coherence_is_paid_by_who_is_not_the_owner_and_counted() -> None:
    measured = Memory(FOUR).measure(CHASE, 32 * MIB)
    own, peers, nodes = measured.tiers
    assert (own.coherence_ns, nodes.coherence_ns) == (0, 0)
    assert peers.coherence_ns == 40 * peers.accesses > 0
    without = Topology.parse(TEXT.replace(", coherence_ns: 40", "").encode(), "four.yaml")
    cheaper = Memory(without).measure(CHASE, 32 * MIB)
    assert measured.access_ns - cheaper.access_ns == pytest.approx(peers.coherence_ns / measured.accesses)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=60))
def test_a_snoop_filter_gives_up_what_was_used_longest_ago(room: int, reads: list[tuple[int, int]]) -> None:
    """Against its definition: of all lines ever read, the last ``room`` distinct ones are in it."""
    snoops, history = SnoopFilter(room), [-1]
    for first, count in reads:
        expected = 0
        for line in range(first, first + count):
            recent = list(dict.fromkeys(reversed(history[1:])))[:room]
            expected += line not in recent and len(recent) == room
            history.append(line)
        assert snoops.read(range(first, first + count)) == expected


@pytest.mark.parametrize(("filter_lines", "given_up"), [(2048, 0), (2047, 1)])
def test_a_chase_through_more_lines_than_a_filter_has_room_for_gives_one_up_each_time(
    filter_lines: int, given_up: int
) -> None:
    """24 MiB of peers are 6144 pages, of which one line each is read, in three homes: 2048 lines each just do."""
    keys = f"coherence_ns: 40, snoop_filter_lines: {filter_lines}, back_invalidate_ns: 500"
    bounded = Topology.parse(TEXT.replace("coherence_ns: 40", keys).encode(), "four.yaml")
    plain, measured = Memory(FOUR).measure(CHASE, 32 * MIB), Memory(bounded).measure(CHASE, 32 * MIB)
    own, peers, nodes = measured.tiers
    assert peers.back_invalidations == given_up * peers.accesses
    assert peers.coherence_ns == (40 + 500 * given_up) * peers.accesses
    assert peers.ns == plain.tiers[PEERS].ns + 500 * given_up * peers.accesses
    assert own.back_invalidations == nodes.back_invalidations == 0
    assert measured.access_ns * measured.accesses == pytest.approx(sum(tier.ns for tier in measured.tiers))


def test_what_comes_again_soon_stays_in_a_filter() -> None:
    """A skewed table has fewer lines given up than a chase, and fewer the more room there is."""

    def rate(workload: Workload, filter_lines: int) -> float:
        keys = f"coherence_ns: 40, snoop_filter_lines: {filter_lines}, back_invalidate_ns: 500"
        bounded = Topology.parse(TEXT.replace("coherence_ns: 40", keys).encode(), "four.yaml")
        peers = Memory(bounded).measure(workload, 14 * MIB).tiers[PEERS]
        return peers.back_invalidations / peers.accesses / -(-workload.access_bytes // 64)

    assert rate(CHASE, 400) == 1
    assert 1 > rate(EMBEDDING, 400) > rate(EMBEDDING, 2000) > rate(EMBEDDING, 1 << 20) == 0


@with_rows(
    ("snoop_filter_lines: 4", "and back_invalidate_ns belong together"),
    ("back_invalidate_ns: 4", "and back_invalidate_ns belong together"),
    ("snoop_filter_lines: 0, back_invalidate_ns: 4", "snoop_filter_lines"),
)
def test_half_a_filter_is_refused(keys: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        Topology.parse(TEXT.replace("coherence_ns: 40", keys).encode(), "four.yaml")


def test_memory_that_takes_copies_is_read_a_page_at_a_time() -> None:
    copied = TEXT.replace("interleave_bytes: 64KiB}", "interleave_bytes: 64KiB, costs: {copy_ns: 700}}")
    far = Memory(Topology.parse(copied.encode(), "four.yaml")).measure(CHASE, 160 * MIB).tiers[NODES]
    assert far.bytes_read == far.accesses * 4096
    assert far.access_ns == 700 + load_ns(NODES, 4096)


def test_ranks_queue_where_they_meet() -> None:
    """Four chase; nobody lends. What one takes alone is the least that one of four takes."""
    alone, four = (Memory(FOUR, ranks=ranks).measure(KV, 32 * MIB) for ranks in (1, 4))
    nodes = four.tiers[-1]
    assert nodes.name == "nodes"
    assert nodes.access_ns > load_ns(NODES, KV.access_bytes) * 1.2
    assert four.accesses == 4 * alone.accesses


# --- accesses and moves ---------------------------------------------------------------------------------------------

PAGE = 4096


def played(tiers: list[int], pages: list[int], moves: dict[int, list[Move]]) -> tuple[list[int], dict[str, int]]:
    """What each access takes, of 64 bytes of these pages in these tiers; and the bytes through each memory."""
    model = CostModel.of(FOUR, 4)
    program = Program(np.array(tiers), np.array(pages), np.full(len(tiers), 64), PAGE, moves)
    run, (times,) = timed(model, [tier.regions for tier in tiers_of(model, 1)], [program])
    return times.tolist(), {use.resource.name: use.bytes for use in run.uses if use.resource.kind == "card"}


def test_accesses_come_one_after_another() -> None:
    tiers = [OWN, NODES, PEERS, OWN]
    assert played(tiers, [0, 1, 2, 3], {})[0] == [load_ns(tier) for tier in tiers]


def test_an_access_waits_for_its_page_that_is_on_its_way() -> None:
    """It is read where it lay and written where it will lie, and that is when the access begins."""
    times, _ = played([OWN] * 4, [0, 1, 0, 1], {1: [Move(1, NODES, OWN)]})
    moved = load_ns(NODES, PAGE) + ns(PAGE, 1000)
    assert times == [load_ns(OWN), moved + load_ns(OWN), load_ns(OWN), load_ns(OWN)]


def test_a_page_is_there_when_its_bytes_have_landed() -> None:
    times, _ = played([OWN, NODES], [0, 1], {1: [Move(1, OWN, NODES)]})
    landed = load_ns(OWN, PAGE) + ns(PAGE, 20) + 2 * (20 + 100 + 20)
    assert times == [load_ns(OWN), landed + load_ns(NODES)]


def test_a_page_that_moves_twice_is_waited_for_until_it_is_there() -> None:
    there = {1: [Move(1, NODES, OWN)], 2: [Move(1, OWN, PEERS)]}
    times, _ = played([OWN, OWN, PEERS], [0, 0, 1], there)
    first, second = load_ns(NODES, PAGE) + ns(PAGE, 1000), load_ns(OWN, PAGE) + 40 + ns(PAGE, 400)
    assert times == [load_ns(OWN), load_ns(OWN), first + second - load_ns(OWN) + load_ns(PEERS)]


def test_a_move_passes_beside_accesses_to_other_pages() -> None:
    times, _ = played([OWN] * 9, [0] * 9, {1: [Move(1, NODES, PEERS)]})
    assert times == [load_ns(OWN)] * 9


def test_every_byte_that_leaves_a_tier_arrives_in_another() -> None:
    """Conservation, as the modelled memories count: of each move a page is read in one and written in the other."""
    moves = {1: [Move(1, NODES, OWN)], 2: [Move(2, OWN, NODES)], 3: [Move(3, NODES, OWN)]}
    _, used = played([OWN] * 5, [0] * 5, moves)
    assert used["host0 memory reads"] == 5 * 64 + PAGE
    assert used["host0 memory writes"] == 2 * PAGE
    assert sum(nbytes for name, nbytes in used.items() if re.match(r"card\d reads", name)) == 2 * PAGE
    assert sum(nbytes for name, nbytes in used.items() if re.match(r"card\d writes", name)) == PAGE


@pytest.mark.each_value_once
@pytest.mark.parametrize("policy", ["lru", "hotness", "prefetch"])
@pytest.mark.parametrize("workload", [EMBEDDING, KV], ids=lambda its: its.name)
def test_policies_conserve_bytes_and_hit_more(workload: Workload, policy: str) -> None:
    memory = Memory(FOUR)
    stays, moves = (memory.measure(workload, 100 * MIB, policy=name) for name in ("static", policy))
    assert sum(tier.moved_in_bytes for tier in moves.tiers) == sum(tier.moved_out_bytes for tier in moves.tiers) > 0
    assert moves.accesses == ACCESSES == sum(tier.accesses for tier in moves.tiers)
    assert sum(tier.ns for tier in moves.tiers) == pytest.approx(moves.access_ns * ACCESSES)
    assert moves.tiers[OWN].accesses / moves.accesses > 2 * stays.tiers[OWN].accesses / stays.accesses


# --- workloads ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skew", [0.0, 0.5, 0.99, 1.0, 1.5])
def test_zipfs_sums_are_those_that_one_adds_up(skew: float) -> None:
    exact = np.cumsum(np.arange(1, 2_000_001, dtype=np.float64) ** -skew)
    for count in (1, 2, 1000, 65_536, 65_537, 2_000_000):
        assert zipf_sums(np.array([count]), skew)[0] == pytest.approx(exact[count - 1], rel=1e-9)


def test_zipfs_hits_are_the_analytic_sum() -> None:
    """The most popular parts of ten billion pages are hit as often as the sum says."""
    parts, real, kept = 512, 10**10, 32
    trace = EMBEDDING.trace(parts, real, 40_000, seed=3)
    most = np.sort(np.bincount(trace, minlength=parts))[::-1][:kept].sum() / trace.size
    expected = float(zipf_sums(np.array([real * kept / parts]), 0.99)[0] / zipf_sums(np.array([real]), 0.99)[0])
    assert zipf_shares(parts, real, 0.99)[:kept].sum() == pytest.approx(expected)
    assert abs(most - expected) < 4 * np.sqrt(expected * (1 - expected) / trace.size) + 0.003
    assert expected > 0.85


def test_hotness_comes_near_the_best_that_can_be_placed() -> None:
    """What no policy that knows all popularities could pass: the analytic sum over what the nearest memory holds."""
    measured = Memory(FOUR).measure(EMBEDDING, 100 * MIB, policy="hotness")
    pages = 100 * MIB // EMBEDDING.page_bytes
    best = float(zipf_sums(np.array([pages * 0.08]), 0.99)[0] / zipf_sums(np.array([pages]), 0.99)[0])
    hits = measured.tiers[OWN].accesses / measured.accesses
    assert 0.6 * best < hits < best + 0.02


def test_a_chase_goes_once_round_before_it_comes_again() -> None:
    trace = CHASE.trace(100, 100, 250, seed=1)
    assert sorted(trace[:100]) == list(range(100))
    assert (trace[100:200] == trace[:100]).all()


def test_sessions_read_their_pages_for_every_token() -> None:
    pages, tokens = KV.session_pages or 0, KV.session_tokens or 0
    turn = KV.trace(4096, 4096, pages * tokens, seed=1)
    assert len(set(turn.tolist())) == pages
    assert (turn.reshape(tokens, pages) == turn[:pages]).all()


def test_long_sessions_are_cut_where_the_trace_ends() -> None:
    endless = KV.model_copy(update={"session_pages": 1 << 16, "session_tokens": 1 << 16})
    assert len(endless.trace(4096, 4096, 1000, seed=1)) == 1000


def test_the_largest_pages_that_may_be_are_simulated() -> None:
    """Of the largest sample: the last page still lies where the engine reaches."""
    large = CHASE.model_copy(update={"page_bytes": 2 << 20})
    memory = Memory(Topology.load("tiers-scalepool"))
    assert memory.measure(large, 40 << 40, pages=256).access_ns > memory.measure(large, 20 << 40).access_ns


def test_the_same_seed_gives_the_same_and_a_larger_sample_nearly_so() -> None:
    memory = Memory(FOUR)
    one, again, other = (memory.measure(EMBEDDING, 100 * MIB, policy="hotness", seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one.access_ns != other.access_ns
    finer = memory.measure(EMBEDDING, 100 * MIB, policy="hotness", pages=256)
    assert finer.access_ns == pytest.approx(one.access_ns, rel=0.1)


@with_rows(
    ("kind: zipf", "kind: chase", "skew does not apply to a workload of kind chase; leave it out"),
    ("skew: {value: 0.99", "#", "skew is missing: a workload of kind zipf has one"),
    ("value: 512", "value: 8192", "access_bytes is 8192 but should fit a page of 4096"),
    ("value: 4KiB", "value: 100", "page_bytes is 100 but should be whole lines, 2 MiB at most"),
    ("value: 0.99", "value: .nan", "not a plain number"),
)
def test_a_workload_that_makes_no_sense_is_refused(old: str, new: str, said: str, tmp_path: Path) -> None:
    text = (Workload.folder / "embedding.yaml").read_text()
    assert old in text
    file = tmp_path / "bad.yaml"
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=re.escape(said)):
        Workload.load(file)


def test_every_figure_of_what_is_shipped_says_where_it_comes_from() -> None:
    for name in Workload.shipped():
        its = Workload.load(name)
        numbers = [key for key, value in its.model_dump().items() if isinstance(value, int | float)]
        assert {(key,) for key in numbers} <= its.provenance.keys()
    for name in ("tiers-rdma", "tiers-clusters", "tiers-scalepool"):
        assert Topology.load(name).bare_figures() == []


# --- the command ----------------------------------------------------------------------------------------------------


def ran(*arguments: str) -> tuple[int, str]:
    result = cxlemu("simulate", "memory", *arguments)
    return result.exit_code, result.output


@pytest.fixture
def four(tmp_path: Path) -> str:
    (tmp_path / "four.yaml").write_text(TEXT)
    return str(tmp_path / "four.yaml")


def test_ctrl_c_keeps_the_workloads_that_ended(four: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = Memory.measure

    def second_is_interrupted(memory: Memory, workload: Workload, *sizes: int, **told: Any) -> Any:
        if workload.name == "embedding":
            raise KeyboardInterrupt
        return measure(memory, workload, *sizes, **told)

    monkeypatch.setattr(Memory, "measure", second_is_interrupted)
    file = tmp_path / "out.json"
    arguments = ["pointer-chase", "embedding", "-c", four, "-e", "8M", "--json", str(file)]
    result = cxlemu("simulate", "memory", *arguments, code=INTERRUPTED)
    assert result.stderr == "cxlemu: interrupted; 1 workload not finished\n"
    document = json.loads(file.read_text())
    assert document["interrupted"] and {row["workload"] for row in document["rows"]} == {"pointer-chase"}


def test_the_command_prints_a_column_for_each_policy(four: str, tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    code, output = ran("pointer-chase", "-c", four, "-e", "32M", "--policy", "static,lru", "-v", "--json", str(file))
    assert code == 0
    assert f"hbm of peers      24 MiB, a load takes {load_ns(PEERS)} ns" in output
    sizes = re.findall(r"^ +(\d+ MiB) +[\d.]+ +[\d.]+$", output, re.MULTILINE)
    assert sizes == ["4 MiB", "8 MiB", "16 MiB", "32 MiB"]
    assert f"four static: hbm 50.0% at {load_ns(OWN)} ns, hbm of peers 50.0% at {load_ns(PEERS)} ns" in output
    document = json.loads(file.read_text())
    assert [row["policy"] for row in document["rows"]] == ["static", "lru"] * 4
    assert document["workloads"][0]["access_bytes"]["source"]
    assert document["rows"][0]["tiers"][0]["name"] == "hbm"


def test_the_command_draws(four: str, tmp_path: Path) -> None:
    code, _ = ran("-c", four, "-b", "16M", "-e", "64M", "--plot", str(tmp_path / "out.png"))
    assert code == 0
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


@with_rows(
    (("nothing",), "'nothing' is neither a file nor a shipped memory workload (embedding, kv-cache, pointer-chase)"),
    (("-e", "1G"), "a working set of 1 GiB does not fit four, where a rank has 160 MiB"),
    (("-b", "2M", "-e", "1M"), "-b 2M is more than -e 1M"),
    (("-b", "1M", "-e", "1M", "-f", "4"), "--stepfactor does nothing here, because there is one size"),
    (("-b", "0"), "-b is 0 and -e is 0"),
    (("-n", "5"), "four has 4 places for ranks, not 5"),
    (("--policy", "fifo"), "unknown value 'fifo': choose from static, lru, hotness, prefetch or all"),
    (("--policy", "hotnes"), "unknown value 'hotnes'; did you mean hotness? Choose from static"),
    (("--json", "/nowhere/x"), "--json /nowhere/x cannot be written"),
)
def test_what_cannot_be_simulated_is_said_in_a_sentence(arguments: tuple[str, ...], said: str, four: str) -> None:
    code, output = ran("-c", four, *arguments)
    assert code == 2
    assert said in output


def test_a_sample_that_would_be_too_large_is_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"is 284 times the nearest memory, .* with 65536 pages there for each rank: take fewer"
    ):
        Memory(Topology.load("tiers-scalepool")).measure(CHASE, 48 << 40, pages=1 << 16)


# --- ScalePool's figures --------------------------------------------------------------------------------------------


@pytest.fixture
def study(monkeypatch: pytest.MonkeyPatch) -> TierStudy:
    """Of one working set as large as the cluster, and one four times as large."""
    monkeypatch.setattr(tiers, "ACCELERATORS", (72,))
    monkeypatch.setattr(tiers, "TIMES_CLUSTER", (4,))
    return TierStudy(pages=32)


def test_scalepools_figures_stand_beside_ours(study: TierStudy) -> None:
    rows = list(study.rows())
    of_mix = [(1.4, "predicted"), (4.5, "predicted"), (1.6, "predicted")]
    by_latency = [(4.5, "reading"), (1.6, "reading")]  # of the tier that is reached: the same figures, read otherwise
    assert [(row.published, row.kind) for row in rows] == [*of_mix, *by_latency]
    for row in rows:
        assert row.relative_error == pytest.approx(row.ours / row.published - 1)
        assert bool(row.shows) == row.missed
    assert rows[0].ours > 1.2 * study.gains(policies=("hotness", "hotness"))[0]  # as the baseline moves nothing
    beyond = [row.ours for row in rows[1:3]]
    assert beyond[0] > beyond[1] > 1  # RDMA is further away than clusters are, and those than memory nodes


def test_what_is_assumed_moves_the_figures_that_it_is_of(study: TierStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    topologies = {name: memory.topology for name, memory in study.memories.items()}
    varied = {what: study.varied(changed).gains() for what, changed in variations(topologies)}
    inside, rdma, clusters = study.gains()
    sooner, later = varied["starting a copy took 2500 ns"], varied["starting a copy took 10000 ns"]
    assert sooner[1] < rdma < later[1]
    assert [sooner[0], sooner[2]] == [later[0], later[2]] == [inside, clusters]
    slow = dict(variations(topologies))["CXL switches and bridges took 2 times as long"]
    before, after = ([tier.load_ns for tier in its.memories[SCALEPOOL].tiers] for its in (study, study.varied(slow)))
    assert after == [before[OWN], before[PEERS], before[NODES] + 2 * 3 * 100]  # a bridge, a leaf and a spine, both ways
    near, far = (varied[f"CXL switches and bridges took {factor} times as long"] for factor in ("0.5", "2"))
    assert near[1] > rdma > far[1]  # ScalePool's own way to tier 2
    assert near[2] < clusters < far[2]  # of which the way to another cluster has more
    monkeypatch.setattr(tiers, "variations", lambda _: [("it were otherwise", {})])
    *_, stay, _, otherwise = told(study)
    assert stay == "  " + ", ".join(f"{x:.2f}" for x in study.gains(policies=("static", "static"))) + (
        " if all left pages where they are"
    )
    assert otherwise == f"  {inside:.2f}, {rdma:.2f}, {clusters:.2f} if it were otherwise"


def test_a_gain_is_what_an_access_takes_there_by_what_it_takes_here(study: TierStudy) -> None:
    """Of a chase that stays: the latencies of all tiers, each by the part of the working set that lies there."""
    chase = next(workload for workload in study.workloads if workload.kind == "chase")
    size = study.beyond[-1]
    gain = study.gain(CLUSTERS, [size], policies=("static", "static"), only=chase)
    parts = np.array([1, 71, 3 * 72]) / (4 * 72)  # of the working set: own, peers', and what is further
    loads = [[tier.load_ns for tier in study.memories[name].tiers] for name in (CLUSTERS, SCALEPOOL)]
    there, here = (float(parts @ np.array(its)) for its in loads)
    assert gain == pytest.approx(there / here, rel=0.01)
