"""What ``cxlemu reproduce scalepool`` does: the figures, what a step is made of, and pictures of both."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

import click
from rich.table import Table

from cxlemu.cli.console import figure_table
from cxlemu.cli.progress import counting
from cxlemu.topology.provenance import kinds_of
from cxlemu.units import counted
from cxlemu.version import __version__
from studies.cli.picture import COLOURS, SKY, VERMILION, legend, panels, powers_axis
from studies.cli.reproduce import ScalePoolFlags
from studies.cli.reproduce_intervals import intervals_document, predicted, print_intervals
from studies.cli.reproduce_report import ReproductionReport, told_misses
from studies.cli.simulate_memory_plot import draw as draw_tiers
from studies.published.rows import MISS, Row, hits
from studies.published.scalepool import GEOMEAN, Pair, Reproduction
from studies.published.sensitivity import axes
from studies.published.tiers import SCALEPOOL, TierStudy, told
from studies.ranged import of_scalepool
from studies.training.durations import LEVELS

CHECKED_RANKS, CHECKED_SLICE_BYTES = 64, 4 << 20


def run(_ctx: click.Context, asked: ScalePoolFlags) -> None:
    report = ReproductionReport(asked, PICTURES)
    work = Reproduction()
    study = TierStudy()
    with work.on_all_cores():
        rows = list(report.finished(chain(work.rows(), study.rows()), "comparing figures"))
    if report.interrupted:
        report.end("scalepool", rows)
    report.header(_header(work))
    report.figures(rows)
    report.lines([""])
    report.table(_step_table(work.pairs))
    report.lines(_footer(work, rows))
    if asked.verbose:
        report.lines(["", *_otherwise(work), *told(study)])
    intervals = print_intervals(report, predicted(rows), of_scalepool(work)) if asked.intervals else None
    report.keep(_document(work, rows, asked.verbose) | intervals_document(intervals), work, study)


def _header(work: Reproduction) -> list[str]:
    setup = work.setup
    return [
        f"cxlemu     {__version__}: modelled figures, the same on every machine",
        f"scalepool  {setup.accelerator}, {setup.cluster_ranks} a cluster ({setup.inside}), {setup.scalepool} between",
        f"baseline   the same clusters, {setup.baseline} between, optimizer's state with the hosts",
        f"figures    of scalepool.yaml {kinds_of(setup.provenance)}; none fitted",
    ]


def _step_table(pairs: Sequence[Pair]) -> Table:
    """List the seconds of a step, on the baseline and on ScalePool."""
    spent_on = {LEVELS[kind] for pair in pairs for step in (pair.baseline, pair.scalepool) for kind in step.billed_ns}
    levels = [level for level in dict.fromkeys(LEVELS.values()) if level in spent_on]
    table = figure_table("a step, s", "ranks", *(name.replace(" clusters", "") for name in levels), "all")
    for pair in pairs:
        for words, step in ((pair.case.model, pair.baseline), ("  ScalePool", pair.scalepool)):
            spent = [sum(step.billed_ns.get(kind, 0) for kind in LEVELS if LEVELS[kind] == level) for level in levels]
            cells = [f"{ns / 1e9:.2f}" for ns in (*spent, step.time_ns)]
            table.add_row(words, str(step.parallelism.ranks) if step is pair.baseline else "", *cells)
    return table


def _footer(work: Reproduction, rows: list[Row]) -> list[str]:
    by_name = {pair.case.model: pair for pair in work.pairs}
    near, predicted = hits(rows)
    return [
        "",
        f"{near} of {predicted} predicted figures within {MISS:.0%}. Off by more:",
        *told_misses(rows),
        "",
        _told(by_name["palm-540b"]),
        _told(by_name["megatron-1t"]),
    ]


def _otherwise(work: Reproduction) -> list[str]:
    """Say what two levels of data parallelism would give, and how far off the evaluation of many ranks is."""
    error = max(
        abs(fabric.error(collective, CHECKED_SLICE_BYTES, CHECKED_RANKS))
        for fabric in (work.baseline, work.scalepool)
        for collective in ("all_gather", "reduce_scatter")
    )
    return [
        "As Calculon does, all of data parallelism is billed to what is between clusters. If only what must cross did: "
        + ", ".join(f"{name} {value:.2f}" for name, value in work.crossing_once.items())
        + ".",
        f"Collectives of more than {counted(work.baseline.points[1], 'rank')} follow a line; at {CHECKED_RANKS}, where "
        f"all were simulated, too, it is off by {error:.1%}.",
    ]


def _told(pair: Pair) -> str:
    """Say what a step of one accelerator computes and sends."""
    step = pair.baseline
    tflop = step.tflop_a_rank
    gbytes = step.between_bytes / 1e9
    how = step.parallelism
    return (
        f"{pair.case.model} ({how}): {tflop:,.0f} TFLOP and {gbytes:,.1f} GB between clusters for each accelerator and "
        f"step, {1e3 * gbytes / tflop:.1f} MB a TFLOP: {pair.speedup:.2f} times as fast."
    )


def _document(work: Reproduction, rows: Sequence[Row], verbose: bool) -> dict[str, Any]:
    return {
        "version": __version__,
        "system": "scalepool",
        "setup": work.setup.document(),
        "fitted": None,
        "rows": [asdict(row) for row in rows],
        "steps": [
            {
                "model": pair.case.model,
                "parallelism": str(step.parallelism),
                "ranks": step.parallelism.ranks,
                "fabric": step.machine.between.name,
                "time_ns": step.time_ns,
                "utilization": step.utilization,
                "memory_bytes": step.memory_bytes,
                "tflop_a_rank": step.tflop_a_rank,
                "between_bytes": step.between_bytes,
                "billed_ns": {kind: step.billed_ns.get(kind, 0.0) for kind in LEVELS},
            }
            for pair in work.pairs
            for step in (pair.baseline, pair.scalepool)
        ],
        "two_levels": work.crossing_once if verbose else None,
    }


# --- pictures ---------------------------------------------------------------------------------------------------------


def _speedups(work: Reproduction, _: TierStudy) -> Any:
    figure, [panel] = panels((8, 4.4), title="ScalePool: published beside the model")
    names = [pair.case.model for pair in work.pairs] + ["geometric mean"]
    published = [pair.case.published for pair in work.pairs] + [GEOMEAN]
    ours = [pair.speedup for pair in work.pairs] + [work.geomean]
    once = list(work.crossing_once.values())
    groups = (
        ("published", published, "black"),
        ("ours", ours, VERMILION),
        ("ours, if only what must cross clusters did", [*once, statistics.geometric_mean(once)], SKY),
    )
    for number, (label, values, colour) in enumerate(groups):
        bars = panel.bar(
            [index + (number - 1) * 0.27 for index in range(len(names))], values, 0.25, label=label, color=colour
        )
        panel.bar_label(bars, fmt="%.2f", fontsize=7)
    panel.axhline(1, color="0.7", linewidth=0.8)
    panel.set_ylim(0.8)
    panel.set_xticks(range(len(names)), names)
    panel.set_ylabel("training speedup over RDMA")
    panel.legend(frameon=False, fontsize=8)
    return figure


def _steps(work: Reproduction, _: TierStudy) -> Any:
    figure, [panel] = panels((9, 4.4), title="What a training step is made of")
    levels = list(dict.fromkeys(LEVELS.values()))
    steps = [(pair, step) for pair in work.pairs for step in (pair.baseline, pair.scalepool)]
    below = [0.0] * len(steps)
    places = [index // 2 * 1.0 + index % 2 * 0.38 for index in range(len(steps))]
    for level, colour in zip(levels, COLOURS, strict=False):
        shares = [
            sum(step.billed_ns.get(kind, 0) for kind in LEVELS if LEVELS[kind] == level) / pair.baseline.time_ns
            for pair, step in steps
        ]
        panel.bar(places, shares, 0.34, bottom=below, label=level, color=colour)
        below = [one + more for one, more in zip(below, shares, strict=True)]
    ticks = [place + 0.19 for place in places[::2]]
    panel.set_xticks(ticks, [f"{pair.case.model}\nRDMA | CXL" for pair in work.pairs])
    panel.set_ylabel("share of the baseline's step")
    legend(figure, columns=6)
    return figure


def _moves(work: Reproduction, _: TierStudy) -> Any:
    title = "What moves the speedups, one assumption at a time: grey is what the configs say, dotted is published"
    figure, every = panels((14, 4.6), 1, 4, title=title, share="y")
    for panel, axis in zip(every, counting(axes(work), "simulating other fabrics"), strict=True):
        by_value = {value: work.pairs if value == axis.base else axis.of(value) for value in axis.values}
        for number, colour in zip(range(len(work.pairs)), COLOURS, strict=False):
            case = work.pairs[number].case
            speedups = [pairs[number].speedup for pairs in by_value.values()]
            panel.plot(axis.values, speedups, color=colour, marker="o", markersize=4, label=f"ours, {case.model}")
            panel.axhline(case.published, color=colour, linestyle=":", linewidth=1)
        panel.axvline(axis.base, color="0.8", linewidth=6, zorder=0.6)
        panel.axhline(1, color="0.3", linewidth=0.8, zorder=0.6)
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        powers_axis(panel, axis.values)
        panel.set_xlabel(axis.name)
    every[0].set_ylabel("training speedup over RDMA (below 1: slower)")
    legend(figure)
    return figure


def _tiers(_: Reproduction, study: TierStudy) -> Any:
    return draw_tiers(study.measured(), study.memories[SCALEPOOL])


PICTURES = {"speedups.png": _speedups, "steps.png": _steps, "sensitivity.png": _moves, "tiers.png": _tiers}
