"""What ``cxlemu reproduce validation`` does: measured figures beside the model's, a curve of queues, and a picture."""

from collections.abc import Sequence
from dataclasses import asdict
from string import ascii_letters
from typing import Any

import click
from rich.table import Table

from cxlemu.cli.console import plain_table
from cxlemu.cli.progress import spinning
from cxlemu.version import __version__
from studies.cli.picture import BLUE, VERMILION, panels
from studies.cli.reproduce import ReproduceFlags
from studies.cli.reproduce_intervals import intervals_document, print_intervals
from studies.cli.reproduce_report import ReproductionReport
from studies.published.rows import MISS
from studies.ranged import of_validation
from studies.validation.measured import SLOWER
from studies.validation.study import Study, Validated


def run(_ctx: click.Context, asked: ReproduceFlags) -> None:
    report = ReproductionReport(asked, PICTURES)
    study = Study()
    with spinning("simulating"):
        rows = study.rows
    report.header(
        [f"cxlemu   {__version__}: modelled figures, the same on every machine", "configs  as shipped; nothing fitted"]
    )
    report.table(_table(rows))
    report.lines(_footer(study))
    intervals = None
    if asked.intervals:
        ranges = {
            measured.figure: (measured.low, measured.high)
            for measured in (row.measured for row in rows)
            if not measured.put_in
        }
        intervals = print_intervals(report, ranges, of_validation())
    report.keep(_document(study) | intervals_document(intervals), study)


def _table(rows: Sequence[Validated]) -> Table:
    table = plain_table()
    for name in ("figure", "measured", "ours", "error", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right", no_wrap=name != "figure")
    letters = _letters(rows)
    for row in rows:
        measured, percent = row.measured, round(100 * row.relative_error)
        table.add_row(
            measured.figure if measured.unit == "x" else f"{measured.figure}, {measured.unit}",
            "-".join(f"{value:g}" for value in dict.fromkeys((measured.low, measured.high))),
            f"{row.ours:.4g}",
            f"{percent:+d}%" if percent else "0%",
            letters[measured.source] + "*" * measured.put_in,
            style="red" if row.missed else "",
        )
    return table


def _letters(rows: Sequence[Validated]) -> dict[str, str]:
    """Name each source by a letter."""
    return dict(zip(dict.fromkeys(row.measured.source for row in rows), ascii_letters, strict=False))


def _footer(study: Study) -> list[str]:
    predicted = [row for row in study.rows if not row.measured.put_in]
    missed = [row for row in study.rows if row.missed]
    width = max((len(row.measured.figure) for row in missed), default=0)
    curve = ", ".join(f"{point.slower:.2f} beside {point.at_once}" for point in study.curve)
    dates = {row.measured.source: row.measured.date for row in study.rows}
    return [
        "",
        *(f"{letter}  {source} ({dates[source]})" for source, letter in _letters(study.rows).items()),
        "*  put in: a config has a figure of the same thing, from elsewhere",
        "",
        f"{sum(not row.missed for row in predicted)} of {len(predicted)} predicted figures within {MISS:.0%}.",
        *(f"  {row.measured.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.why}" for row in missed),
        "",
        f"A read of 64 B takes, by the number of 4 KiB reads under way: {curve} times as long as alone;",
        f"{study.blocking.slower:.2f} beside {study.blocking.at_once} if the port's link has a buffer of one such read "
        f"(buffer_bytes). To make it {SLOWER.low:g}, {study.queued_bytes / 1e3:.0f} KB must stand before it.",
    ]


def _document(study: Study) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "validation",
        "rows": [{**asdict(row), "relative_error": row.relative_error} for row in study.rows],
        "beside": [asdict(point) for point in study.curve],
        "blocking": asdict(study.blocking),
        "queued_bytes": study.queued_bytes,
    }


# --- the picture ------------------------------------------------------------------------------------------------------


def _validation(study: Study) -> Any:
    figure, [errors, queues] = panels((13, 2 + len(study.rows) * 0.12), 1, 2, title="Measured elsewhere, and the model")
    rows = study.rows[::-1]
    colours = [VERMILION if row.missed else BLUE for row in rows]
    errors.barh([row.measured.figure for row in rows], [1 + row.relative_error for row in rows], color=colours)
    errors.axvline(1, color="black", linewidth=0.9)
    errors.axvspan(1 - MISS, 1 + MISS, color="0.9", zorder=0)
    errors.tick_params(axis="y", labelsize=7)
    errors.set_xlabel(f"ours by measured (grey: within {MISS:.0%})")
    depths = [point.at_once for point in study.curve]
    queues.plot(depths, [point.slower for point in study.curve], color=BLUE, marker="o", label="ours")
    queues.axhline(SLOWER.low, color="black", linestyle=":", label="measured")
    queues.set_xscale("log", base=2)
    queues.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    queues.set_xlabel("4 KiB reads under way")
    queues.set_ylabel("time of a 64 B read beside them, by alone")
    queues.legend(frameon=False, fontsize=8)
    return figure


PICTURES = {"validation.png": _validation}
