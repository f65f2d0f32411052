"""`cxlemu reproduce ... --intervals`: figures low, middle and high, and which published ones lie inside."""

import pytest

from cxlemu.topology import Accelerator
from cxlemu.topology.intervals import uncertain, variations
from studies.cli import reproduce_serving, reproduce_validation
from studies.cli.reproduce import ReproduceFlags
from studies.cli.reproduce_intervals import predicted, print_intervals
from studies.cli.reproduce_report import ReproductionReport
from studies.published import cccl, serving
from studies.published.cccl import FEW
from studies.published.rows import row_of
from studies.ranged import Ranged, Run, _scaled, of_cccl, of_serving, of_validation
from studies.validation.study import Study
from tests.helpers.commands import with_json
from tests.machine.test_intervals import COPY

CARD = "titan2-6xcz120: cards.0.latency_ns"
FLAGS = ReproduceFlags(json_file=None, intervals=True, plot_dir=None)


def of_copies(run: Run) -> dict[str, float]:
    us = run.get(COPY.key, COPY.value) / 1e3
    return {"a copy": us, "two copies": 2 * us, "beside": 1.0}


def test_a_table_says_what_lies_inside_and_counts_it(capsys: pytest.CaptureFixture[str]) -> None:
    published = {"two copies": (4.5, 4.5), "a copy": (11, 12), "beside": (1, 1), "of no part": (0, 0)}
    found = print_intervals(ReproductionReport(FLAGS, {}), published, [Ranged([COPY], of_copies, 10)])
    assert found["a copy"][:3] == (2, 5, 10) and found["two copies"][:3] == (4, 10, 20)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["two", "copies", "4.5", "4", "10", "20", "5x", "yes", "costs.copy_ns"] in lines
    assert ["a", "copy", "11-12", "2", "5", "10", "5x", "no", "costs.copy_ns"] in lines
    assert "2 of 3 predicted figures inside" in " ".join(" ".join(line) for line in lines)


def test_only_what_is_predicted_is_counted() -> None:
    rows = [row_of(kind, 1, 1, kind, read_in="paper") for kind in ("config", "fitted", "predicted", "reading")]
    assert predicted(rows) == {"predicted": (1, 1)}


@pytest.mark.deep
def test_the_middle_of_the_measurements_is_their_table() -> None:
    parts = of_validation()
    found = {figure: ours for part in parts for figure, ours in part.ours({}).items()}
    assert found == {row.measured.figure: row.ours for row in Study().rows}
    for part in parts:
        assert part.figures and part.runs == len(variations(part.figures, part.samples))
        assert {its.name[:12] for its in part.figures}.isdisjoint({"hosts.memory"})
    ports, *_, products = ({its.name for its in part.figures if "processor" in its.name} for part in parts)
    assert products == {"processor: matmul_ns"} and not ports & products and "processor: reads_at_once" in ports


def test_a_figure_of_the_test_bed_changes_the_grown_one_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    work = cccl.Reproduction(FEW[:1])
    work.slice_ns = 27573
    seen = []
    monkeypatch.setattr(type(work), "on", lambda _, *its: seen.append(its) or cccl.Reproduction(FEW[:1]))
    monkeypatch.setattr(cccl.Reproduction, "each_row", lambda _: [])
    (part,) = of_cccl(work)
    call = next(its for its in part.figures if its.name == "titan2-6xcz120: costs.call_ns")
    part.ours({call.key: 17000})
    (bed, grown, baseline, sizes), *_ = seen
    assert bed.costs.call_ns == grown.costs.call_ns == 17000 and grown.host_count == 12
    assert baseline == work.nccl.topology and sizes == FEW


@pytest.mark.deep
def test_the_command_prints_and_keeps_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    switched = next(part for part in of_validation() if any("titan2" in its.name for its in part.figures))
    few = switched._replace(figures=[its for its in switched.figures if its.name.endswith(CARD)], samples=2)
    monkeypatch.setattr(reproduce_validation, "of_validation", lambda: [few])
    done, document = with_json("reproduce", "validation", "--intervals", code=0)
    found = document["intervals"]["8 bytes and a flag, to another host"]
    assert found["low"] < found["middle"] < found["high"] and found["alone"].endswith(CARD)
    assert "predicted figures inside their intervals" in done.output


def test_servers_are_varied_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    apart, h100, a100, pool = of_serving()
    assert all("hosts.memory" not in its.name for part in (apart, h100, a100, pool) for its in part.figures)
    assert {its.name.split(":")[0] for its in pool.figures} == {"serving-16xh100", "h100-sxm"}
    assert {its.name.split(":")[0] for its in apart.figures} == {"serving-2x8h800", "h800-sxm"}
    (share,) = [its for its in a100.figures if its.name == "a100-sxm: half_rate_tile"]
    middle, slow = a100.ours({}), a100.ours({share.key: share.high})
    assert slow["tokens/s, A100, 1 user"] < middle["tokens/s, A100, 1 user"]
    part = serving.parts()[2]
    monkeypatch.setattr(serving, "parts", lambda: [part])
    monkeypatch.setattr(reproduce_serving, "of_serving", lambda: [a100._replace(figures=[share], samples=2)])
    done, document = with_json("reproduce", "serving", "--intervals", code=0)
    assert {row["figure"]: row["ours"] for row in document["rows"]} == middle
    found = document["intervals"]["tokens/s, A100, 1 user"]
    assert found["low"] <= slow["tokens/s, A100, 1 user"] < found["middle"] == middle["tokens/s, A100, 1 user"]
    assert "of 2 predicted figures inside their intervals" in done.output


def test_a_figure_that_is_0_on_all_clusters_takes_its_new_value() -> None:
    figures = {its.key: its for its in uncertain(Accelerator.load("h100-sxm"))}
    run = {("held_by_copies",): 0.5, ("tile_ns",): 3000}
    assert _scaled(Accelerator.load("a100-sxm"), figures, run) == {("held_by_copies",): 0.5, ("tile_ns",): 3000}
