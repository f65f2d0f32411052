"""Pictures of ScalePool's reproduction: speedups, what a step is made of, and which assumption moves them."""

from __future__ import annotations

import statistics
from typing import Any

from rich.console import Console
from rich.progress import track

from studies.cli.picture import COLOURS, SKY, VERMILION, legend, panels, powers_axis
from studies.cli.simulate_memory_plot import draw as draw_tiers
from studies.published.scalepool import GEOMEAN, Reproduction
from studies.published.sensitivity import axes
from studies.published.tiers import SCALEPOOL, TierStudy
from studies.training.durations import LEVELS


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
            [at + (number - 1) * 0.27 for at in range(len(names))], values, 0.25, label=label, color=colour
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
    legend(figure, columns=6)
    return figure


def _moves(work: Reproduction, _: TierStudy) -> Any:
    title = "What moves the speedups, one assumption at a time: grey is what the configs say, dotted is published"
    figure, every = panels((14, 4.2), 1, 4, title=title, share="y")
    shown = track(list(axes(work)), "simulating other fabrics", console=Console(stderr=True), transient=True)
    for panel, axis in zip(every, shown, strict=True):
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
        powers_axis(panel, axis.values)
        panel.set_xlabel(axis.name)
    every[0].set_ylabel("training speedup over RDMA (below 1: slower)")
    legend(figure)
    return figure


def _tiers(_: Reproduction, study: TierStudy) -> Any:
    return draw_tiers(study.measured(), study.memories[SCALEPOOL])


PICTURES = {"speedups.png": _speedups, "steps.png": _steps, "sensitivity.png": _moves, "tiers.png": _tiers}
