"""FLUX's figures beside ours: metrics by hand, nothing fitted, and what the command prints and writes."""

import re
from contextlib import nullcontext
from multiprocessing import active_children
from pathlib import Path
from types import SimpleNamespace

import pytest
from pytest import MonkeyPatch

from collectives.fused.choice import Operator, Tiling
from collectives.sweep.fused.metrics import Metrics
from collectives.sweep.fused.tuner import Tuned
from collectives.sweep.fused.virtual import Simulator
from cxlemu.cli import console
from cxlemu.cost.gemm import Product, fastest, moved_bytes
from cxlemu.topology import Accelerator, Topology
from cxlemu.topology.intervals import changed
from studies.cli import reproduce_flux
from studies.published import flux, flux_clusters
from studies.published.flux_block import block
from studies.published.flux_clusters import Clusters, Shape
from studies.published.rows import Row, hits
from studies.published.variation import AS_ASSUMED, assumed, times
from studies.ranged import of_flux
from studies.training.language_model import LanguageModel
from tests.helpers.commands import cxlemu, with_json


def test_metrics_are_flux_definitions() -> None:
    its = Metrics(gemm_ns=100, tiled_ns=110, comm_ns=60, unfused_ns=160, medium_ns=145, fused_ns=112, wait_ns=3)
    assert its.ect_ns("unfused") == 60
    assert its.overlap_efficiency() == pytest.approx(1 - 12 / 60)
    assert its.overlap_efficiency("medium") == pytest.approx(1 - 45 / 60)
    assert its.sol == pytest.approx(100 / 112)
    assert its.gemm_slowdown == pytest.approx(1.1)


def test_an_efficiency_may_be_negative_and_need_not_be() -> None:
    slower = Metrics(100, 200, 60, 160, 160, 205, 0)
    assert slower.overlap_efficiency() == pytest.approx(1 - 105 / 60)
    assert Metrics(100, 100, 0, 100, 100, 100, 0).overlap_efficiency() is None


def test_published_efficiencies_follow_from_the_reported_times() -> None:
    assert flux.REPORTED["nvlink-8xa800", "all_gather_gemm"].efficiency == pytest.approx(1 - 0.091 / 0.721)


@pytest.fixture(scope="module")
def few() -> flux.Reproduction:
    return flux.Reproduction(rows=(512, 4096))


@pytest.mark.deep
def test_nothing_is_fitted_and_gemm_times_are_met_all_the_same(few: flux.Reproduction) -> None:
    assert {row.kind for row in few.rows} == {"predicted"}
    errors = [row.relative_error for row in few.rows if row.figure.endswith("GEMM (ms)")]
    assert len(errors) == 4 and max(map(abs, errors)) < 0.07
    for cluster in flux.CLUSTERS:
        topology = Topology.load(cluster)
        assert topology.accelerator is not None
        provenance = (*Accelerator.load(topology.accelerator).provenance.values(), *topology.provenance.values())
        assert not any(its.kind == "fitted" for its in provenance)


@pytest.mark.deep
def test_every_row_is_told_with_every_assumed_figure_varied(few: flux.Reproduction) -> None:
    found = dict(of_flux(few)[0].otherwise())
    usual = found.pop(AS_ASSUMED)
    assert usual.keys() == {row.figure for row in few.rows}
    assert all(its.keys() == usual.keys() for its in found.values())
    less, more = found["accelerator: tile_ns"]["h800 GEMM+RS: GEMM (ms)"]
    assert less < usual["h800 GEMM+RS: GEMM (ms)"][0] < more
    less, more = found["costs.copy_ns"]["h800 GEMM+RS: collective (ms)"]
    assert less < usual["h800 GEMM+RS: collective (ms)"][0] < more
    assert not any("capacity" in name or "flit" in name for name in found)


