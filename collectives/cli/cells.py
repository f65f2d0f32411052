"""What the rows of ``cxlemu run`` and ``cxlemu simulate`` have in common, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from cxlemu.cli.columns import Columns
from cxlemu.cli.console import print_wrapped

if TYPE_CHECKING:
    from collectives.sweep.sweep import SweepRow
    from collectives.sweep.virtual.simulated import Simulated


def cells_of(row: SweepRow | Simulated, slow_digits: int) -> dict[str, object]:
    algbw, busbw = (
        f"{each:.2f}" if each >= 1 else f"{each:.{slow_digits}f}"
        for each in (row.algbw_gbytes_per_s, row.busbw_gbytes_per_s)
    )
    return {
        "size": row.size_bytes,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": row.root,
        "time": f"{row.time_us:.1f}",
        "algbw": algbw,
        "busbw": busbw,
        "#wrong": "N/A" if row.wrong is None else row.wrong,
        "variant": row.variant,
    }


class RowsByCollective:
    """Prints rows as they come, and above the first one of a collective heads, and what they have no columns for."""

    def __init__(self, out: Console, columns: Columns) -> None:
        self._out, self._columns = out, columns
        self._before = ("", "")

    def add(self, row: SweepRow | Simulated, cells: Mapping[str, object]) -> None:
        of = "" if "type" in self._columns else _said_of(row)
        if fresh := row.collective != self._before[0]:
            self._out.print(Text("#"))
            self._out.print(Text(f"# {row.collective}", "bold"))
        if of and (row.collective, of) != self._before:
            self._out.print(Text(f"# {of}"))
        for head in self._columns.heads if fresh else ():
            self._out.print(Text(head))
        self._before = row.collective, of
        self._out.print(Text(self._columns.line(cells), "bold red" if row.wrong else ""))
        if row.first_wrong:
            print_wrapped(self._out, f"#   first wrong: {row.first_wrong}", "red", indent="#     ")


def _said_of(row: SweepRow | Simulated) -> str:
    """Such as ``f32, sum`` or ``f32, root 0``."""
    redop, root = [row.redop] * (row.redop != "none"), [f"root {row.root}"] * (row.root >= 0)
    return ", ".join([row.dtype, *redop, *root])
