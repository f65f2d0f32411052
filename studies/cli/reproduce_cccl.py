"""What ``cxlemu reproduce cccl`` does: the figures, and pictures of speedups, of chunks and of growth with hosts."""

import statistics
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from cxlemu.cli.console import figure_table
from cxlemu.units import format_bytes
from cxlemu.version import __version__
from studies.cli.picture import COLOURS, legend, panels, powers_axis, sizes_axis
from studies.cli.reproduce import CcclFlags
from studies.cli.reproduce_intervals import intervals_document, predicted, print_intervals
from studies.cli.reproduce_report import ReproductionReport, told_misses
from studies.cli.reproduce_varied import print_varied
from studies.published.cccl import (
    AVERAGES,
    CURVE,
    FEW,
    FITTED_ON,
    GROWTH,
    GROWTH_RANKS,
    SWINGS,
    VARIANTS,
    Reproduction,
)
from studies.published.rows import MISS, Row, hits
from studies.ranged import of_cccl


def run(_ctx: click.Context, asked: CcclFlags) -> None:
    report = ReproductionReport(asked, PICTURES)
    work = Reproduction()
    with work.nccl.on_all_cores():
        rows = list(report.finished(work.each_row(), "comparing figures"))
    if report.interrupted:
        report.end("cccl", rows)
    report.header(_header(work))
    report.figures(rows)
    report.lines([""])
    report.table(_chunk_table(work, by_size=not report.is_narrow))
    if report.is_narrow:
        report.lines(["", "The fastest number of chunks, by size:"])
        report.lines(f"  {name}: {_chosen(work, name)}" for name in AVERAGES)
    report.lines(_footer(work, rows))
    varied = None
    if asked.verbose:
        report.lines(
            ["", f"Sizes are {', '.join(map(format_bytes, FEW))} below, so that rows differ from the table's."]
        )
        varied = print_varied(report, rows, of_cccl(work)[0].otherwise())
    intervals = None
    if asked.intervals:
        report.lines(["", f"Sizes are {', '.join(map(format_bytes, FEW))} in what follows."])
        intervals = print_intervals(report, predicted(rows), of_cccl(work))
    report.keep({**_document(work, rows), "otherwise": varied, **intervals_document(intervals)}, work)


def _header(work: Reproduction) -> list[str]:
    first, last = (format_bytes(size) for size in (work.sizes[0], work.sizes[-1]))
    return [
        f"cxlemu    {__version__}: modelled figures, the same on every machine",
        f"ours      plans in virtual time on {work.ours.topology.name}, growth on {work.grown.topology.name}",
        f"baseline  NCCL's algorithms and protocols as plans in virtual time on {work.nccl.topology.name}",
        f"sizes     {first} - {last}, powers of two; averages are means of speedups",
        f"fitted    on {FITTED_ON} alone: in NCCL a slice costs its receiver {work.slice_ns / 1e3:.1f} us, bytes apart",
    ]


def _chunk_table(work: Reproduction, *, by_size: bool) -> Table:
    """List the averages with the chunks that are fastest and with other numbers, and the curve of all_gather."""
    last = "the fastest, by size"
    heads = ("average speedup, by chunks", "fastest", *map(str, CURVE), *([last] * by_size))
    table = figure_table(*heads, words=(last,))
    for name in AVERAGES:
        means = [statistics.fmean(work.speedups(name, chunks=k)) for k in (0, *CURVE)]
        table.add_row(name, *(f"{mean:.2f}" for mean in means), *([_chosen(work, name)] * by_size))
    for size in SWINGS:
        curve = work.curve("all_gather", size)
        cells = [f"{100 * (curve[k] - 1):+.0f}%" if curve[k] > 1 else "best" for k in CURVE]
        table.add_row(f"all_gather, {format_bytes(size)}: time", "", *cells)
    return table


def _chosen(work: Reproduction, name: str) -> str:
    return " ".join(map(str, work.chosen(name)))


def _footer(work: Reproduction, rows: list[Row]) -> list[str]:
    near, predicted = hits(rows)
    return [
        "",
        f"{near} of {predicted} predicted figures within {MISS:.0%}. Off by more:",
        *told_misses(rows),
        "",
        "Read in: the paper's abstract, the paper, or others' accounts of it (secondary). 6 and 12 hosts were "
        "emulated, says a secondary source.",
        "Measured: a step of 128 KiB of a connection, of grouped sends and receives, takes 10 to 12 us on "
        "H100 (nccl issues 2408 and 2409): 11 us are put in, beside a slice's bytes. LL128 and LL carry their shares "
        "of what the fitted ring does.",
        f"Training: {work.training.told()}. Cost: prices, which are put in, are said to be the paper's, unverified.",
    ]


