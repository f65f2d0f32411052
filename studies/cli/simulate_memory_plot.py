"""The picture of memory in tiers: time per access over the working set, a panel for each workload.

A panel has a line for each topology and policy.
"""

from collections.abc import Sequence
from typing import Any

from studies.cli.picture import COLOURS, legend, panels, sizes_axis
from studies.tiering.study import Measured, Memory

LINES = ("-", "--", ":", "-.")  # one per policy


def draw(rows: Sequence[Measured], edges: Memory) -> Any:
    """Draw the time per access over the working set."""
    names = list(dict.fromkeys(row.workload for row in rows))
    figure, every = panels((4.2 * len(names) + 0.6, 4.8), 1, len(names), share="y")
    for panel, name in zip(every, names, strict=True):
        _panel(panel, [row for row in rows if row.workload == name])
        _edges(panel, edges)
        panel.set_title(name, fontsize=10)
    every[0].set_ylabel("ns per access")
    legend(figure, columns=3)
    return figure


def _panel(panel: Any, rows: Sequence[Measured]) -> None:
    topologies = list(dict.fromkeys(row.topology for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    for number, topology in enumerate(topologies):
        for policy, line in zip(policies, LINES, strict=False):
            chosen = [row for row in rows if (row.topology, row.policy) == (topology, policy)]
            if not chosen:
                continue
            panel.plot(
                [row.working_set_bytes for row in chosen],
                [row.access_ns for row in chosen],
                color=COLOURS[number % len(COLOURS)],
                linestyle=line,
                marker="o",
                markersize=3,
                label=topology if len(policies) == 1 else f"{topology}, {policy}",
            )
    panel.set_yscale("log")
    sizes_axis(panel, sorted({row.working_set_bytes for row in rows}))
    least, most = min(row.access_ns for row in rows), max(row.access_ns for row in rows)
    rounds = [digit * 10**power for power in range(1, 8) for digit in (1, 2, 5)]
    marks = [ns for ns in rounds if least / 2 < ns < most * 2]
    panel.set_yticks(marks, [f"{ns:,}" for ns in marks])
    panel.minorticks_off()
    panel.set_xlabel("working set")


def _edges(panel: Any, memory: Memory) -> None:
    """Mark where the nearest memories are full."""
    total = 0
    for tier in memory.tiers[:2]:
        total += tier.capacity_bytes
        panel.axvline(total, color="0.7", linewidth=0.8)
        place = panel.get_xaxis_transform()
        panel.text(total, 0.98, f"{tier.name} full ", transform=place, rotation=90, ha="right", va="top", fontsize=7)
