"""The picture of memory in tiers: time per access over the working set, a panel a workload, a line a topology."""

from __future__ import annotations

import io
from collections.abc import Sequence

from collectives.tiering.study import Measured, Memory
from cxlemu.cli.bench_plot import pyplot
from cxlemu.units import format_bytes

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
LINES = ("-", "--", ":", "-.")


def draw(rows: Sequence[Measured], memories: Sequence[Memory]) -> bytes:
    """A PNG. Raises ArgumentError without matplotlib."""
    plt = pyplot()
    names = list(dict.fromkeys(row.workload for row in rows))
    policies = list(dict.fromkeys(row.policy for row in rows))
    figure, panels = plt.subplots(1, len(names), figsize=(4.2 * len(names) + 0.4, 4.6), squeeze=False)
    for panel, name in zip(panels.flat, names, strict=True):
        for memory, colour in zip(memories, COLOURS, strict=False):
            for policy, line in zip(policies, LINES, strict=True):
                its = [r for r in rows if (r.workload, r.topology, r.policy) == (name, memory.topology.name, policy)]
                label = memory.topology.name + (f", {policy}" if len(policies) > 1 else "")
                panel.plot(
                    [row.working_set_bytes for row in its],
                    [row.access_ns for row in its],
                    *(line,),
                    color=colour,
                    marker="o",
                    markersize=3,
                    label=label,
                )
        _edges(panel, memories[0])
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        sizes = sorted({row.working_set_bytes for row in rows})
        ticks = sizes[:: max(1, len(sizes) // 5)]
        panel.set_xticks(ticks, [format_bytes(size) for size in ticks], fontsize=8)
        panel.minorticks_off()
        panel.grid(color="0.92", linewidth=0.6)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("working set")
    panels.flat[0].set_ylabel("ns per access")
    handles = panels.flat[0].get_legend_handles_labels()
    figure.legend(*handles, loc="lower center", ncols=4, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    file = io.BytesIO()
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return file.getvalue()


def _edges(panel: object, memory: Memory) -> None:
    """Where the nearest memories are full."""
    total = 0
    for tier in memory.tiers[:-1]:
        total += tier.capacity_bytes
        panel.axvline(total, color="0.8", linewidth=0.8)  # type: ignore[attr-defined]
