"""The picture of serving over time: times to the first token, what was reused, and what the store's fabric carried.

Each panel has a line for each run. Time is cut into equal parts; a request counts in the part in which it came.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cxlemu.units import counted
from studies.cli.picture import COLOURS, legend, panels
from studies.serving.instance import Served
from studies.serving.outcome import ServingOutcome

PARTS = 40
LINES = ("-", "--", "-.", ":")


def draw(outcomes: Sequence[ServingOutcome]) -> Any:
    from matplotlib.ticker import LogFormatter

    title = f"Serving {outcomes[0].run.setup.iterations.model.name}: each place of the store over time"
    figure, (first, reused, moved) = panels((9, 7.5), 3, 1, title=title, share="x")
    many = len({outcome.run.setup.topology.host_count for outcome in outcomes}) > 1
    end_s = max(outcome.run.now_ns for outcome in outcomes) / 1e9 or 1e-9
    edges = np.linspace(0, end_s, PARTS + 1)
    for number, outcome in enumerate(outcomes):
        hosts = f", {counted(outcome.run.setup.topology.host_count, 'host')}" if many else ""
        style: dict[str, Any] = {"color": COLOURS[number % len(COLOURS)], "label": outcome.run.setup.place + hosts}
        # a line that covers another one is thinner and has gaps
        style |= {"linewidth": max(3 - 0.6 * number, 1.2), "linestyle": LINES[number % len(LINES)]}
        first.plot(
            edges[:-1], _binned(outcome.done, edges, lambda one: (one.at_once_ns or 0) / 1e6, np.median), **style
        )
        reused.plot(edges[:-1], _binned(outcome.done, edges, _reused, np.mean), **style)
        carried = outcome.run.movement.carried
        at_s = [one.end_ns / 1e9 for one in carried]
        nbytes, _ = np.histogram(at_s, edges, weights=[one.nbytes for one in carried])
        rates = np.where(edges[:-1] <= outcome.run.now_ns / 1e9, nbytes / (edges[1] - edges[0]) / 1e9, np.nan)
        moved.plot(edges[:-1], rates, **style)
        for incident in outcome.run.happened:
            for panel in (first, reused, moved):
                panel.axvline(incident.at_ns / 1e9, color="0.6", linewidth=0.8, linestyle=":")
    first.set_yscale("log")
    for which in (first.yaxis.set_major_formatter, first.yaxis.set_minor_formatter):
        which(LogFormatter(minor_thresholds=(2, 0.5)))  # 60, not 6 x 10^1
    for panel, label in ((first, "first token, ms, median"), (reused, "input reused, %"), (moved, "store, GB/s")):
        panel.set_ylabel(label)
        panel.grid(color="0.92", linewidth=0.6)
        panel.set_axisbelow(True)
    moved.set_xlabel("time, s")
    legend(figure)
    return figure


def _reused(reply: Served) -> float:
    return 100 * (reply.from_accelerator + reply.from_store) / reply.request.input_tokens


def _binned(
    done: Sequence[Served], edges: Any, value: Callable[[Served], float], summed_up: Callable[[Any], Any]
) -> list[float]:
    """Sum up the requests of each part of the time; none came in a part: a gap in the line."""
    bins = np.clip(
        np.searchsorted(edges, [served.request.arrival_ns / 1e9 for served in done], side="right") - 1, 0, PARTS - 1
    )
    values = np.array([value(served) for served in done], float)
    return [float(summed_up(values[bins == part])) if (bins == part).any() else float("nan") for part in range(PARTS)]
