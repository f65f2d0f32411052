"""Answers of a run as intervals: the same requests where figures have other values within their ranges.

Figures are the topology's and the accelerator's (cxlemu/topology/intervals.py); those of the fabric between an
instance's accelerators stay.
"""

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
    figures = {}
    for name, spread in (("time to first token", outcome.first_token), ("time per output token", outcome.next_token)):
        if spread is not None:
            figures[f"{name}, p50, ms"] = spread.percentiles[0] / 1e6
            figures[f"{name}, p99, ms"] = spread.percentiles[-1] / 1e6
    return figures | {
        "output, tokens/s": outcome.per_s(outcome.output_tokens),
        "input reused, %": 100 * outcome.hit_rate,
    }


def figures_of(setup: ServingSetup) -> list[Uncertain]:
    """List the figures with a range that a run's answers may depend on."""
    machines = setup.topology, setup.iterations.accelerator
    figures = [figure for figure in uncertain(machines) if figure.key[: len(UNUSED)] != UNUSED]
    if setup.place == "accelerator":
        figures = [figure for figure in figures if figure.key[0] == 1]
    if not figures:
        raise ArgumentError(f"--intervals: no figure that serving from {setup.place} depends on has a range")
    return figures


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
        machine = replace(setup, topology=topology, iterations=setup.iterations.on(accelerator))
        found.append(answers(ServingOutcome.of(simulate(machine, requests))))
    shared = [name for name in found[0] if all(name in answer for answer in found)]
    return intervals(figures, [{name: answer[name] for name in shared} for answer in found])
