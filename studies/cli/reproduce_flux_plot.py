"""Pictures of FLUX's reproduction: overlap efficiencies over rows, and what the times are made of."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from studies.cli.picture import BLUE, COLOURS, VERMILION, legend, panels, powers_axis
from studies.published.flux import CLUSTERS, SHAPES, Shape

LOWEST_DRAWN = -1.0  # efficiencies of few rows are far below
STYLES = {"unfused": "0.6", "medium": BLUE, "fused": VERMILION}


def _efficiencies(shapes: Sequence[Shape]) -> Any:
    title = "FLUX: how much communication hides behind the product, 8 ranks"
    figure, every = panels((14, 4.4), 1, len(CLUSTERS), title=title, share="y")
    for panel, (cluster, published) in zip(every, CLUSTERS.items(), strict=True):
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
    every[0].set_ylabel(f"overlap efficiency (lower than {LOWEST_DRAWN:g} drawn there)")
    legend(figure)
    return figure


def _times(shapes: Sequence[Shape]) -> Any:
    title = "FLUX: times of each style by that of the fastest product, 8 ranks"
    figure, every = panels((14, 6.6), len(SHAPES), len(CLUSTERS), title=title, share="y")
    for panel, (kind, cluster) in zip(every, product(SHAPES, CLUSTERS), strict=True):
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
    for panel in every[:: len(CLUSTERS)]:
        panel.set_ylabel("time by that of the product")
    legend(figure)
    return figure


def _rows_axis(panel: Any, shapes: Sequence[Shape]) -> None:
    powers_axis(panel, sorted({shape.operator.m for shape in shapes}), str)
    panel.set_xlabel("rows (m)", fontsize=9)


PICTURES = {"efficiencies.png": _efficiencies, "times.png": _times}
