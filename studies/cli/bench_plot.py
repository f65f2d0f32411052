"""The picture of a comparison: one panel per collective, time over size, one line per implementation.

The machine's limit is below.
"""

from collections.abc import Sequence
from typing import Any

from studies.cli.picture import BLUE, GREEN, ORANGE, PINK, SKY, VERMILION, legend, panels, sizes_axis
from studies.peers.ratios import RatioRow

COLUMNS = 4
# The limit is grey, because no implementation can be there.
STYLES = {
    "cxlemu": (VERMILION, "o"),
    "handle": (ORANGE, "o"),
    "pool": (SKY, "o"),
    "process": ("black", "o"),
    "openmpi": (BLUE, "s"),
    "mpich": (GREEN, "^"),
    "gloo": (PINK, "D"),
    "device": ("black", "o"),
    "hand": ("black", "v"),
    "nccl": ("black", "s"),
}
OURS = ("handle", "pool", "device", "hand", "nccl", "process")  # beside peers and plain calls, in drawing order
LABELS = {
    "handle": "cxlemu, persistent",
    "pool": "the same, arrays in the pool",
    "process": "the same, from process to process",
    "openmpi": "Open MPI",
    "mpich": "MPICH",
    "gloo": "Gloo",
    "device": "arrays on a device",
    "hand": "staged by hand",
    "nccl": "NCCL",
}


def draw(rows: Sequence[RatioRow], *, title: str) -> Any:
    """Draw a comparison. If some rows have rewritten sources, only these are drawn: that is how applications call."""
    rewritten = any(row.rewritten for row in rows)
    drawn = [row for row in rows if row.rewritten == rewritten]
    names = list(dict.fromkeys(row.collective for row in drawn))
    columns = min(COLUMNS, len(names))
    lines = -(-len(names) // columns)
    source = "rewritten before each call" if rewritten else "the same in every call"
    inches = 3.6 * columns, 3.2 * lines + 0.9
    figure, every = panels(inches, lines, columns, title=f"{title}, source {source}", share="xy")
    for number, (name, panel) in enumerate(zip(names, every, strict=False)):
        _panel(panel, name, [row for row in drawn if row.collective == name])
        if number % columns == 0:
            panel.set_ylabel("time per call (µs)")
        if number + columns >= len(names):
            panel.set_xlabel("size")
            panel.xaxis.set_tick_params(labelbottom=True)
    every[0].set_ylim(*_bounds_us(drawn))  # all panels share it
    for panel in every[len(names) :]:
        panel.set_visible(False)
    legend(figure, columns=7)
    return figure


def _bounds_us(rows: Sequence[RatioRow]) -> tuple[float, float]:
    times = [time for row in rows for time in (row.limit_us, *_times(row).values())]
    return min(times) / 2, max(times) * 2


def _times(row: RatioRow) -> dict[str, float]:
    """Return the times of a row by implementation, ours last; of a row that says nothing, none."""
    if row.impossible:
        return {}
    ours = {lane: getattr(row, f"{lane}_us") for lane in OURS}
    return row.peers_us | {lane: us for lane, us in ours.items() if us is not None} | {"cxlemu": row.ours_us}


def _panel(panel: Any, title: str, rows: Sequence[RatioRow]) -> None:
    nbytes = [row.bytes for row in rows]
    limit = [row.limit_us for row in rows]
    panel.plot(nbytes, limit, color="0.4", linestyle="--", linewidth=1.2, label="this machine's limit")
    panel.fill_between(nbytes, limit, min(limit) / 100, color="0.93", linewidth=0)
    times = [(row.bytes, _times(row)) for row in rows]
    for name in dict.fromkeys(name for _, its in times for name in its):
        _line(panel, name, [(size, its[name]) for size, its in times if name in its])
    panel.set_title(title, fontsize=10)
    panel.set_yscale("log")
    sizes_axis(panel, nbytes)


def _line(panel: Any, name: str, points: Sequence[tuple[int, float]]) -> None:
    colour, marker = STYLES[name]
    panel.plot(
        *zip(*points, strict=True),
        color=colour,
        marker=marker,
        markersize=3.5,
        linewidth=1.8 if name == "cxlemu" else 1.2,
        label=LABELS.get(name, name),
    )
