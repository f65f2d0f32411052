"""The picture of a comparison: a panel a collective, time over size, everybody a line, the machine's limit below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cxlemu.errors import ArgumentError
from cxlemu.units import format_bytes
from studies.peers.ratios import Row

COLUMNS = 4
# Colours of Okabe and Ito, which also colour-blind people tell apart; the limit is grey, because nobody can be there.
STYLES = {
    "cxlemu": ("#d55e00", "o"),
    "handle": ("#e69f00", "o"),
    "pool": ("#56b4e9", "o"),
    "openmpi": ("#0072b2", "s"),
    "mpich": ("#009e73", "^"),
    "gloo": ("#cc79a7", "D"),
}
LABELS = {
    "handle": "cxlemu, persistent",
    "pool": "the same, arrays in the pool",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "gloo": "Gloo",
}


def pyplot() -> Any:
    """matplotlib, drawing to files only. Raises ArgumentError when it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise ArgumentError(f"--plot needs matplotlib ({error}): pip install 'cxlemu[plot]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    return plt


def draw(rows: Sequence[Row], path: Path, *, title: str) -> None:
    """Of rows of both kinds those with rewritten sources are drawn: that is how applications call."""
    plt = pyplot()
    rewritten = any(row.rewritten for row in rows)
    drawn = [row for row in rows if row.rewritten == rewritten]
    names = list(dict.fromkeys(row.collective for row in drawn))
    columns = min(COLUMNS, len(names))
    lines = -(-len(names) // columns)
    figure, panels = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 3.2 * lines + 0.9), sharex=True, sharey=True, squeeze=False
    )
    for number, panel in enumerate(panels.flat):
        if number >= len(names):
            panel.set_visible(False)
            continue
        _panel(panel, names[number], [row for row in drawn if row.collective == names[number]])
        if number % columns == 0:
            panel.set_ylabel("time per call (µs)")
        if number + columns >= len(names):
            panel.set_xlabel("size")
            panel.xaxis.set_tick_params(labelbottom=True)
    panels[0, 0].set_ylim(*_bounds_us(drawn))  # of all: they share it
    labels: dict[str, Any] = {}
    for panel in panels.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            labels.setdefault(label, handle)
    source = "rewritten before each call" if rewritten else "the same in every call"
    figure.suptitle(f"{title}, source {source}", fontsize=11)
    figure.legend(labels.values(), labels.keys(), loc="lower center", ncols=max(1, len(labels)), frameon=False)
    figure.tight_layout(rect=(0, 0.35 / figure.get_figheight(), 1, 1))
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bounds_us(rows: Sequence[Row]) -> tuple[float, float]:
    times = [time for row in rows for time in (row.ours_us, row.limit_us, *row.peers_us.values()) if time > 0]
    return min(times) / 2, max(times) * 2


def _panel(panel: Any, name: str, rows: Sequence[Row]) -> None:
    nbytes = [row.bytes for row in rows]
    limit = [row.limit_us for row in rows]
    panel.plot(nbytes, limit, color="0.4", linestyle="--", linewidth=1.2, label="this machine's limit")
    panel.fill_between(nbytes, limit, min(limit) / 100, color="0.93", linewidth=0)
    for peer in dict.fromkeys(peer for row in rows for peer in row.peers_us):
        points = [(row.bytes, row.peers_us[peer]) for row in rows if peer in row.peers_us]
        _line(panel, peer, points)
    _line(panel, "handle", [(row.bytes, row.handle_us) for row in rows if row.handle_us is not None])
    _line(panel, "pool", [(row.bytes, row.pool_us) for row in rows if row.pool_us is not None])
    _line(panel, "cxlemu", [(row.bytes, row.ours_us) for row in rows])
    panel.set_title(name, fontsize=10)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    ticks = nbytes[:: max(1, -(-len(nbytes) // 5))]
    panel.set_xticks(ticks, [format_bytes(size).replace("iB", "B") for size in ticks], fontsize=8)
    panel.minorticks_off()
    panel.grid(color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)


def _line(panel: Any, name: str, points: Sequence[tuple[int, float]]) -> None:
    if points:
        colour, marker = STYLES[name]
        panel.plot(
            *zip(*points, strict=True),
            color=colour,
            marker=marker,
            markersize=3.5,
            linewidth=1.8 if name == "cxlemu" else 1.2,
            label=LABELS.get(name, name),
        )
