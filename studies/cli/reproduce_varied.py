"""What ``-v`` adds to a reproduction: each row with every assumed figure a quarter lower and higher."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from cxlemu.cli.console import figure_table
from studies.cli.reproduce_report import ReproductionReport
from studies.published.rows import MISS, Row, hits, row_of
from studies.published.variation import AS_ASSUMED, Otherwise

LEAST = 0.005  # moves by less, of a row's value, are left out of the table


def print_varied(
    report: ReproductionReport, rows: Sequence[Row], steps: Iterable[tuple[str, dict[str, tuple[float, float]]]]
) -> Otherwise:
    """Print each row with every assumed figure that moves it, and how many rows would be near."""
    otherwise = dict(report.finished(steps, "varying assumed figures"))
    if AS_ASSUMED not in otherwise:
        return otherwise  # Ctrl-C came
    report.lines(["", "Every assumed figure 25% lower and higher, one at a time; those that move a row:"])
    report.table(varied_table(rows, otherwise))
    usual = {figure: value for figure, (value, _) in otherwise[AS_ASSUMED].items()}
    near = {AS_ASSUMED: _near(rows, usual)}
    for name, ends_of in otherwise.items():
        if name != AS_ASSUMED:
            for words, end in (("25% lower", 0), ("25% higher", 1)):
                near[f"{name} {words}"] = _near(rows, {figure: ends[end] for figure, ends in ends_of.items()})
    least, most = (pick(near, key=lambda name: near[name]) for pick in (min, max))
    unmoved = [name for name, varied in otherwise.items() if name != AS_ASSUMED and not _moves(varied, usual)]
    report.lines(
        [
            "",
            f"Predicted figures within {MISS:.0%}: {near[AS_ASSUMED]} as assumed, {near[least]} at least ({least}), "
            f"{near[most]} at most ({most}).",
            f"Moves nothing: {', '.join(unmoved) or 'none'}.",
        ]
    )
    return otherwise


def varied_table(rows: Sequence[Row], otherwise: Otherwise) -> Table:
    """List, below each row, the assumed figures that move it, the strongest first."""
    table = figure_table("figure", "published", "as assumed", "-25%", "+25%")
    for row in rows:
        if row.figure not in otherwise[AS_ASSUMED]:
            continue
        usual = otherwise[AS_ASSUMED][row.figure][0]
        published = "-".join(f"{value:g}" for value in dict.fromkeys(row.published_range))
        table.add_row(row.figure, published, f"{usual:.4g}", style="bold")
        moves = {name: values[row.figure] for name, values in otherwise.items() if _moved(values[row.figure], usual)}
        for name in sorted(moves, key=lambda name: -max(abs(value - usual) for value in moves[name])):
            less, more = moves[name]
            table.add_row(f"  {name}", "", "", f"{less:.4g}", f"{more:.4g}")
    return table


def _moves(ends_of: dict[str, tuple[float, float]], usual: dict[str, float]) -> bool:
    return any(_moved(ends, usual[figure]) for figure, ends in ends_of.items())


def _moved(ends: tuple[float, float], usual: float) -> bool:
    return max(abs(value - usual) for value in ends) >= LEAST * abs(usual)


def _near(rows: Sequence[Row], ours: dict[str, float]) -> int:
    """Count the predicted rows that would be within MISS."""
    return hits(
        [
            row_of(row.figure, row.published_range, ours[row.figure], row.kind, read_in=row.read_in)
            for row in rows
            if row.figure in ours
        ]
    )[0]
