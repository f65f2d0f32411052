"""What ``--intervals`` adds to a reproduction: figures low, middle and high, and whether published ones lie inside."""

from collections.abc import Mapping, Sequence
from typing import Any

from cxlemu.cli.console import plain_table
from cxlemu.topology.intervals import Interval, intervals
from cxlemu.units import counted
from studies.cli.reproduce_report import ReproductionReport
from studies.published.rows import Row
from studies.ranged import Ranged, computed

Published = Mapping[str, tuple[float, float]]  # the least and the largest value of each figure that is predicted


def print_intervals(report: ReproductionReport, published: Published, parts: Sequence[Ranged]) -> dict[str, Interval]:
    """Print each figure low, middle and high, with what moves it most; return the intervals.

    After Ctrl-C there are none.
    """
    with computed(parts) as steps:
        answers = list(report.finished(steps, "varying figures within their ranges", sum(part.runs for part in parts)))
    if report.interrupted:
        return {}
    found: dict[str, Interval] = {}
    for part in parts:
        found |= intervals(part.figures, answers[: part.runs])
        del answers[: part.runs]
    figures = [figure for figure in published if figure in found]
    table = plain_table()
    for name in ("figure", "published", "low", "ours", "high", "width", "inside", "moved most by"):
        table.add_column(
            name, justify="left" if name in ("figure", "moved most by") else "right", no_wrap=name == "figure"
        )
    for figure in figures:
        low, high = published[figure]
        interval, said = found[figure], "-".join(f"{value:g}" for value in dict.fromkeys((low, high)))
        inside = interval.holds(low, high)
        width = f"{interval.high / interval.low:.2g}x" if interval.low > 0 else ""
        cells = (*(f"{value:.4g}" for value in interval[:3]), width, "yes" if inside else "no", _most(interval))
        table.add_row(figure, said, *cells, style="" if inside else "red")
    count = sum(found[figure].holds(*published[figure]) for figure in figures)
    report.lines(["", "Within the ranges of the configs' figures:"])
    report.table(table)
    report.lines(["", f"{count} of {counted(len(figures), 'predicted figure')} inside their intervals."])
    return found


def predicted(rows: Sequence[Row]) -> Published:
    return {row.figure: row.published_range for row in rows if row.kind == "predicted"}


def intervals_document(found: Mapping[str, Interval] | None) -> dict[str, Any]:
    """Describe intervals for ``--json``; {} where none were asked for."""
    return {} if found is None else {"intervals": {name: interval._asdict() for name, interval in found.items()}}


def _most(interval: Interval) -> str:
    return interval.alone if interval.alone == interval.jointly else f"{interval.alone}; jointly {interval.jointly}"
