"""What every reproduction prints: a row for each figure, ours beside it; and where its pictures go."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from collectives.reproduce.cccl import Row
from cxlemu.cli.bench_plot import pyplot
from cxlemu.cli.output import check_output
from cxlemu.errors import ArgumentError


def table(rows: Sequence[Row]) -> Table:
    """Red where the model is far off."""
    found = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("figure", "published", "ours", "error", "kind"):
        found.add_column(name, justify="left" if name in ("figure", "kind") else "right", no_wrap=True)
    for row in rows:
        published = "-".join(f"{value:.4g}" for value in dict.fromkeys(row.published_range))
        error = f"{100 * row.relative_error:+.0f}%"
        found.add_row(row.figure, published, f"{row.ours:.4g}", error, row.kind, style="red" if row.missed else "")
    return found


def missed(rows: Sequence[Row]) -> list[str]:
    """A line for each that is far off, with what the model shows."""
    found = [row for row in rows if row.missed]
    width = max((len(row.figure) for row in found), default=0)
    return [f"  {row.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.shows}" for row in found]


def make_directory(plot_dir: Path, pictures: Sequence[str]) -> None:
    """Raises ArgumentError where no picture could be drawn or written in the end; then nothing is made."""
    pyplot()
    try:
        plot_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--plot {plot_dir} cannot be made: {error.strerror}; give a directory") from None
    for name in pictures:
        check_output("--plot", plot_dir / name)
