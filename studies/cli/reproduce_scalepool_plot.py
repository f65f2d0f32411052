"""Pictures of ScalePool's reproduction: speedups, what a step is made of, and which assumption moves them."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.progress import track

from studies.cli.bench_plot import pyplot
from studies.cli.reproduce_plot import COLOURS, png
from studies.cli.simulate_memory_plot import draw as draw_tiers
from studies.published.scalepool import GEOMEAN, Reproduction
from studies.published.sensitivity import axes
from studies.published.tiers import SCALEPOOL, TierStudy
from studies.training.durations import LEVELS

PICTURES = ("speedups.png", "steps.png", "sensitivity.png", "tiers.png")


def pictures(work: Reproduction, study: TierStudy) -> dict[str, bytes]:
    """PNG files by name. Raises ArgumentError without matplotlib."""
    plt = pyplot()
    drawn = [png(plt, draw(plt, work)) for draw in (_speedups, _steps, _moves)]
    return dict(zip(PICTURES, [*drawn, draw_tiers(study.measured(), study.memories[SCALEPOOL])], strict=True))


def _speedups(plt: Any, work: Reproduction) -> Any:
    figure, panel = plt.subplots(figsize=(8, 4.4))
    names = [pair.case.model for pair in work.pairs] + ["geometric mean"]
    published = [pair.case.published for pair in work.pairs] + [GEOMEAN]
    ours = [pair.speedup for pair in work.pairs] + [work.geomean]
    once = list(work.crossing_once.values())
    groups = (
        ("published", published, "black"),
        ("ours", ours, COLOURS[0]),
        ("ours, if only what must cross clusters did", [*once, statistics.geometric_mean(once)], COLOURS[5]),
    )
    for number, (label, values, colour) in enumerate(groups):
        bars = panel.bar(
            [at + (number - 1) * 0.27 for at in range(len(names))], values, 0.25, label=label, color=colour
        )
        panel.bar_label(bars, fmt="%.2f", fontsize=7)
    panel.axhline(1, color="0.7", linewidth=0.8)
    panel.set_ylim(0.8)
    panel.set_xticks(range(len(names)), names)
    panel.set_ylabel("training speedup over RDMA")
    panel.set_title("ScalePool: published beside the model", fontsize=11)
    panel.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


def _steps(plt: Any, work: Reproduction) -> Any:
    figure, panel = plt.subplots(figsize=(9, 4.4))
    levels = list(dict.fromkeys(LEVELS.values()))
    steps = [(pair, step) for pair in work.pairs for step in (pair.baseline, pair.scalepool)]
    below = [0.0] * len(steps)
    places = [at // 2 * 1.0 + at % 2 * 0.38 for at in range(len(steps))]
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
    panel.set_title("What a training step is made of", fontsize=11)
    figure.legend(loc="lower center", ncols=6, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    return figure


def _moves(plt: Any, work: Reproduction) -> Any:
    figure, panels = plt.subplots(1, 4, figsize=(14, 4.2), sharey=True)
    shown = track(list(axes(work)), "simulating other fabrics", console=Console(stderr=True), transient=True)
    for panel, axis in zip(panels, shown, strict=True):
        found = {value: work.pairs if value == axis.base else axis.of(value) for value in axis.values}
        for number, colour in zip(range(len(work.pairs)), COLOURS, strict=False):
            case = work.pairs[number].case
            its = [pairs[number].speedup for pairs in found.values()]
            panel.plot(axis.values, its, color=colour, marker="o", markersize=4, label=f"ours, {case.model}")
            panel.axhline(case.published, color=colour, linestyle=":", linewidth=1)
        panel.axvline(axis.base, color="0.8", linewidth=6, zorder=0)
        panel.axhline(1, color="0.3", linewidth=0.8, zorder=0)
        panel.set_yscale("log", base=2)
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        panel.set_xscale("log", base=2)
        panel.set_xticks(axis.values, [f"{value:g}" for value in axis.values])
        panel.minorticks_off()
        panel.set_xlabel(axis.name)
    panels[0].set_ylabel("training speedup over RDMA (below 1: slower)")
    title = "What moves the speedups, one assumption at a time: grey is what the configs say, dotted is published"
    figure.suptitle(title, fontsize=11)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.08, 1, 1))
    return figure
