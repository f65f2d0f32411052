"""What ``cxlemu reproduce serving`` does: measured servers of language models beside the model."""

from dataclasses import asdict

import click

from cxlemu.version import __version__
from studies.cli.reproduce import IntervalsFlags, ReproduceFlags
from studies.cli.reproduce_intervals import intervals_document, predicted, print_intervals
from studies.cli.reproduce_report import ReproductionReport, told_misses
from studies.published.rows import MISS, hits
from studies.published.serving import rows
from studies.ranged import of_serving


def run(_ctx: click.Context, asked: IntervalsFlags) -> None:
    report = ReproductionReport(ReproduceFlags(json_file=asked.json_file, plot_dir=None), {})
    report.header(
        [f"cxlemu   {__version__}: modelled figures, the same on every machine", "configs  as shipped; nothing fitted"]
    )
    pairs = list(report.finished(rows(), "serving"))
    figures = [row for _, row in pairs]
    if report.interrupted:
        report.end("serving", figures)
    report.figures(figures)
    near, count = hits(figures)
    report.lines(["", f"{near} of {count} predicted figures within {MISS:.0%}.", *told_misses(figures), ""])
    for source in dict.fromkeys(source for source, _ in pairs):
        report.lines([f"{source.address}: {source.conditions}"])
    ranges = print_intervals(report, predicted(figures), of_serving()) if asked.intervals else None
    report.keep(
        {
            "version": __version__,
            "system": "serving",
            "rows": [asdict(row) | source._asdict() for source, row in pairs],
        }
        | intervals_document(ranges)
    )
