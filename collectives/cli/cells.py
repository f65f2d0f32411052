"""What the rows of ``cxlemu run`` and ``cxlemu simulate`` have in common, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collectives.sweep.sweep import SweepRow
    from collectives.sweep.virtual.simulated import Simulated


def cells_of(row: SweepRow | Simulated, slow_digits: int) -> dict[str, object]:
    """Return the cells that both tables have, by their columns' names."""
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


def said_of(row: SweepRow | Simulated) -> str:
    """Say what a narrow table has no columns for: ``f32, sum`` or ``f32, root 0``."""
    redop, root = [row.redop] * (row.redop != "none"), [f"root {row.root}"] * (row.root >= 0)
    return ", ".join([row.dtype, *redop, *root])
