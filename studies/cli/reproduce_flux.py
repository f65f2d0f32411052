"""What ``cxlemu reproduce flux`` does: all shapes, the figures, and pictures of overlap and of times over rows."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import click

from cxlemu.cli.columns import Column
from cxlemu.units import counted
from cxlemu.version import __version__
from studies.cli.picture import BLUE, COLOURS, VERMILION, legend, panels, powers_axis
from studies.cli.reproduce import FluxFlags
from studies.cli.reproduce_intervals import intervals_document, predicted, print_intervals
from studies.cli.reproduce_report import ReproductionReport, told_misses
from studies.cli.reproduce_varied import print_varied
from studies.published.flux import (
    CLUSTERS,
    RANGE_FROM,
    ROWS,
    SHAPES,
    SLOWED,
    SPEEDUPS,
    Reproduction,
)
from studies.published.flux_clusters import MODEL, RANKS, Shape
from studies.published.rows import MISS, Row, hits
from studies.ranged import of_flux

COLUMNS = (
    *(Column(name, "", width) for name, width in (("m", 5), ("GEMM", 5), ("comm", 5), ("unfused", 7), ("medium", 6))),
    *(Column("fused", "", 6), Column("E med", "", 5, order=1), Column("E", "", 5), Column("SOL", "", 4)),
)
TIMES = ("GEMM", "comm", "unfused", "medium", "fused")
TILES, TILES_WIDTH = "rows, tile, order, transport", 28


def run(_ctx: click.Context, asked: FluxFlags) -> None:
    report = ReproductionReport(asked, PICTURES)
    work = Reproduction(asked.rows or ROWS)
    report.header(_header(work))
    count = len(CLUSTERS) * len(SHAPES) * len(work.m)
    with work.ahead():
        shapes = list(report.finished(work.each_shape(), "simulating shapes", count))
        _print_shapes(report, shapes)
        rows = [] if report.interrupted else list(report.finished(work.each_row(), "comparing figures"))
    if report.interrupted:
        report.end("flux", rows, shapes=_shapes_as_dicts(shapes))
    if work.is_whole:
        _print_blocks(report, work)
    report.lines([""])
    report.figures(rows)
    report.lines(_footer(work, rows))
    varied = print_varied(report, rows, of_flux(work)[0].otherwise()) if asked.verbose else None
    ranges = print_intervals(report, predicted(rows), of_flux(work)) if asked.intervals else None
    report.keep({**_document(work, rows), "otherwise": varied, **intervals_document(ranges)}, shapes)


def _header(work: Reproduction) -> list[str]:
    return [
        f"cxlemu   {__version__}: modelled figures, the same on every machine",
        f"ranks    {RANKS}, bf16, layers of GPT-3; times in us",
        "GEMM     a rank's product, the fastest, not split; comm is the collective alone",
        "unfused  one after the other; medium: shard by shard; of each the fastest order and transport",
        "fused    in the tiles that the tuner found fastest for the shape, as they stand at the end of the line",
        "E        overlap efficiency, 1 - ECT / ECT of unfused, where ECT is what a call takes beside GEMM",
        "fitted   nothing: each chip's GEMM rates were measured by others, on other shapes",
    ]


def _print_shapes(report: ReproductionReport, shapes: Sequence[Shape]) -> None:
    before, columns = "", report.columns(COLUMNS, TILES, TILES_WIDTH)
    for shape in shapes:
        metrics, choice = shape.metrics, shape.tuned.choice
        if (title := f"{shape.cluster} {shape.operator.kind}") != before:
            report.lines(["#", f"# {title}"], "bold")
            report.rows([columns.heads[0]])
        before = title
        efficiencies = [metrics.overlap_efficiency(style) or 0.0 for style in ("medium", "fused")]
        times_ns = (metrics.gemm_ns, metrics.comm_ns, metrics.unfused_ns, metrics.medium_ns, metrics.fused_ns)
        cells = {
            "m": shape.operator.m,
            **{name: f"{ns / 1e3:.0f}" for name, ns in zip(TIMES, times_ns, strict=True)},
            **{name: f"{100 * value:.0f}%" for name, value in zip(("E med", "E"), efficiencies, strict=True)},
            "SOL": f"{metrics.sol:.2f}",
            TILES: choice,
        }
        report.rows([columns.line(cells)], "yellow" if efficiencies[1] < 0 else "")


def _print_blocks(report: ReproductionReport, work: Reproduction) -> None:
    title = f"# a block of {MODEL}: unfused / fused, whole; only its GEMMs with their collectives"
    report.lines(["#", title], "bold")
    for phase, (_, tokens) in SPEEDUPS.items():
        for its in tokens:
            blocks = {cluster: work.blocks[cluster, phase, its] for cluster in CLUSTERS}
            words = [f"{name} {b.speedup:.2f} ({b.unfused_ns / b.fused_ns:.2f})" for name, b in blocks.items()]
            what = f"{phase}, {counted(its, 'token')}"
            report.lines([f"{what:<22} {', '.join(words)}"])


def _footer(work: Reproduction, rows: list[Row]) -> list[str]:
    near, predicted = hits(rows)
    return [
        "",
        f"{near} of {predicted} predicted figures within {MISS:.0%}. Off by more:",
        *told_misses(rows),
        "",
        f"Assumed: published ranges are of m = {RANGE_FROM} and more; and the blocks' tokens.",
        "Published speedups are of whole models, with pipelines and data parallelism; none is of the CXL pool.",
        "Tiles and copies share nothing (held_by_copies, slowed_by_copies); not modelled: clocks that fall under load.",
        *_slowed(work),
    ]


def _slowed(work: Reproduction) -> list[str]:
    """Say what the overlap would be if kernels slowed each other as others measured it."""
    if not work.is_whole:
        return []
    ranges = [f"{cluster} {100 * low:.0f}-{100 * best:.0f}%" for cluster, (low, best) in work.slowed().items()]
    return [
        f"Were tiles {SLOWED:.1%} slower while anything moves, as beside NCCL's kernels (arXiv 2507.03114), overlap",
        f"would be {', '.join(ranges)}.",
    ]


def _document(work: Reproduction, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "flux",
        "configs": {name: work.clusters.simulator(name).topology.document() for name in CLUSTERS},
        "fitted": None,
        "rows": [asdict(row) for row in rows],
        "slowed": {"by": SLOWED, "overlap": work.slowed()} if work.is_whole else None,
        "blocks": [
            {"cluster": cluster, **asdict(block), "speedup": block.speedup}
            for (cluster, _, _), block in (work.blocks.items() if work.is_whole else ())
        ],
        "shapes": _shapes_as_dicts(work.shapes),
    }


def _shapes_as_dicts(shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    return [
        {
            "cluster": shape.cluster,
            **asdict(shape.operator),
            **asdict(shape.tuned.choice),
            "tried": shape.tuned.tried,
            **shape.metrics.document(),
        }
        for shape in shapes
    ]


# --- pictures ---------------------------------------------------------------------------------------------------------


LOWEST_DRAWN = -1.0  # efficiencies of few rows are far below
STYLES = {"unfused": "0.6", "medium": BLUE, "fused": VERMILION}


def _efficiencies(shapes: Sequence[Shape]) -> Any:
    title = "FLUX: how much communication hides behind the product, 8 ranks"
    figure, every = panels((14, 4.4), 1, len(CLUSTERS), title=title, share="y")
    for panel, (cluster, published) in zip(every, CLUSTERS.items(), strict=True):
        for kind, colour in zip(SHAPES, COLOURS, strict=False):
            chosen = [shape for shape in shapes if (shape.cluster, shape.operator.kind) == (cluster, kind)]
            for style, line in (("fused", "-"), ("medium", ":")):
                values = [max(shape.metrics.overlap_efficiency(style) or 0.0, LOWEST_DRAWN) for shape in chosen]
                label = f"{kind}, {style}"
                panel.plot(
                    [s.operator.m for s in chosen], values, line, color=colour, marker="o", markersize=3, label=label
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
        chosen = [shape for shape in shapes if (shape.cluster, shape.operator.kind) == (cluster, kind)]
        m = [shape.operator.m for shape in chosen]
        for style, colour in STYLES.items():
            times = [getattr(s.metrics, f"{style}_ns") / s.metrics.gemm_ns for s in chosen]
            panel.plot(m, times, color=colour, marker="o", markersize=3, label=style)
        comm = [shape.metrics.comm_ns / shape.metrics.gemm_ns for shape in chosen]
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