def _document(work: Reproduction, rows: list[Row]) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "cccl",
        "config": work.ours.topology.document(),
        "baseline": {
            "what": "NCCL's algorithms and protocols as plans in virtual time",
            "config": work.nccl.topology.document(),
        },
        "fitted": {"name": "slice_ns", "value": work.slice_ns, "on": FITTED_ON},
        "rows": [asdict(row) for row in rows],
        "sizes_bytes": list(work.sizes),
        "chunks": {name: work.chosen(name) for name in AVERAGES},
        "chunk_curve": {format_bytes(size): work.curve("all_gather", size) for size in SWINGS},
        "speedups": {name: {variant: work.speedups(name, variant) for variant in VARIANTS} for name in AVERAGES},
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def _speedups(work: Reproduction) -> Any:
    title = "CCCL, 3 hosts and 6 cards: published beside the model"
    figure, every = panels((13, 6.4), 2, 4, title=title, share="xy")
    for panel, (name, published) in zip(every, AVERAGES.items(), strict=True):
        for variant, colour in zip(VARIANTS, COLOURS[2::-1], strict=True):
            speedups = work.speedups(name, variant)
            panel.plot(work.sizes, speedups, color=colour, marker="o", markersize=3, label=f"ours, {variant}")
        mean = sum(work.speedups(name)) / len(work.sizes)
        panel.axhline(mean, color=COLOURS[0], linestyle=":", label="ours, average of all")
        panel.axhline(published, color="black", linestyle="--", label="published average of all")
        panel.axhline(1, color="0.7", linewidth=0.8)
        panel.set_title(f"{name}: published {published:.2f}, ours {mean:.2f}", fontsize=10)
        sizes_axis(panel, work.sizes, parts=3)
    for panel in every[::4]:
        panel.set_ylabel("speedup over NCCL on InfiniBand")
    legend(figure)
    return figure


def _chunks(work: Reproduction) -> Any:
    figure, every = panels((12, 4.8), 1, 3, title="How many chunks a block is cut into", share="y")
    for panel, (size, published) in zip(every, SWINGS.items(), strict=False):
        curve = work.curve("all_gather", size)
        panel.plot(CURVE, [curve[k] for k in CURVE], color=COLOURS[0], marker="o", label="ours, all_gather")
        panel.axhline(1 + published, color="black", linestyle="--", label="published: the slowest of all_gather")
        panel.set_title(f"all_gather, {format_bytes(size)}", fontsize=10)
    for name, colour in zip(AVERAGES, COLOURS, strict=True):
        curve = work.by_chunks(name)
        every[2].plot(CURVE, [curve[k] for k in CURVE], color=colour, marker="o", label=f"ours, {name}")
    every[2].set_title("all collectives, mean over sizes", fontsize=10)
    for panel in every:
        panel.axvspan(4, 8, color="0.93", label="published: best numbers")
        powers_axis(panel, CURVE)
        panel.set_xlabel("chunks")
    every[0].set_ylabel("time by that of the best number")
    legend(figure, columns=4)
    return figure


def _growth(work: Reproduction) -> Any:
    figure, every = panels((12, 4.4), 1, 3, title="Growth with hosts, six cards")
    for panel, (name, published) in zip(every, GROWTH.items(), strict=True):
        for size, colour in zip(work.sizes[:: max(1, len(work.sizes) // 3)], COLOURS, strict=False):
            index = work.sizes.index(size)
            growth = [work.growth(name, ranks)[index] for ranks in GROWTH_RANKS]
            panel.plot(GROWTH_RANKS, growth, color=colour, marker="o", label=f"ours, {format_bytes(size)}")
        low, high = ([1.0, *(pair[end] for pair in published)] for end in (0, 1))
        panel.fill_between(GROWTH_RANKS, low, high, color="0.8")
        panel.plot(GROWTH_RANKS, low, color="black", linestyle="--", label="published")
        panel.plot(GROWTH_RANKS, high, color="black", linestyle="--")
        panel.set_xticks(GROWTH_RANKS)
        panel.set_xlabel("hosts")
        panel.set_title(name, fontsize=10)
    every[0].set_ylabel("time by that of 3 hosts")
    legend(figure)
    return figure


PICTURES = {"speedups.png": _speedups, "chunks.png": _chunks, "growth.png": _growth}
