"""`cxlemu reproduce cccl`: the baseline's plans, one fitted figure, the table's structure, the same twice."""

import json
import re
import statistics
import sys
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.simulated import simulate_case
from cxlemu.cli import console
from cxlemu.topology import Topology
from cxlemu.topology.intervals import changed
from cxlemu.topology.provenance import KINDS
from studies.cli import reproduce_cccl
from studies.cli.reproduce import ReproduceFlags
from studies.cli.reproduce_report import ReproductionReport
from studies.cli.reproduce_varied import print_varied, varied_table
from studies.published import cccl
from studies.published.cccl import AVERAGES, FITTED_ON, GROWTH, LOWS, SIZES, Reproduction
from studies.published.nccl import Nccl
from studies.published.ours import CHUNKS, RANKS, STAGGERED, Ours
from studies.published.rows import READ_IN, Row, hits, row_of
from studies.published.variation import AS_ASSUMED, assumed, times
from studies.ranged import of_cccl
from tests.helpers.commands import cxlemu
from tests.helpers.tables import with_rows

MB = 1 << 20


reproduce = partial(cxlemu, "reproduce", "cccl")


@lru_cache
def work() -> Reproduction:
    return Reproduction()


@lru_cache
def rows() -> dict[str, Row]:
    return {row.figure: row for row in work().rows()}


def nccl() -> Nccl:
    return work().nccl


@lru_cache
def few() -> Reproduction:
    """What is asked of every table is asked of one with three sizes, which takes a fraction of the time."""
    return Reproduction((MB, 64 * MB, 512 * MB))


def test_every_figure_of_the_baseline_says_where_it_comes_from() -> None:
    topology = nccl().topology
    assert topology.bare_figures() == []
    fitted = [key for key, standing in topology.provenance.items() if standing.kind == "fitted"]
    free, follow = "doorbell_observe_ns", "from_pool_gbytes_per_s"  # a ring's slice; the shares of LL128 and LL
    assert fitted == [
        ("spaces", 0, "protocols", at, "costs", what) for at, what in ((0, free), (2, follow), (3, follow))
    ]
    assert {standing.kind for standing in topology.provenance.values()} == set(KINDS)


def _the_file_has_what_is_fitted() -> None:
    """So that `cxlemu simulate` on the baseline's topologies tells the same as this table."""
    for topology in (nccl().topology, Topology.load("infiniband-12xh100")):
        its = Nccl(topology)
        assert its.slice_ns == work().slice_ns
        assert its.costing(its.slice_ns).spaces == topology.spaces  # shares that follow from it as well
    (case,) = Sweep(("broadcast",), [64 * MB], check=False).cases(RANKS)
    row, _ = simulate_case(nccl().topology, case)
    assert nccl().time_us("broadcast", 64 * MB, RANKS, work().slice_ns) == row.time_us


@pytest.mark.parametrize(
    ("collective", "share"),  # of the size, that passes the slowest link of three ranks
    [
        *(("all_gather", 2 / 3), ("reduce_scatter", 2 / 3), ("all_reduce", 4 / 3)),
        *(("broadcast", 1), ("reduce", 1), ("gather", 2 / 3), ("all_to_all", 2 / 3), ("scatter", 2 / 3)),
    ],
)
def test_large_messages_take_what_the_wire_takes(collective: str, share: float) -> None:
    """Where a slice costs its receiver nothing and reading is fast, the wire's 24 GB/s alone count."""
    topology = nccl().topology
    space = topology.pool_space
    fast = space.protocols[0].costs.model_copy(update={"from_pool_gbytes_per_s": 10_000.0})
    simple = space.protocols[0].model_copy(update={"costs": fast})
    update = {"spaces": (space.model_copy(update={"protocols": (simple,)}),)}
    wire = Nccl(topology.model_copy(update=update))
    assert wire.time_us(collective, 1 << 30, 3, 0) == pytest.approx((1 << 30) * share / 24e3, rel=0.01)


def test_a_slice_costs_more_where_slices_are_small() -> None:
    """Of 512 KiB twice as much as of 1 MiB, for as many bytes."""
    cost_us, size = 20, 1 << 30
    for collective, slices in (("all_gather", size * 2 / 3 / MB), ("broadcast", size / (MB / 2))):
        more = nccl().time_us(collective, size, 3, 40_000) - nccl().time_us(collective, size, 3, 20_000)
        assert more == pytest.approx(slices * cost_us, rel=0.05)


