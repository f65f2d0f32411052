"""Pictures of FLUX's reproduction: overlap efficiencies over rows, and what the times are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from studies.cli.bench_plot import pyplot
from studies.cli.reproduce_plot import COLOURS, png
from studies.published.flux import CLUSTERS, SHAPES, Shape

PICTURES = ("efficiencies.png", "times.png")
LOWEST_DRAWN = -1.0  # efficiencies of few rows are far below
STYLES = {"unfused": "0.6", "medium": COLOURS[1], "fused": COLOURS[0]}


def pictures(shapes: Sequence[Shape]) -> dict[str, bytes]:
    """PNG files by name. Raises ArgumentError without matplotlib."""
    plt = pyplot()
    return {name: png(plt, draw(plt, shapes)) for name, draw in zip(PICTURES, (_efficiencies, _times), strict=True)}


def _efficiencies(plt: Any, shapes: Sequence[Shape]) -> Any:
    figure, panels = plt.subplots(1, len(CLUSTERS), figsize=(14, 4.4), sharey=True)
    for panel, (cluster, published) in zip(panels, CLUSTERS.items(), strict=True):
        for kind, colour in zip(SHAPES, COLOURS, strict=False):
            its = [shape for shape in shapes if (shape.cluster, shape.operator.kind) == (cluster, kind)]
            for style, line in (("fused", "-"), ("medium", ":")):
                values = [max(shape.metrics.overlap_efficiency(style) or 0.0, LOWEST_DRAWN) for shape in its]
                label = f"{kind}, {style}"
                panel.plot(
                    [s.operator.m for s in its], values, line, color=colour, marker="o", markersize=3, label=label
                )
        if published is not None:
            panel.axhspan(*published, color="0.9", label="published, from the lowest to the best")
        panel.axhline(0, color="0.5", linewidth=0.8)
        panel.set_title(cluster, fontsize=10)
        panel.set_ylim(LOWEST_DRAWN - 0.05, 1.05)
        _rows_axis(panel, shapes)
    panels[0].set_ylabel(f"overlap efficiency (lower than {LOWEST_DRAWN:g} drawn there)")
    figure.suptitle("FLUX: how much communication hides behind the product, 8 ranks", fontsize=11)
    return _legend(figure, panels[0])


def _times(plt: Any, shapes: Sequence[Shape]) -> Any:
    figure, panels = plt.subplots(len(SHAPES), len(CLUSTERS), figsize=(14, 6.6), sharey=True)
    for row, kind in zip(panels, SHAPES, strict=True):
        for panel, cluster in zip(row, CLUSTERS, strict=True):
            its = [shape for shape in shapes if (shape.cluster, shape.operator.kind) == (cluster, kind)]
            m = [shape.operator.m for shape in its]
            for style, colour in STYLES.items():
                times = [getattr(s.metrics, f"{style}_ns") / s.metrics.gemm_ns for s in its]
                panel.plot(m, times, color=colour, marker="o", markersize=3, label=style)
            comm = [shape.metrics.comm_ns / shape.metrics.gemm_ns for shape in its]
            panel.plot(m, comm, "--", color="black", linewidth=0.9, label="the collective alone")
            panel.axhline(1, color="0.7", linewidth=0.8)
            panel.set_yscale("log")
            panel.set_title(f"{cluster}, {kind}", fontsize=9)
            _rows_axis(panel, shapes)
        row[0].set_ylabel("time by that of the product")
    figure.suptitle("FLUX: times of each style by that of the fastest product, 8 ranks", fontsize=11)
    return _legend(figure, panels[0][0])


def _rows_axis(panel: Any, shapes: Sequence[Shape]) -> None:
    rows = sorted({shape.operator.m for shape in shapes})
    panel.set_xscale("log", base=2)
    panel.set_xticks(rows, [str(m) for m in rows], fontsize=7)
    panel.minorticks_off()
    panel.set_xlabel("rows (m)", fontsize=9)
    panel.grid(color="0.92", linewidth=0.6)


def _legend(figure: Any, panel: Any) -> Any:
    figure.legend(*panel.get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure
