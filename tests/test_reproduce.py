"""`cxlemu reproduce cccl`: the baseline's closed forms, one fitted figure, the table's structure, the same twice."""

from __future__ import annotations

import json
import re
import statistics
import sys
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from collectives.reproduce import cccl
from collectives.reproduce.cccl import AVERAGES, FITTED_ON, GROWTH, LOWS, SIZES, Reproduction, Row
from collectives.reproduce.nccl import GROUPED, Nccl
from collectives.reproduce.ours import RANKS, Ours
from collectives.virtual import simulate_case
from cxlemu.cli import main, reproduce_table
from cxlemu.topology.standing import KINDS

MB = 1 << 20
LARGE = 1 << 40  # so that latencies do not count


def reproduce(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["reproduce", "cccl", *arguments])


@lru_cache
def work() -> Reproduction:
    return Reproduction()


@lru_cache
def rows() -> dict[str, Row]:
    return {row.figure: row for row in work().rows()}


def test_every_figure_of_the_baseline_says_where_it_comes_from() -> None:
    nccl = Nccl.load()
    assert len(nccl.standings) == 1 + 3 * 3 + 5
    assert {standing.kind for standing in nccl.standings.values()} == {"source", "assumed"} < set(KINDS)


@pytest.mark.parametrize(
    ("collective", "share"),  # of the size, that passes the slowest link of three ranks
    [
        *(("all_gather", 2 / 3), ("reduce_scatter", 2 / 3), ("all_reduce", 4 / 3)),
        *(("broadcast", 1), ("reduce", 1), ("gather", 2 / 3), ("all_to_all", 2 / 3), ("scatter", 2 / 3)),
    ],
)
def test_large_messages_take_what_the_wire_takes(collective: str, share: float) -> None:
    """Where receiving costs nothing, the wire's 24 GB/s alone count."""
    assert Nccl.load().time_us(collective, LARGE, 3, 0) == pytest.approx(LARGE * share / 24e3, rel=1e-5)


def test_the_receiver_bounds_a_scatter_only_where_it_is_slower_than_the_root() -> None:
    nccl = Nccl.load()
    slice_us = (512 << 10) / 24e3  # a slice on the wire
    for cost_us, bound in ((0.9 * slice_us, 2 / 3 / 24e3), (3 * slice_us, 1 / 3 * 4 / 24e3)):
        took_us = nccl.time_us("scatter", LARGE, 3, round(cost_us * 1000))
        assert took_us == pytest.approx(LARGE * bound, rel=1e-4)


def test_a_slice_costs_more_where_slices_are_small() -> None:
    nccl = Nccl.load()
    assert nccl.receive_gbytes_per_s("all_gather", 1 << 20) == pytest.approx(1 / (1 / 24 + 1))
    assert nccl.receive_gbytes_per_s("broadcast", 1 << 19) == pytest.approx(1 / (1 / 24 + 1))


def test_small_messages_take_the_cheapest_protocol() -> None:
    nccl = Nccl.load()
    assert nccl.time_us("all_gather", 0, 3, 0) == pytest.approx(3.6 + 2 * 2.7)  # LL
    assert nccl.time_us("all_gather", LARGE, 3, 0) == pytest.approx(8.4 + 2 * 9.6 + LARGE * 2 / 3 / 24e3)  # Simple
    simple = 1.9 * (8.4 + 4 * 9.6) + LARGE * 4 / 3 / 24e3
    assert nccl.time_us("all_reduce", LARGE, 3, 0) == pytest.approx(simple, rel=1e-12)
    assert nccl.time_us("gather", 0, 3, 0) == pytest.approx(8.4 + 9.6)


def test_rows_are_all_published_figures() -> None:
    wanted = [f"{name}: average speedup" for name in AVERAGES] + [f"{name}: lowest speedup" for name in LOWS]
    wanted += [f"{name}: growth 3 to {ranks} hosts" for name in GROWTH for ranks in (6, 12)]
    assert set(wanted) < set(rows())
    assert len(rows()) == 3 + 8 + 3 + 3 + 3 + 6
    assert [row.figure for row in rows().values() if row.kind == "fitted"] == [f"{FITTED_ON}: average speedup"]
    assert {row.kind for row in rows().values()} == {"config", "fitted", "predicted"}
    for row in rows().values():
        assert row.published in row.published_range or row.relative_error == 0
        assert row.relative_error == row.ours / row.published - 1
        assert bool(row.shows) == row.missed == (abs(row.relative_error) > 0.15)
        assert row.kind != "config" or row.relative_error == 0


def test_the_one_fitted_figure_meets_the_average_that_it_is_fitted_on() -> None:
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


@pytest.mark.parametrize("variant", cccl.VARIANTS)
def test_ours_is_what_simulate_says(variant: str) -> None:
    from collectives.bench import Sweep

    for name in AVERAGES:
        (case,) = Sweep((name,), [64 * MB], variant=variant, check=False).cases(RANKS)
        row, _ = simulate_case(work().ours.topology, case)
        assert work().ours.time(name, 64 * MB, variant=variant).us == row.time_us