def test_small_messages_take_the_cheapest_protocol() -> None:
    taken = [nccl().taken("all_reduce", size, 3)[0].protocol for size in (1 << 10, 1 << 20, 1 << 28)]
    assert taken == ["ll", "ll128", "simple"]
    assert [nccl().taken("gather", size, 3)[0].protocol for size in (1 << 10, 1 << 28)] == ["sends", "sends"]
    reason = nccl().taken("all_reduce", 1 << 10, 3)[0].reason
    assert reason.startswith("tree with ll: ") and "ring simple " in reason


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", ["all_gather", "all_reduce", pytest.param("broadcast", marks=pytest.mark.deep)])
def test_protocols_are_chosen_by_the_costs_of_their_plans(name: str, ranks: int) -> None:
    """Twice the bytes take at most twice as long, where protocols change as well: else the other one was faster."""
    sizes = [1 << power for power in range(13, 27)]
    times = [nccl().time_us(name, size, ranks, nccl().slice_ns) for size in sizes]
    protocols = {nccl().taken(name, size, ranks)[0].protocol for size in sizes}
    assert protocols == {"ll", "ll128", "simple"}
    assert all(1 <= more / less < 2.1 for less, more in pairwise(times)), times


def _rows_are_all_published_figures() -> None:
    wanted = [f"{name}: average speedup" for name in AVERAGES] + [f"{name}: lowest speedup" for name in LOWS]
    wanted += [f"{name}: growth 3 to {ranks} hosts" for name in GROWTH for ranks in (6, 12)]
    assert set(wanted) < set(rows())
    assert len(rows()) == 3 + 9 + 3 + 5 + 3 + 6 + 2
    assert [row.figure for row in rows().values() if row.kind == "fitted"] == [f"{FITTED_ON}: average speedup"]
    assert {row.kind for row in rows().values()} == {"config", "fitted", "predicted"}
    for row in rows().values():
        assert row.published in row.published_range or row.relative_error == 0
        assert row.relative_error == row.ours / row.published - 1
        assert bool(row.shows) == row.missed == (abs(row.relative_error) > 0.15)
        assert row.kind != "config" or row.relative_error == 0
        assert row.read_in in READ_IN
    abstract = {row.published for row in rows().values() if row.read_in == "abstract"}
    assert {1.34, 1.84, 1.94, 1.04, 1.11} < abstract and len(abstract) == 6  # and what switches cost


def _the_one_fitted_figure_meets_the_average_that_it_is_fitted_on() -> None:
    def average(slice_ns: int) -> float:
        return statistics.fmean(work().speedups(FITTED_ON, slice_ns=slice_ns))

    at = work().slice_ns
    assert average(at - 1) < AVERAGES[FITTED_ON] <= average(at)
    assert rows()[f"{FITTED_ON}: average speedup"].ours == average(at)


