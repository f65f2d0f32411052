"""The picture of memory in tiers: time per access over the working set, a panel a workload, a line a topology."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cxlemu.units import format_bytes
from studies.cli.bench_plot import pyplot
from studies.cli.reproduce_plot import COLOURS, png
from studies.tiering.study import Measured, Memory

TICKS_APART = 3  # so many times, or their names lie one upon the other
LINES = ("-", "--", ":", "-.")  # of policies


def draw(rows: Sequence[Measured], edges: Memory) -> bytes:
    """A PNG; ``edges``: whose memories mark where they are full. Raises ArgumentError without matplotlib."""
    plt = pyplot()
    names = list(dict.fromkeys(row.workload for row in rows))
    width = 4.2 * len(names) + 0.6
    figure, panels = plt.subplots(1, len(names), figsize=(width, 4.8), squeeze=False, sharey=True)
    for panel, name in zip(panels.flat, names, strict=True):
        _panel(panel, [row for row in rows if row.workload == name])
        _edges(panel, edges)
        panel.set_title(name, fontsize=10)
    panels.flat[0].set_ylabel("ns per access")
    figure.legend(*panels.flat[0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.14, 1, 1))
    return png(plt, figure)


def _panel(panel: Any, rows: Sequence[Measured]) -> None:
    topologies = list(dict.fromkeys(row.topology for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    for number, topology in enumerate(topologies):
        for policy, line in zip(policies, LINES, strict=False):
            its = [row for row in rows if (row.topology, row.policy) == (topology, policy)]
            if not its:
                continue
            panel.plot(
                [row.working_set_bytes for row in its],
                [row.access_ns for row in its],
                color=COLOURS[number % len(COLOURS)],
                linestyle=line,
                marker="o",
                markersize=3,
                label=topology if len(policies) == 1 else f"{topology}, {policy}",
            )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    ticks: list[int] = []
    for size in sorted({row.working_set_bytes for row in rows}):
        if not ticks or size >= TICKS_APART * ticks[-1]:
            ticks.append(size)
    panel.set_xticks(ticks, [format_bytes(size) for size in ticks], fontsize=8)
    least, most = min(row.access_ns for row in rows), max(row.access_ns for row in rows)
    rounds = [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]
    marks = [ns for ns in rounds if least / 2 < ns < most * 2]
    panel.set_yticks(marks, [f"{ns:,}" for ns in marks])
    panel.minorticks_off()
    panel.grid(color="0.92", linewidth=0.6)
    panel.set_xlabel("working set")


def _edges(panel: Any, memory: Memory) -> None:
    """Where the nearest memories are full."""
    total = 0
    for tier in memory.tiers[:2]:
        total += tier.capacity_bytes
        panel.axvline(total, color="0.7", linewidth=0.8)
        place = panel.get_xaxis_transform()
        panel.text(total, 0.98, f"{tier.name} full ", transform=place, rotation=90, ha="right", va="top", fontsize=7)
