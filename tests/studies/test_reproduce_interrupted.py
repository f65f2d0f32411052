"""`cxlemu reproduce` and Ctrl-C: figures that are finished are printed and written, and said not to be all."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from cxlemu.cli import INTERRUPTED
from studies.cli.reproduce import ReproduceFlags
from studies.cli.reproduce_report import ReproductionReport
from studies.cli.reproduce_varied import print_varied
from studies.published import cccl, flux, scalepool
from studies.published.rows import row_of
from studies.published.variation import AS_ASSUMED
from tests.helpers.commands import cxlemu, with_json
from tests.helpers.tables import with_rows


def interrupted_at(number: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose ``number``-th call is ended by Ctrl-C."""
    calls = []

    def called(*arguments: Any, **told: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments, **told)

    return called


@with_rows(
    ("cccl", cccl.Reproduction, "averages", 1, 3, "copy engine (GB/s)"),
    pytest.param(
        *("scalepool", scalepool.Reproduction, "_step", 4, 1, "gpt3-175b: training speedup"), marks=pytest.mark.deep
    ),
)
def test_figures_that_are_finished_are_kept(
    system: str,
    owner: Any,
    method: str,
    number: int,
    rows: int,
    last: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(owner, method, interrupted_at(number, getattr(owner, method)))
    file, plots = tmp_path / "figures.json", tmp_path / "plots"
    result = cxlemu("reproduce", system, "--json", file, "--plot", plots, code=INTERRUPTED)
    document = json.loads(file.read_text())
    assert document["interrupted"] and document["system"] == system and len(document["rows"]) == rows
    assert document["rows"][-1]["figure"] == last and f"\n{last} " in result.stdout
    assert "of those that are finished" in result.stdout and result.stderr == "cxlemu: interrupted\n"
    assert not [*plots.iterdir()]


def test_shapes_that_are_finished_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flux.Reproduction, "_shape", interrupted_at(2, flux.Reproduction._shape))
    result, document = with_json("reproduce", "flux", "-m", "512", code=INTERRUPTED)
    assert document["interrupted"] and not document["rows"]
    assert [(its["cluster"], its["kind"], its["m"]) for its in document["shapes"]] == [
        ("pcie-8xa100", "all_gather_gemm", 512)
    ]
    assert "# pcie-8xa100 all_gather_gemm" in result.stdout


def test_figures_stand_also_where_what_varies_them_is_interrupted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The varied figures that are finished are printed as well."""

    def steps() -> Iterator[tuple[str, dict[str, tuple[float, float]]]]:
        yield AS_ASSUMED, {"a rate": (2.0, 2.0)}
        yield "a latency", {"a rate": (1.0, 3.0)}
        raise KeyboardInterrupt

    rows = [row_of("a rate", 2.0, 2.0, read_in="paper")]
    report = ReproductionReport(ReproduceFlags(json_file=tmp_path / "figures.json", plot_dir=None), {})
    varied = print_varied(report, rows, steps())
    with click.Context(click.Command("reproduce")), pytest.raises(click.exceptions.Exit) as left:
        report.keep({"rows": [], "otherwise": varied})
    assert left.value.exit_code == INTERRUPTED
    document = json.loads((tmp_path / "figures.json").read_text())
    assert document["interrupted"] and list(document["otherwise"]) == [AS_ASSUMED, "a latency"]
    assert "  a latency " in capsys.readouterr().out
