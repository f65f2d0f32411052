"""What pictures of measurements share: figures of panels, axes of powers, one legend below, a file by its suffix.

matplotlib is imported when something is drawn; without pyplot, so that no figure outlives its picture.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

from cxlemu.cli.output import check_output, write_output
from cxlemu.errors import ArgumentError
from cxlemu.units import format_bytes

# Colours of Okabe and Ito, which also colour-blind people tell apart; what is published is black.
VERMILION, BLUE, GREEN, PINK, ORANGE, SKY = "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"
LETTERS_PER_INCH = 13  # of a line of 8 points
SYMBOL_LETTERS = 7  # what a legend's symbol and the space around it take
COLOURS = (VERMILION, BLUE, GREEN, PINK, ORANGE, SKY, "#f0e442", "0.4")

# suffix: what would differ from one run to the next, left out
KINDS: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
    "jpg": {},
    "webp": {},
}


def check_picture(flag: str, path: Path) -> None:
    """Refuse a picture before the work begins."""
    check_drawing(flag)
    _kind(flag, path)
    check_output(flag, path)


def check_drawing(flag: str) -> None:
    """Refuse to draw without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ArgumentError(f"{flag} needs matplotlib ({error}): pip install 'cxlemu[plot]'") from None


def save(figure: Any, flag: str, path: Path) -> None:
    """Write a figure, as its file's suffix says, whole or not at all; a file without suffix is a PNG."""
    import matplotlib

    file, kind = io.BytesIO(), _kind(flag, path)
    with matplotlib.rc_context({"svg.hashsalt": "cxlemu"}):
        figure.savefig(file, format=kind, dpi=150, metadata=KINDS[kind] or None)
    write_output(flag, path, file.getvalue())


def _kind(flag: str, path: Path) -> str:
    kind = path.suffix[1:].lower() or "png"
    if kind not in KINDS:
        raise ArgumentError(
            f"{flag} {path}: no picture ends in .{kind}; give one of {', '.join(f'.{k}' for k in KINDS)}"
        )
    return kind


def panels(
    inches: tuple[float, float], rows: int = 1, columns: int = 1, *, title: str = "", share: str = ""
) -> tuple[Any, list[Any]]:
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=inches, layout=ConstrainedLayoutEngine(w_pad=0.09, h_pad=0.09))  # inches around each panel
    if title:
        figure.suptitle(fill(title, round(inches[0] * LETTERS_PER_INCH * 8 / 11)), fontsize=11)
    grid = figure.subplots(rows, columns, squeeze=False, sharex="x" in share, sharey="y" in share)
    return figure, list(grid.flat)


def legend(figure: Any, columns: int = 5) -> None:
    """Add one legend for all panels, with each label once, below them and inside the picture."""
    entries: dict[str, Any] = {}
    for panel in figure.axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    widest = max(map(len, entries), default=0) + SYMBOL_LETTERS
    fitting = max(round(figure.get_figwidth() * LETTERS_PER_INCH) // widest, 1)
    columns = min(columns, len(entries), fitting)
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False, fontsize=8)


def powers_axis(panel: Any, ticks: Sequence[float], label: Callable[[Any], str] = "{:g}".format) -> None:
    """Make a panel's x axis logarithmic, with these ticks alone, over a pale grid."""
    panel.set_xscale("log", base=2)
    panel.set_xticks(ticks, [label(tick) for tick in ticks], fontsize=8)
    panel.minorticks_off()
    panel.grid(color="0.92", linewidth=0.6)
    panel.set_axisbelow(True)


def sizes_axis(panel: Any, sizes: Sequence[int], parts: int = 5) -> None:
    """Make a panel's x axis one of sizes, with ticks where there is room for their labels."""
    apart = (sizes[-1] / sizes[0]) ** (1 / parts) * 0.999
    ticks = list(sizes[:1])
    for size in sizes:
        if size >= apart * ticks[-1] and size > ticks[-1]:
            ticks.append(size)
    powers_axis(panel, ticks, format_bytes)