def test_no_other_published_figure_has_an_influence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tuned to what it is compared with: with other published figures, ours are the same."""
    for name in AVERAGES:
        if name != FITTED_ON:
            monkeypatch.setitem(cccl.AVERAGES, name, 1.2)
    sizes = SIZES[:3]
    changed = {row.figure: row for row in Reproduction(sizes).averages()}
    monkeypatch.undo()
    for row in Reproduction(sizes).averages():
        assert changed[row.figure].ours == row.ours
    assert changed["gather: average speedup"].published == 1.2


@pytest.mark.deep
@pytest.mark.parametrize("variant", cccl.VARIANTS)
def test_ours_is_what_simulate_says(variant: str) -> None:
    for name in AVERAGES:
        shipped = f"{STAGGERED.get((name, variant), variant)}-2" if variant == "all" else variant
        (case,) = Sweep((name,), [64 * MB], variant=shipped, check=False).cases(RANKS)
        row, _ = simulate_case(work().ours.topology, case)
        chunks = 2 if variant == "all" else 1
        assert work().ours.time(name, 64 * MB, variant=variant, chunks=chunks).us == row.time_us


@pytest.mark.parametrize("name", ["reduce_scatter", "broadcast"])
def test_a_call_is_cut_into_the_chunks_that_are_fastest(name: str) -> None:
    ours, size = work().ours, 16 * MB
    each = {k: ours.time(name, size, chunks=k).us for k in CHUNKS}
    chosen = ours.time(name, size)
    assert chosen.us == min(each.values()) == each[chosen.chunks]
    assert ours.time(name, size, variant="naive").chunks == 1


def test_where_every_rank_folds_peers_are_read_staggered() -> None:
    """In rank order all ranks would read from the same cards at the same time."""
    ours, size = work().ours, 64 * MB
    (case,) = Sweep(("all_reduce",), [size], variant="all-2", check=False).cases(RANKS)
    in_rank_order, _ = simulate_case(ours.topology, case)
    assert ours.time("all_reduce", size, chunks=2).us < 0.9 * in_rank_order.time_us


def test_naive_puts_everything_on_the_first_card() -> None:
    """As long as there is room: what is published lies one after another."""
    for variant, cards in (("naive", {0}), ("aggregate", set(range(6)))):
        run = work().ours._run("gather", variant, 64 * MB, RANKS, 1)
        used = {use.resource.name.split()[0] for use in run.uses if use.resource.kind == "card" and use.bytes > MB}
        assert used == {f"card{card}" for card in cards}


@pytest.mark.deep
def test_whole_chunks_lie_on_a_card_each() -> None:
    def cards_of_a_chunk(ours: Ours) -> int:
        run = ours._run("broadcast", "all", 64 * MB, RANKS, 1)  # one chunk a block
        return sum(use.resource.kind == "card" and use.bytes > MB for use in run.uses) // 3  # reads, writes, both

    assert [cards_of_a_chunk(ours) for ours in (work().grown, work().grown_whole)] == [6, 1]


def test_a_range_is_met_inside_and_missed_from_its_nearer_end() -> None:
    for ours, published, error in ((1.5, 1.5, 0.0), (2.0, 2.0, 0.0), (0.5, 1.0, -0.5), (5.0, 2.5, 1.0)):
        row = row_of("x", (1.0, 2.5), ours, read_in="paper")
        assert (row.published, row.relative_error) == (published, error)


def test_a_measured_step_is_what_a_slice_of_grouped_sends_takes() -> None:
    """Of 128 KiB: 11 us, its bytes at the copy's 20 GB/s, and loads; all of the root's slices one after another."""
    size, nbytes = 192 * MB, 128 << 10
    slices = 2 * size / 3 / nbytes
    us = nccl().time_us("gather", size, 3, 0)
    assert 1 < us / (slices * (11 + nbytes / 20e3)) < 1.1
    assert us == nccl().time_us("gather", size, 3, 1000)  # nothing fitted has an influence


@pytest.mark.deep
def test_the_table_the_file_and_the_plots_have_these_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command computes them again, and comes to the same bits; and 80 columns are enough."""
    its = {row.figure: row for row in few().each_row()}
    monkeypatch.setattr(console, "PIPE_CHARS", 80)
    monkeypatch.setattr(reproduce_cccl, "Reproduction", lambda: Reproduction(few().sizes))
    done = reproduce("--json", str(tmp_path / "c.json"), "--plot", str(tmp_path / "out"), code=0)
    assert max(map(len, done.output.splitlines())) <= 80 and "…" not in done.output
    told = " ".join(done.output.split())
    document: dict[str, Any] = json.loads((tmp_path / "c.json").read_text())
    assert [(row["figure"], row["ours"]) for row in document["rows"]] == [
        (row.figure, row.ours) for row in its.values()
    ]
    assert {"figure", "published", "ours", "relative_error", "kind"} <= set(document["rows"][0])
    assert document["fitted"] == {"name": "slice_ns", "value": few().slice_ns, "on": FITTED_ON}
    assert document["baseline"]["config"]["name"] == "infiniband-3xh100-cccl"
    for row in its.values():
        assert row.figure in done.output
        assert not row.missed or row.shows in told
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["chunks.png", "growth.png", "speedups.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


@with_rows(
    (["--json", "/nonexistent/c.json"], "--json /nonexistent/c.json cannot be written"),
    (["--plot", "/dev/null"], "--plot /dev/null cannot be made"),
)
def test_bad_input_is_refused_before_the_work(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reproduction, "each_row", lambda self: pytest.fail("worked all the same"))
    assert message in reproduce(*arguments, code=2).output
    assert cxlemu("reproduce", "nothing").exit_code == 2


def test_without_matplotlib_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install 'cxlemu[plot]'" in reproduce("--plot", str(tmp_path / "out"), code=2).output
    assert list(tmp_path.iterdir()) == []


def _the_docs_have_this_table() -> None:
    text = (Path(__file__).parents[2] / "docs" / "published.md").read_text()
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([-+]?\d+%) \| (\w+)", text, re.MULTILINE)
    averages = {row.figure.split(":")[0]: row for row in rows().values() if "average speedup" in row.figure}
    assert sorted(table) == sorted(
        (name, f"{row.published:.2f}", f"{row.ours:.2f}", percent(row.relative_error), row.kind)
        for name, row in averages.items()
    )


def _the_docs_have_the_count_and_the_curve() -> None:
    text = " ".join((Path(__file__).parents[2] / "docs" / "published.md").read_text().split())
    near, predicted = hits(list(rows().values()))
    assert f"{near} of {predicted} predicted figures are within 15%" in text
    for name, (size, _) in zip(("256 MiB", "1 GiB"), cccl.SWINGS.items(), strict=True):
        cells = [
            f"{100 * (time - 1):+.0f}%" if time > 1 else "best" for time in work().curve("all_gather", size).values()
        ]
        assert f"| all_gather, {name} | {' | '.join(cells)} |" in text
    for name in AVERAGES:
        means = [statistics.fmean(work().speedups(name, chunks=k)) for k in (*cccl.CURVE, 0)]
        assert f"| {name}, by chunks | {' | '.join(f'{mean:.2f}' for mean in means)} |" in text


@pytest.mark.deep
def test_the_whole_table_is_what_is_published_fitted_and_documented() -> None:
    """One test, so that one process works the table out, which takes longer than all that is asked of it."""
    _the_file_has_what_is_fitted()
    _rows_are_all_published_figures()
    _the_one_fitted_figure_meets_the_average_that_it_is_fitted_on()
    _the_docs_have_this_table()
    _the_docs_have_the_count_and_the_curve()


def test_every_assumed_figure_is_varied_alone() -> None:
    topology = work().ours.topology
    names = dict(assumed(topology))
    assert ("costs", "copy_ns") in names and ("costs", "to_pool_gbytes_per_s") not in names  # that has a source
    slower = changed(topology, {("costs", "copy_ns"): times(("costs", "copy_ns"), 5000, 1.25)})
    assert slower.costs.copy_ns == 6250
    assert slower.model_copy(update={"costs": topology.costs}) == topology
    assert of_cccl(few())[0].assumed["titan2-6xcz120: switches.0.port_latency_ns"] == (
        (0, "switches", 0, "port_latency_ns"),
        100,
    )


@pytest.mark.deep
def test_every_row_is_told_with_every_assumed_figure_varied() -> None:
    found = dict(of_cccl(few(), [64 * MB])[0].otherwise())
    usual = found.pop(AS_ASSUMED)
    sized = ("all_reduce: average above 256 MiB",)  # no row at 64 MiB
    assert {row.figure for row in few().rows() if row.kind != "config"} == {*usual, *sized}
    assert all(its.keys() == usual.keys() for its in found.values())
    assert usual["broadcast: average speedup"][0] == few().speedups("broadcast")[few().sizes.index(64 * MB)]
    less, more = found["titan2-6xcz120: costs.copy_ns"]["broadcast: average speedup"]
    assert less > usual["broadcast: average speedup"][0] > more  # copies start sooner, later
    less, more = found["titan2-6xcz120: costs.copy_ns"]["broadcast: growth 3 to 12 hosts"]
    assert less != more  # varied on more hosts, too
    assert any(name.startswith("infiniband-3xh100-cccl: ") for name in found)
    # plans are shared by all of them: on its own, one takes as long
    grown = Ours(changed(few().grown.topology, {("costs", "copy_ns"): 6250}))
    times = [grown.time("broadcast", 64 * MB, ranks=ranks).us for ranks in (12, RANKS)]
    assert more == times[0] / times[1]
    ours, baseline = (its.topology for its in (few().ours, few().nccl))
    port = baseline.switches[0].port_latency_ns
    slower = Nccl(changed(baseline, {("switches", 0, "port_latency_ns"): 1.25 * port}))
    assert found["infiniband-3xh100-cccl: switches.0.port_latency_ns"]["gather: average speedup"][1] == (
        slower.time_us("gather", 64 * MB, RANKS, few().slice_ns) / Ours(ours).time("gather", 64 * MB).us
    )


def test_rows_are_listed_with_what_moves_them_and_counted() -> None:
    rows = [row_of("a", 1.0, 1.1, read_in="paper"), row_of("b", 1.0, 2.0, read_in="paper")]
    steps = {
        AS_ASSUMED: {"a": (1.1, 1.1), "b": (2.0, 2.0)},
        "weak": {"a": (1.1001, 1.1), "b": (2.0, 2.0)},
        "some": {"a": (1.1, 1.2), "b": (2.0, 2.0)},
        "most": {"a": (1.1, 1.1), "b": (1.1, 2.5)},
    }
    table = varied_table(rows, steps)
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == ["a", "  some", "b", "  most"]
    assert columns[3] == ["", "1.1", "", "1.1"] and columns[4] == ["", "1.2", "", "2.5"]
    report = ReproductionReport(ReproduceFlags(json_file=None, plot_dir=None), {})
    told: list[str] = []
    report.lines = lambda lines, style="": told.extend(lines)  # type: ignore[method-assign]
    assert print_varied(report, rows, steps.items()) == steps
    assert (
        "Predicted figures within 15%: 1 as assumed, 0 at least (some 25% higher), 2 at most (most 25% lower)." in told
    )
    assert told[-1] == "Moves nothing: weak."


def test_another_reading_of_a_figure_is_not_counted_twice() -> None:
    rows = [
        row_of("x", 1.0, ours, kind, read_in="paper")
        for ours, kind in ((1, "predicted"), (1, "reading"), (2, "predicted"))
    ]
    assert hits(rows) == (1, 2)


def percent(error: float) -> str:
    return "0%" if abs(error) < 0.005 else f"{100 * error:+.0f}%"
