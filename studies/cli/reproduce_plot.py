"""Pictures of CCCL's reproduction: speedups over sizes, the number of chunks, and growth with hosts."""

from __future__ import annotations

from typing import Any

from cxlemu.units import format_bytes
from studies.cli.picture import COLOURS, legend, panels, powers_axis, sizes_axis
from studies.published.cccl import AVERAGES, CHUNKS, GROWTH, GROWTH_RANKS, VARIANTS, Reproduction


def _speedups(work: Reproduction) -> Any:
    title = "CCCL, 3 hosts and 6 cards: published beside the model"
    figure, every = panels((13, 6.4), 2, 4, title=title, share="xy")
    for panel, (name, published) in zip(every, AVERAGES.items(), strict=True):
        for variant, colour in zip(VARIANTS, COLOURS[2::-1], strict=True):
            its = work.speedups(name, variant)
            panel.plot(work.sizes, its, color=colour, marker="o", markersize=3, label=f"ours, {variant}")
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
    figure, [panel] = panels((7, 5), title="How many chunks")
    for name, colour in zip(AVERAGES, COLOURS, strict=True):
        its = work.by_chunks(name)
        panel.plot(CHUNKS, [its[k] for k in CHUNKS], color=colour, marker="o", label=name)
    panel.axvspan(4, 8, color="0.93", label="published: best")
    powers_axis(panel, CHUNKS)
    panel.set_xlabel("chunks a block")
    panel.set_ylabel("time by that of the best number, mean over sizes")
    legend(figure)
    return figure


def _growth(work: Reproduction) -> Any:
    figure, every = panels((12, 4.4), 1, 3, title="Growth with hosts, six cards")
    for panel, (name, published) in zip(every, GROWTH.items(), strict=True):
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
    every[0].set_ylabel("time by that of 3 hosts")
    legend(figure)
    return figure


PICTURES = {"speedups.png": _speedups, "chunks.png": _chunks, "growth.png": _growth}