def test_an_accelerators_assumed_figures_are_varied_and_shares_end_at_one() -> None:
    its = Accelerator.load("a100-sxm")
    names = [key for key, _ in assumed(its)]
    assert names == [("half_rate_tile",), ("tile_ns",), ("memory_efficiency",)]
    assert times(("tile_ns",), 1500, 0.75) == 1125
    assert times(("memory_efficiency",), 0.9, 1.25) == 1.0
    faster = changed(its, {("tile_ns",): 1125})
    simulator = Simulator(Topology.load("nvlink-8xa100"), 8, faster)
    assert simulator.model.accelerator == faster and faster.tile_ns == 1125
    assert Simulator(Topology.load("nvlink-8xa100"), 8).model.accelerator == its


@pytest.mark.parametrize("cluster", [name for name, published in flux.CLUSTERS.items() if published])
def test_products_and_copies_together_leave_memory_to_spare(cluster: str) -> None:
    """So that sharing it slows neither: why the model has no such resource. With few rows it would."""
    topology = Topology.load(cluster)
    assert topology.accelerator is not None
    its = Accelerator.load(topology.accelerator)
    copied = 2 * max(link.gbytes_per_s or 0 for link in topology.links) * 1e9  # in and out, all the time
    for kind, (n, k) in flux.SHAPES.items():
        for m in flux.ROWS:
            gathers = kind == "all_gather_gemm"
            product = Product(m, n // 8, k) if gathers else Product(m, n, k // 8)
            tiling = fastest(its, product)
            loaded = moved_bytes(product, tiling, its.multiprocessors) / tiling.ns(its.multiprocessors) * 1e9
            assert (loaded + copied <= 0.71 * its.memory_bytes_per_s) == (m >= 512)


@pytest.mark.deep
def test_the_best_shapes_hide_all_and_few_rows_cost_more_than_they_hide(few: flux.Reproduction) -> None:
    by_shape = {(s.cluster, s.operator.kind, s.operator.m): flux.efficiency_of(s.metrics) for s in few.shapes}
    assert by_shape["nvlink-8xa100", "all_gather_gemm", 4096] >= 0.96
    assert by_shape["nvlink-8xa100", "all_gather_gemm", 512] < 0


@pytest.mark.deep
def test_no_fused_call_is_faster_than_its_parts(few: flux.Reproduction) -> None:
    for shape in few.shapes:
        its = shape.metrics
        assert its.fused_ns >= its.tiled_ns >= its.gemm_ns
        assert its.fused_ns < its.unfused_ns * 5
        assert 0 < its.sol <= 1.02  # the collective alone is not cut as finely


@pytest.mark.deep
def test_over_the_pool_at_most_the_product_hides(few: flux.Reproduction) -> None:
    """Its links are so slow that the collective is the longer part: E is then at most the product's share of ECT."""
    [shape] = [
        s for s in few.shapes if (s.cluster, s.operator.kind, s.operator.m) == ("cxl-8xh100", "all_gather_gemm", 4096)
    ]
    its = shape.metrics
    assert its.comm_ns > its.gemm_ns
    assert 0 < flux.efficiency_of(its) <= its.gemm_ns / its.ect_ns("unfused") + 0.02


@pytest.mark.deep
def test_slower_tiles_hide_less(few: flux.Reproduction) -> None:
    its = Metrics(gemm_ns=100, tiled_ns=100, comm_ns=60, unfused_ns=160, medium_ns=145, fused_ns=112, wait_ns=3)
    assert flux.slowed_efficiency_of(its) == pytest.approx(1 - (12 + 0.189 * 60) / 60)
    assert few.slowed().keys() == {name for name, published in flux.CLUSTERS.items() if published}


@pytest.mark.deep
def test_misses_say_what_the_model_shows(few: flux.Reproduction) -> None:
    assert all(bool(row.shows) == row.missed for row in few.rows)


@pytest.mark.parametrize("rows", [(512,), pytest.param((512, 4096), marks=pytest.mark.deep)], ids=str)
def test_the_command_prints_and_writes_all_of_it(
    tmp_path: Path, monkeypatch: MonkeyPatch, rows: tuple[int, ...]
) -> None:
    few = flux.Reproduction(rows=rows)
    monkeypatch.setattr(console, "PIPE_CHARS", 80)
    monkeypatch.setattr(reproduce_flux, "Reproduction", lambda rows: few)
    result, document = with_json("reproduce", "flux", "--plot", tmp_path / "plots", code=0)
    assert "# nvlink-8xa100 all_gather_gemm" in result.output
    assert max(map(len, result.output.splitlines())) <= 80 and "…" not in result.output
    assert len(document["shapes"]) == 4 * 2 * len(rows)
    assert any(shape["overlap_efficiency"] < 0 for shape in document["shapes"])
    assert {row["kind"] for row in document["rows"]} == {"predicted"}
    assert document["fitted"] is None
    for name in ("efficiencies.png", "times.png"):
        assert (tmp_path / "plots" / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.deep
def test_the_same_twice_is_the_same_bytes() -> None:
    once, again = (flux.Reproduction(rows=(512,)).shapes for _ in range(2))
    assert once == again


def test_workers_simulate_what_this_process_would_and_end_with_an_interrupt(monkeypatch: MonkeyPatch) -> None:
    monkeypatch.setattr(flux_clusters, "cores", lambda: 2)
    monkeypatch.setattr(flux_clusters.threading, "active_count", lambda: 1)  # pytest's workers have more
    cases = [("nvlink-8xa100", Operator(kind, 64, *flux.SHAPES[kind])) for kind in flux.SHAPES]
    here, there = Clusters(), Clusters()
    with there.ahead(cases):
        monkeypatch.setattr(there, "simulator", lambda _: pytest.fail("simulated here"))
        assert [there.shape(*case) for case in cases] == [here.shape(*case) for case in cases]
    assert not active_children()
    with pytest.raises(KeyboardInterrupt), Clusters().ahead(cases):
        raise KeyboardInterrupt
    assert not active_children()


def test_what_is_simulated_ahead_is_what_is_asked_for(monkeypatch: MonkeyPatch) -> None:
    """All of it: what a worker did not simulate, this process would, alone."""
    work, ahead = flux.Reproduction(), []
    monkeypatch.setattr(Clusters, "ahead", lambda _, cases: nullcontext(ahead.extend(cases)))
    with work.ahead():
        assert len(ahead) > len(work._asked())
    seen = set()
    metrics = Metrics(gemm_ns=100, tiled_ns=110, comm_ns=60, unfused_ns=160, medium_ns=145, fused_ns=112, wait_ns=3)

    def shape(_: Clusters, cluster: str, operator: Operator) -> Shape:
        seen.add((cluster, operator))
        return Shape(cluster, operator, metrics, Tuned(Tiling(), 112, 1))

    monkeypatch.setattr(Clusters, "shape", shape)
    monkeypatch.setattr(Simulator, "run", lambda *_, **__: SimpleNamespace(time_ns=100))
    assert len(work.shapes) == len(work._asked()) and work.rows
    assert seen == set(ahead)


def test_a_block_gains_what_its_gemms_gain_and_no_more() -> None:
    """By hand: four operators that take 100 fused and 160 unfused, beside what no fusing changes."""
    model, accelerator = LanguageModel.load("gpt3-175b"), Accelerator.load("a100-sxm")

    def times(style: str, operator: Operator) -> float:
        return {"fused": 100e3, "unfused": 160e3, "medium": 130e3}[style]

    training = block(model, accelerator, 8, "training", 2048, times, call_ns=0)
    assert (training.fused_ns, training.unfused_ns) == (8 * 100e3, 8 * 160e3)  # two passes of four
    assert training.medium_ns == 8 * 130e3
    assert 1 < training.speedup_over_medium < training.speedup
    assert 1 < training.speedup < 1.6
    assert training.speedup == (training.unfused_ns + training.rest_ns) / (training.fused_ns + training.rest_ns)
    slower = block(
        model,
        accelerator,
        8,
        "training",
        2048,
        lambda style, _: {"fused": 3e3, "unfused": 2e3, "medium": 2e3}[style],
        0,
    )
    assert slower.speedup == 1  # then nothing is fused


def test_weights_of_a_block_are_those_of_the_model() -> None:
    """Every weight is used once forward and twice backward, whichever GEMM it is in."""
    seen: list[Operator] = []

    def times(style: str, operator: Operator) -> float:
        if style == "unfused":
            seen.append(operator)
        return 1.0

    model = LanguageModel.load("gpt3-175b")
    block(model, Accelerator.load("a100-sxm"), 8, "training", 2048, times, 0)
    unique = seen[: len(seen) // 2]  # once to sum them, once to compare them
    assert sum(its.n * its.k for its in unique) == 2 * model.multiplying_parameters
    assert sorted(its.kind for its in unique) == ["all_gather_gemm"] * 4 + ["gemm_reduce_scatter"] * 4


def test_decoding_reads_every_sequences_cache() -> None:
    model, accelerator = LanguageModel.load("gpt3-175b"), Accelerator.load("a100-sxm")
    one, two = (block(model, accelerator, 8, phase, 64, lambda *_: 1.0, 0).rest_ns for phase in ("prefill", "decoding"))
    cached_bytes = 2 * 64 * 2048 * 12288 * 2 / 8
    assert two - one == pytest.approx(cached_bytes / accelerator.memory_bytes_per_s * 1e9)


@pytest.mark.deep
def test_the_whole_command_compares_ranges_and_blocks(monkeypatch: MonkeyPatch) -> None:
    one = {"nvlink-8xh800": (0.37, 0.93)}
    for module in (flux, reproduce_flux):
        monkeypatch.setattr(module, "CLUSTERS", one)
        monkeypatch.setattr(module, "ROWS", (1024,))
        monkeypatch.setattr(module, "SPEEDUPS", {"decoding": (1.30, (64,))})
    result = cxlemu("reproduce", "flux", code=0)
    assert re.search(r"decoding, 64 tokens +nvlink-8xh800 \d\.\d\d \(\d\.\d\d\)", result.output)
    for words in (
        "nvlink-8xh800: lowest overlap",
        "nvlink-8xh800: best overlap",
        "decoding: best speedup of a block",
        "nvlink-8xh800: least share of communication",
        "decoding: best over TransformerEngine",
    ):
        assert words in result.output


def test_rows_that_do_not_divide_are_refused() -> None:
    assert "m = 100 does not divide among 8 ranks" in cxlemu("reproduce", "flux", "-m", "100", code=2).output


@pytest.mark.deep
def test_the_page_has_the_models_figures() -> None:
    text = (Path(__file__).parents[2] / "docs" / "published.md").read_text()
    work = flux.Reproduction()
    with work.ahead():
        rows = {row.figure: row for row in work.rows}

    def cells(*figures: str, unit: float = 1, end: str = "", digits: str = ".2f", joined: str = ", ") -> str:
        each: list[Row] = [rows[figure] for figure in figures]
        theirs, ours = (
            joined.join(f"{value * unit:{digits}}" for value in values) + end
            for values in ([row.published for row in each], [row.ours for row in each])
        )
        errors = [round(100 * row.relative_error) for row in each]
        return f"| {theirs} | {ours} | {', '.join(f'{error:+d}%' if error else '0%' for error in errors)} |"

    for cluster, kind in flux.REPORTED:
        words = f"{cluster.removeprefix('nvlink-8x')} {flux.SHORT[kind]}"
        assert f": GEMM {cells(f'{words}: GEMM (ms)', end=' ms')}" in text
        both = [f"{words}: {style} (ms)" for style in ("unfused", "fused")]
        assert f"| unfused, fused {cells(*both, end=' ms')}" in text
    for cluster in flux.MEASURED:
        both = [f"{cluster}: {which} overlap" for which in ("lowest", "best")]
        assert cells(*both, unit=100, end="%", digits=".0f", joined="-") in text
    best = [f"{phase}: best speedup of a block" for phase in flux.SPEEDUPS]
    assert f"training, prefill, decoding {cells(*best)}" in text
    near, predicted = hits(work.rows)
    assert f"{near} of {predicted} predicted figures are within 15%" in " ".join(text.split())
