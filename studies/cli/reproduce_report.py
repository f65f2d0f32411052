"""What all reproductions share: what they print, refuse and write, and the table of figures."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.table import Table
from rich.text import Text

from cxlemu.cli.columns import Column, Columns
from cxlemu.cli.console import console, figure_table, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import counting
from cxlemu.errors import ArgumentError
from cxlemu.units import counted
from cxlemu.version import __version__
from studies.cli.picture import KINDS, check_drawing, check_picture, save
from studies.cli.reproduce import ReproduceFlags
from studies.published.rows import MISS, Row, hits

T = TypeVar("T")
WIDE = 100  # columns of a terminal that has room for all columns of tables


class ReproductionReport:
    """Prints a reproduction as it comes, and keeps it in files when it is whole."""

    def __init__(self, asked: ReproduceFlags, pictures: Mapping[str, Callable[..., Any]]) -> None:
        _check_directory(asked.plot_dir, pictures)
        self._json_file, self._plot_dir, self._pictures = asked.json_file, asked.plot_dir, pictures
        self._out = console()
        self._interruption = Interruption()

    def header(self, lines: Iterable[str]) -> None:
        for line in lines:
            print_wrapped(self._out, f"# {line}", indent="#   ")

    def lines(self, lines: Iterable[str], style: str = "") -> None:
        for line in lines:
            print_wrapped(self._out, line, style)

    def rows(self, lines: Iterable[str], style: str = "") -> None:
        for line in lines:
            self._out.print(Text(line, style))

    def columns(self, columns: Sequence[Column], last: str, last_width: int) -> Columns:
        """Return the columns of a table that fit: `cxlemu.cli.columns.Columns`."""
        return Columns(columns, last, last_width, self._out.width)

    @property
    def is_narrow(self) -> bool:
        """Whether there is no room for columns that matter less."""
        return self._out.width < WIDE

    def table(self, table: Table) -> None:
        self._out.print(table, soft_wrap=False)

    def figures(self, rows: Sequence[Row]) -> None:
        """Print the table of figures; where each was read is left out on a narrow terminal."""
        self.table(table_of(rows, read_in=not self.is_narrow))

    def finished(self, steps: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
        """Yield each step, and show how many are done; after Ctrl-C there are no more, and `interrupted` is true."""
        with self._interruption:
            yield from counting(steps, what, total)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C came in `finished`."""
        return self._interruption.happened

    def end(self, system: str, rows: Sequence[Row], **more: Any) -> NoReturn:
        """End the command after Ctrl-C, with the figures that are finished."""
        near, predicted = hits(list(rows))
        if rows:
            self.figures(rows)
        figures = counted(predicted, "predicted figure")
        self.lines(["", f"{near} of {figures} within {MISS:.0%}, of those that are finished."])
        self.keep({"version": __version__, "system": system, "rows": [asdict(row) for row in rows], **more})
        raise AssertionError  # it has ended

    def keep(self, document: dict[str, Any], *work: Any) -> None:
        """Write the files. After Ctrl-C there are no pictures, and the command ends."""
        write_json(self._json_file, document | {"interrupted": self.interrupted})
        if self.interrupted:
            self._interruption.exit(click.get_current_context(), 0)
        if self._plot_dir is not None:
            for name, draw in counting(self._pictures.items(), "drawing", len(self._pictures)):
                save(draw(*work), "--plot", self._plot_dir / name)


def _check_directory(plot_dir: Path | None, pictures: Collection[str]) -> None:
    """Refuse pictures that cannot be drawn or written, with an ArgumentError; without matplotlib nothing is made."""
    if plot_dir is None:
        return
    check_drawing("--plot")
    if plot_dir.suffix[1:].lower() in KINDS and not plot_dir.is_dir():
        raise ArgumentError(
            f"--plot {plot_dir}: {counted(len(pictures), 'picture')} would be drawn; give a directory for them"
        )
    try:
        plot_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--plot {plot_dir} cannot be made: {error.strerror}; give a directory") from None
    for name in pictures:
        check_picture("--plot", plot_dir / name)


def table_of(rows: Sequence[Row], *, read_in: bool = True) -> Table:
    """List figures, published and ours, with the error, one in a row; those that are off are red."""
    names = ("figure", "published", *(["read in"] * read_in), "ours", "error", "kind")
    table = figure_table(*names, words=("read in", "kind"))
    for row in rows:
        published = "-".join(f"{value:g}" for value in dict.fromkeys(row.published_range))
        percent = round(100 * row.relative_error)
        error = f"{percent:+d}%" if percent else "0%"
        cells = (row.figure, published, *([row.read_in] * read_in), f"{row.ours:.4g}", error, row.kind)
        table.add_row(*cells, style="red" if row.missed else "")
    return table


def told_misses(rows: Sequence[Row]) -> list[str]:
    """Say, for each figure that is off, by how much, and what the model shows."""
    missed = [row for row in rows if row.missed]
    width = max((len(row.figure) for row in missed), default=0)
    return [f"  {row.figure:<{width}}  {100 * row.relative_error:+4.0f}%  {row.shows}" for row in missed]
