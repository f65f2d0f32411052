"""`cxlemu reproduce scalepool`: lines through few ranks against all of them, levels, rows, and the command."""

import re
from functools import lru_cache, partial
from pathlib import Path
from typing import ClassVar

import pytest

from collectives.sweep.sweep import Sweep
from collectives.sweep.virtual.plans import planned
from cxlemu.cli import console
from cxlemu.cost import CostModel
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.topology import Topology
from studies.cli import reproduce_scalepool as cli
from studies.published import sensitivity
from studies.published.rows import MISS
from studies.published.scalepool import Reproduction, ScalePoolCase, Setup, between
from studies.published.tiers import TierStudy, told
from studies.training.durations import LEVELS
from studies.training.fabrics import Modelled
from studies.training.hierarchical import TwoLevels
from studies.training.symmetric import Symmetric
from tests.helpers.commands import cxlemu, with_json

CXL, RDMA = "clusters-cxl", "clusters-rdma"
loaded = lru_cache(Topology.load)
MB = 1 << 20
PUBLISHED = Path(__file__).parents[2] / "docs" / "published.md"


class Affine:
    """A fabric in which every further rank and every byte of a slice cost the same."""

    name = "affine"
    chosen: ClassVar[dict[str, str]] = {}

    def __init__(self) -> None:
        self.asked: list[int] = []

    def time_ns(self, collective: str, size_bytes: int, ranks: int) -> int:
        self.asked.append(ranks)
        return 1000 + (ranks - 1) * (50 + size_bytes // ranks)


@lru_cache
def work() -> Reproduction:
    """Without the one that takes long."""
    setup = Setup.load("scalepool")
    return Reproduction(setup.varied(cases=tuple(c for c in setup.cases if "megatron" not in c.model)))


reproduce = partial(cxlemu, "reproduce", "scalepool")


# --- what stands for many ranks ---------------------------------------------------------------------------------------


def test_a_line_is_met_exactly_and_few_ranks_are_asked() -> None:
    inner = Affine()
    line = Symmetric(inner)
    assert line.time_ns("all_gather", 512 * MB, 512) == 1000 + 511 * (50 + MB)
    assert max(inner.asked) == 16
    assert line.time_ns("all_gather", 3 * MB, 3) == inner.time_ns("all_gather", 3 * MB, 3)


@pytest.mark.deep(rows=lambda ranks: ranks > 20)
@pytest.mark.each_value_once
@pytest.mark.parametrize(("slice_bytes", "ranks"), [(MB, 20), (MB, 48), (16 * MB, 48)])
@pytest.mark.parametrize("name", [CXL, RDMA])
@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_the_line_is_what_all_ranks_take(name: str, collective: str, slice_bytes: int, ranks: int) -> None:
    assert abs(between(loaded(name)).error(collective, slice_bytes, ranks)) < 0.001


@pytest.mark.parametrize("name", [CXL, RDMA])
def test_one_group_stands_for_all_that_run_at_once(name: str) -> None:
    """Full evaluation: four groups of eight, each on accelerators of its own, in one run."""
    topology = loaded(name)
    (case,) = Sweep(("all_gather",), [8 * MB], dtypes=("bf16",), variant="aggregate", check=False).cases(8)
    plan, _ = planned(topology, case)
    groups = [tuple(range(first, 32, 4)) for first in range(4)]
    alone = simulate(CostModel.of(topology, 8), [VirtualCall(plan)])
    space = topology.pool_space
    model = CostModel.of(topology, 32)
    calls = [VirtualCall(plan, members, model.cards_of(space, members)) for members in groups]
    together = simulate(model, calls)
    assert together.time_ns == alone.time_ns


def test_two_levels_take_each_of_them_once() -> None:
    inside, between = Affine(), Affine()
    levels = TwoLevels(inside, between, 4)
    size = 32 * MB
    across = 1000 + 7 * (50 + size // 4 // 8)
    assert levels.time_ns("all_gather", size, 32) == across + 1000 + 3 * (50 + size // 4)
    assert (inside.asked, between.asked) == ([4], [8])
    assert levels.time_ns("broadcast", size, 2) == between.time_ns("broadcast", size, 2)


def test_a_fold_after_an_all_to_all_is_a_reduce_scatter() -> None:
    """What `tuned` may take instead of a plan that folds in the order of ranks."""
    fabric = Modelled(loaded(CXL), tuned=True)
    size, ranks = 8 * MB, 8
    exchanged, _ = fabric._simulated("all_to_all", size, ranks, "aggregate")
    folded, _ = fabric._folded(size, ranks, "aggregate")
    assert folded - exchanged == -(-(size + MB) // loaded(CXL).costs.reduce_gbytes_per_s)
    assert fabric.time_ns("reduce_scatter", size, ranks) <= folded
    assert fabric.time_ns("all_gather", size, ranks) <= Modelled(loaded(CXL)).time_ns("all_gather", size, ranks)


# --- the figures ------------------------------------------------------------------------------------------------------


def test_every_figure_says_where_it_comes_from_and_none_is_fitted() -> None:
    setup = Setup.load("scalepool")
    assert {standing.kind for standing in setup.provenance.values()} == {"source", "assumed"}
    assert all(("cases", at, key) in setup.provenance for at in range(5) for key in ("parallel", "published"))
    for name in (setup.inside, setup.baseline, setup.scalepool):
        assert {standing.kind for standing in Topology.load(name).provenance.values()} == {"source", "assumed"}


@pytest.mark.deep
def test_published_figures_have_no_influence() -> None:
    case = work().setup.cases[0]
    other = case.model_copy(update={"published": 2.0})
    ours = [
        Reproduction().step(its, work().baseline, work().pairs[0].baseline.machine.offload) for its in (case, other)
    ]
    assert ours[0].time_ns == ours[1].time_ns == work().pairs[0].baseline.time_ns


@pytest.mark.deep
def test_speedups_are_ratios_of_steps_whose_bills_add_up() -> None:
    for pair in work().pairs:
        assert pair.speedup == pair.baseline.time_ns / pair.scalepool.time_ns
        for step in (pair.baseline, pair.scalepool):
            assert sum(step.billed_ns.values()) == pytest.approx(step.time_ns, rel=1e-9)
            assert step.billed_ns.keys() <= LEVELS.keys()
            assert step.memory_bytes < step.machine.accelerator.memory_bytes


@pytest.mark.deep
def test_what_crosses_clusters_is_what_parallelism_says() -> None:
    """PaLM: three passes of a twelfth of its weights, less the part that a rank has already."""
    (palm,) = (pair for pair in work().pairs if pair.case.model == "palm-540b")
    model = palm.baseline.model
    sent = 2 * (2 * model.parameters / 12 - model.embedding_parameters / 12) + 2 * model.parameters / 12
    assert palm.baseline.between_bytes == pytest.approx(sent * 511 / 512, rel=1e-4)


@pytest.mark.deep
def test_misses_are_explained_and_hits_are_not() -> None:
    for row in work().rows():
        assert row.kind == "predicted"
        assert bool(row.shows) == (abs(row.relative_error) > MISS)


@pytest.mark.deep
def test_another_fabric_moves_what_it_should() -> None:
    palm = Reproduction(work().setup.varied(cases=(case_of("palm-540b"),)))
    faster = palm.varied(scalepool=sensitivity.with_rate(loaded(CXL), 256))
    slower = palm.varied(baseline=sensitivity.with_overhead(loaded(RDMA), 4))
    longer = palm.varied(scalepool=sensitivity.with_switches(loaded(CXL), 3))
    assert faster.pairs[0].speedup > palm.pairs[0].speedup
    assert slower.pairs[0].speedup > palm.pairs[0].speedup
    assert longer.pairs[0].speedup == palm.pairs[0].speedup  # as many as there are
    assert faster.pairs[0].baseline is palm.pairs[0].baseline  # not simulated again


def case_of(model: str) -> ScalePoolCase:
    (case,) = (case for case in Setup.load("scalepool").cases if case.model == model)
    return case


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.deep
def test_the_command_prints_what_the_file_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "PIPE_CHARS", 80)
    done, document = with_json("reproduce", "scalepool", code=0)
    assert max(map(len, done.output.splitlines())) <= 80 and "…" not in done.output
    assert len(document["rows"]) == 5 + 2 + 3 + 2
    assert len(document["steps"]) == 2 * 5
    assert document["fitted"] is None
    for row in document["rows"]:
        assert row["figure"] in done.output
        assert row["relative_error"] == row["ours"] / row["published"] - 1
    text = PUBLISHED.read_text()
    table = re.findall(r"^\| (\S+) \| ([\d.]+) \| ([\d.]+) \| ([-+]?\d+%) \| [\d,]+ \|", text, re.MULTILINE)
    assert table == [
        (row["figure"].split(":")[0], f"{row['published']:.2f}", f"{row['ours']:.2f}", percent(row["relative_error"]))
        for row in document["rows"][:5]
    ]
    for row in document["rows"][-5:]:
        cells = row["figure"], row["published"], f"{row['ours']:.2f}", percent(row["relative_error"])
        assert f"| {' | '.join(map(str, cells))} |" in text
    predicted = [row for row in document["rows"] if row["kind"] == "predicted"]
    near = sum(abs(row["relative_error"]) <= MISS for row in predicted)
    assert f"{near} of {len(predicted)} predicted figures are within 15%" in " ".join(text.split())


@pytest.mark.deep
def test_the_page_says_what_the_baselines_software_has_to_do_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("studies.published.tiers.variations", lambda topologies: [])  # tested by itself
    assert "  0.98, 2.77, 1.25 if all moved hot pages" in told(TierStudy())
    assert "0.98, 2.77 and 1.25" in PUBLISHED.read_text()


def percent(error: float) -> str:
    return "0%" if abs(error) < 0.005 else f"{100 * error:+.0f}%"


@pytest.mark.deep
def test_what_other_assumptions_give_is_told_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "Reproduction", work)
    monkeypatch.setattr(cli, "_footer", lambda its, rows: [])
    monkeypatch.setattr(cli, "told", lambda tiers: ["tiers otherwise"])
    monkeypatch.setattr(cli.TierStudy, "rows", lambda tiers: [])
    done = reproduce("-v", code=0)
    assert ", ".join(f"{name} {value:.2f}" for name, value in work().crossing_once.items()) in done.output
    assert all(
        1 <= value < pair.speedup for value, pair in zip(work().crossing_once.values(), work().pairs, strict=True)
    )
    assert "at 64, where all were simulated, too, it is off by 0.0%" in done.output
    assert "tiers otherwise" in done.output
    assert "tiers otherwise" not in reproduce().output


def test_bad_input_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reproduction, "rows", lambda self: pytest.fail("worked all the same"))
    done = reproduce("--json", "/nonexistent/s.json")
    assert (done.exit_code, "--json /nonexistent/s.json cannot be written" in done.output) == (2, True)
    assert "--plot" in reproduce("--help").output


@pytest.mark.deep
def test_plots_are_pngs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axis = sensitivity.Axis("of itself", (1, 2), 1, lambda value: work().pairs)
    monkeypatch.setattr(cli, "Reproduction", work)
    monkeypatch.setattr("studies.cli.reproduce_scalepool.axes", lambda its: [axis] * 4)
    monkeypatch.setattr(cli, "_footer", lambda its, rows: [])
    monkeypatch.setattr(cli, "told", lambda study: [])
    monkeypatch.setattr(cli.TierStudy, "rows", lambda tiers: [])
    reproduce("--plot", str(tmp_path / "out"), code=0)
    files = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in files] == ["sensitivity.png", "speedups.png", "steps.png", "tiers.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