def test_naive_puts_everything_on_the_first_card() -> None:
    """As long as there is room: what is published lies one after another."""
    for variant, cards in (("naive", {0}), ("aggregate", set(range(6)))):
        run = work().ours._run("gather", variant, 64 * MB, RANKS, 1)
        used = {use.resource.name.split()[0] for use in run.uses if use.resource.kind == "card" and use.bytes > MB}
        assert used == {f"card{card}" for card in cards}


def test_whole_chunks_lie_on_a_card_each() -> None:
    def cards_of_a_chunk(ours: Ours) -> int:
        run = ours._run("broadcast", "all", 64 * MB, RANKS, 1)  # one chunk a block
        return sum(use.resource.kind == "card" and use.bytes > MB for use in run.uses) // 3  # reads, writes, both

    assert [cards_of_a_chunk(ours) for ours in (work().grown, work().grown_whole)] == [6, 1]


def test_a_range_is_met_inside_and_missed_from_its_nearer_end() -> None:
    for ours, published, error in ((1.5, 1.5, 0.0), (2.0, 2.0, 0.0), (0.5, 1.0, -0.5), (5.0, 2.5, 1.0)):
        row = cccl._row("x", (1.0, 2.5), ours, "predicted")
        assert (row.published, row.relative_error) == (published, error)


def test_other_slices_give_another_baseline_fitted_likewise() -> None:
    other = work().beside(replace(work().nccl, chain_slice_bytes=MB, grouped_slice_bytes=MB))
    assert other.slice_ns == work().slice_ns  # rings are what it is fitted on
    assert [row.kind for row in other.averages()].count("fitted") == 1
    for name in (*GROUPED, "broadcast", "reduce"):
        assert statistics.fmean(other.speedups(name)) < statistics.fmean(work().speedups(name))


def test_the_table_and_the_file_are_the_same_twice(tmp_path: Path) -> None:
    first, second = (reproduce("--json", str(tmp_path / f"{number}.json")) for number in (1, 2))
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert first.output == second.output
    files = [(tmp_path / f"{number}.json").read_bytes() for number in (1, 2)]
    assert files[0] == files[1]
    document: dict[str, Any] = json.loads(files[0])
    assert len(document["rows"]) == len(rows())
    assert {"figure", "published", "ours", "relative_error", "kind"} <= set(document["rows"][0])
    assert document["fitted"] == {"name": "slice_ns", "value": work().slice_ns, "on": FITTED_ON}
    assert "not a simulation" in document["baseline"]["what"]
    for row in rows().values():
        assert row.figure in first.output
        assert not row.missed or row.shows in first.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "/nonexistent/c.json"], "--json /nonexistent/c.json cannot be written"),
        (["--plot", "/dev/null"], "--plot /dev/null cannot be made"),
    ],
)
def test_bad_input_is_refused_before_the_work(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reproduction, "rows", lambda self: pytest.fail("worked all the same"))
    monkeypatch.setattr(reproduce_table, "pyplot", lambda: None)
    done = reproduce(*arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert CliRunner().invoke(main, ["reproduce", "scalepool"]).exit_code == 2


def test_without_matplotlib_nothing_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = reproduce("--plot", str(tmp_path / "out"))
    assert done.exit_code == 2
    assert "pip install 'cxlemu[plot]'" in done.output
    assert list(tmp_path.iterdir()) == []


def test_plots_are_pngs(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    assert reproduce("--plot", str(tmp_path / "out")).exit_code == 0
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["chunks.png", "growth.png", "speedups.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)


def test_the_readme_has_this_table() -> None:
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    table = re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([-+]?\d+%) \| (\w+)", readme, re.MULTILINE)
    averages = {row.figure.split(":")[0]: row for row in rows().values() if "average speedup" in row.figure}
    assert sorted(table) == sorted(
        (name, f"{row.published:.2f}", f"{row.ours:.2f}", percent(row.relative_error), row.kind)
        for name, row in averages.items()
    )


def test_the_readme_says_by_how_much_what_reduces_is_off() -> None:
    wanted = re.compile(r"NCCL receives at ([\d.]+) GB/s, met at ([\d.]+)")
    ratios = []
    for name in ("all_reduce", "reduce_scatter", "reduce"):
        found = wanted.search(rows()[f"{name}: average speedup"].shows)
        assert found is not None
        ratios.append(round(float(found[2]) / float(found[1]), 2))
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    assert f"{min(ratios):.2f}-{max(ratios):.2f} of the rate" in readme
    predicted = [row for row in rows().values() if row.kind == "predicted"]
    hits = sum(not row.missed for row in predicted)
    assert f"Of all {len(predicted)} predicted figures {hits} are within 15%" in readme


def percent(error: float) -> str:
    return "0%" if abs(error) < 0.005 else f"{100 * error:+.0f}%"
