"""``cxlemu simulate --intervals``: from where to where each time and each ratio goes, and by which figure."""

from collections.abc import Callable, Sequence

from collectives.sweep.virtual.simulated import Simulated
from cxlemu.engines.virtual import VirtualRun
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.intervals import Interval, changed, interval, uncertain, variations

Simulation = Callable[[Topology], tuple[Simulated, VirtualRun]]  # of a call, on any machine
TIME = "time_us"


def check_ranges(topologies: Sequence[Topology]) -> None:
    """Refuse topologies without a figure that may have another value: their answers would be intervals of no width."""
    for topology in topologies:
        if not uncertain(topology):
            raise ArgumentError(
                f"--intervals: no figure of {topology.name} is assumed or has a range; "
                f"write {{value: 20, source: ..., range: [18, 22]}}"
            )


def row_intervals(
    topology: Topology, others: Sequence[Topology], ours: Simulation, theirs: Simulation
) -> dict[str, Interval]:
    """Return the interval of a call's time, and of each baseline's time by it, by the baseline's name."""

    def time_us(machines: tuple[Topology, ...]) -> float:
        return ours(machines[0])[0].time_us

    def ratio(machines: tuple[Topology, ...]) -> float:
        return theirs(machines[1])[0].time_us / ours(machines[0])[0].time_us

    return {TIME: _over((topology,), time_us)} | {figure.name: _over((topology, figure), ratio) for figure in others}


def told(intervals: dict[str, Interval]) -> list[str]:
    """Describe the intervals of a row for people."""
    lines = [f"within ranges: {intervals[TIME].describe('us')}"]
    for name, ratio in intervals.items():
        if name != TIME:
            turns = ": either may be faster within the ranges" if ratio.low < 1 < ratio.high else ""
            lines.append(f"{name} within ranges: {ratio.describe('times as long')}{turns}")
    return lines


def _over(machines: tuple[Topology, ...], answer: Callable[[tuple[Topology, ...]], float]) -> Interval:
    figures = uncertain(machines if len(machines) > 1 else machines[0])
    if len(machines) == 1:
        figures = [figure._replace(key=(0, *figure.key)) for figure in figures]
    runs = variations(figures)
    return interval(figures, [answer(changed(machines, run)) for run in runs], runs)
