"""Answers of a run as intervals: the same requests where figures have other values within their ranges.

Figures are the topology's and the accelerator's (cxlemu/topology/intervals.py); those of the fabric between an
instance's accelerators stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from cxlemu.errors import ArgumentError
from cxlemu.topology.intervals import Interval, Uncertain, changed, intervals, uncertain, variations
from studies.serving.outcome import ServingOutcome
from studies.serving.requests import ServingRequest
from studies.serving.simulation import ServingSetup, simulate

SAMPLES = 20  # runs with all figures at once
UNUSED = (0, "hosts", "memory")  # blocks in a host's memory lie on its cards


def answers(outcome: ServingOutcome) -> dict[str, float]:
    """Return a run's answers, those that it has, by their names, each with a comma and its unit at the end."""
    found = {}
    for name, spread in (("time to first token", outcome.first_token), ("time per output token", outcome.next_token)):
        if spread is not None:
            found[f"{name}, p50, ms"] = spread.percentiles[0] / 1e6
            found[f"{name}, p99, ms"] = spread.percentiles[-1] / 1e6
    return found | {
        "output, tokens/s": outcome.per_s(outcome.output_tokens),
        "input reused, %": 100 * outcome.hit_rate,
    }


def figures_of(setup: ServingSetup) -> list[Uncertain]:
    """List the figures with a range that a run's answers may depend on."""
    machines = setup.topology, setup.iterations.accelerator
    found = [its for its in uncertain(machines) if its.key[: len(UNUSED)] != UNUSED]
    if setup.place == "accelerator":
        found = [its for its in found if its.key[0] == 1]
    if not found:
        raise ArgumentError(f"--intervals: no figure that serving from {setup.place} depends on has a range")
    return found


def answer_intervals(
    setup: ServingSetup, requests: Sequence[ServingRequest], seen: Callable[[int, int], None]
) -> dict[str, Interval]:
    """Serve the requests in each variation; ``seen`` hears which one it is, and of how many."""
    figures = figures_of(setup)
    runs = variations(figures, SAMPLES)
    found = []
    for number, run in enumerate(runs, 1):
        seen(number, len(runs))
        topology, accelerator = changed((setup.topology, setup.iterations.accelerator), run)
        its = replace(setup, topology=topology, iterations=setup.iterations.on(accelerator))
        found.append(answers(ServingOutcome.of(simulate(its, requests))))
    shared = [name for name in found[0] if all(name in its for its in found)]
    return intervals(figures, [{name: its[name] for name in shared} for its in found])
