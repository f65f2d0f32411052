"""Pictures of a reproduction: speedups over sizes, the number of chunks, and growth with hosts."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from cxlemu.units import format_bytes
from studies.cli.bench_plot import pyplot
from studies.published.cccl import AVERAGES, CHUNKS, GROWTH, GROWTH_RANKS, VARIANTS, Reproduction

PICTURES = ("speedups.png", "chunks.png", "growth.png")
# Colours of Okabe and Ito; what is published is black.
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#f0e442", "0.4")


def pictures(work: Reproduction) -> dict[str, bytes]:
    """PNG files by name. Raises ArgumentError without matplotlib."""
    plt = pyplot()
    draw = (_speedups, _chunks, _growth)
    return {name: png(plt, one(plt, work)) for name, one in zip(PICTURES, draw, strict=True)}


def png(plt: Any, figure: Any) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=130, metadata={"Software": None})
    plt.close(figure)
    return file.getvalue()


def _speedups(plt: Any, work: Reproduction) -> Any:
    figure, panels = plt.subplots(2, 4, figsize=(13, 6.4), sharex=True, sharey=True)
    for panel, (name, published) in zip(panels.flat, AVERAGES.items(), strict=True):
        for variant, colour in zip(VARIANTS, COLOURS[2::-1], strict=True):
            its = work.speedups(name, variant)
            panel.plot(work.sizes, its, color=colour, marker="o", markersize=3, label=f"ours, {variant}")
        mean = sum(work.speedups(name)) / len(work.sizes)
        panel.axhline(mean, color=COLOURS[0], linestyle=":", label="ours, average of all")
        panel.axhline(published, color="black", linestyle="--", label="published average of all")
        panel.axhline(1, color="0.7", linewidth=0.8)
        panel.set_title(f"{name}: published {published:.2f}, ours {mean:.2f}", fontsize=10)
        _sizes_axis(panel, work.sizes)
    for row in panels:
        row[0].set_ylabel("speedup over NCCL on InfiniBand")
    return _finish(figure, panels.flat[0], "CCCL, 3 hosts and 6 cards: published beside the model")


def _chunks(plt: Any, work: Reproduction) -> Any:
    figure, panel = plt.subplots(figsize=(7, 5))
    for name, colour in zip(AVERAGES, COLOURS, strict=True):
        its = work.by_chunks(name)
        panel.plot(CHUNKS, [its[k] for k in CHUNKS], color=colour, marker="o", label=name)
    panel.axvspan(4, 8, color="0.93", label="published: best")
    panel.set_xscale("log", base=2)
    panel.set_xticks(CHUNKS, [str(k) for k in CHUNKS])
    panel.minorticks_off()
    panel.set_xlabel("chunks a block")
    panel.set_ylabel("time by that of the best number, mean over sizes")
    return _finish(figure, panel, "How many chunks")


def _growth(plt: Any, work: Reproduction) -> Any:
    figure, panels = plt.subplots(1, 3, figsize=(12, 4.4))
    for panel, (name, published) in zip(panels, GROWTH.items(), strict=True):
        for size, colour in zip(work.sizes[:: max(1, len(work.sizes) // 3)], COLOURS, strict=False):
            at = work.sizes.index(size)
            its = [work.growth(name, ranks)[at] for ranks in GROWTH_RANKS]
            panel.plot(GROWTH_RANKS, its, color=colour, marker="o", label=f"ours, {format_bytes(size)}")
        low, high = ([1.0, *(pair[end] for pair in published)] for end in (0, 1))
        panel.fill_between(GROWTH_RANKS, low, high, color="0.8")
        panel.plot(GROWTH_RANKS, low, color="black", linestyle="--", label="published")
        panel.plot(GROWTH_RANKS, high, color="black", linestyle="--")
        panel.set_xticks(GROWTH_RANKS)
        panel.set_xlabel("hosts")
        panel.set_title(name, fontsize=10)
    panels[0].set_ylabel("time by that of 3 hosts")
    return _finish(figure, panels[0], "Growth with hosts, six cards")


def _sizes_axis(panel: Any, sizes: Sequence[int]) -> None:
    panel.set_xscale("log", base=2)
    ticks = sizes[::4]
    panel.set_xticks(ticks, [format_bytes(size) for size in ticks], fontsize=8)
    panel.minorticks_off()
    panel.grid(color="0.92", linewidth=0.6)


def _finish(figure: Any, panel: Any, title: str) -> Any:
    figure.suptitle(title, fontsize=11)
    figure.legend(*panel.get_legend_handles_labels(), loc="lower center", ncols=5, frameon=False, fontsize=8)
    figure.tight_layout(rect=(0, 0.09, 1, 1))
    return figure
