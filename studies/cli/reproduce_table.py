"""What all reproductions print and refuse alike: the table of figures, and a directory for pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.table import Table

from cxlemu.errors import ArgumentError
from studies.cli.picture import check_drawing, check_picture
from studies.published.rows import Row


def check_directory(plot_dir: Path | None, pictures: Iterable[str]) -> None:
    """``--plot DIR``, if there is one. Raises ArgumentError where no picture could be drawn or written in the end; then
    nothing is made."""
    if plot_dir is None:
        return
    check_drawing("--plot")
    try:
        plot_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--plot {plot_dir} cannot be made: {error.strerror}; give a directory") from None
    for name in pictures:
        check_picture("--plot", plot_dir / name)


def table_of(rows: Sequence[Row]) -> Table:
    """Published, ours and the error, a figure a row; those that are off are red."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("figure", "published", "ours", "error", "kind"):
        table.add_column(name, justify="left" if name in ("figure", "kind") else "right", no_wrap=name != "figure")
    for row in rows:
        published = "-".join(f"{value:g}" for value in dict.fromkeys(row.published_range))
        percent = round(100 * row.relative_error)
        error = f"{percent:+d}%" if percent else "0%"
        table.add_row(row.figure, published, f"{row.ours:.4g}", error, row.kind, style="red" if row.missed else "")
    return table
