"""``cxlemu run --pace``: the time scale, and how long each row should have taken."""

from collections.abc import Sequence

from collectives.sweep.sweep import Case, Paced, Sweep, SweepRow
from collectives.sweep.virtual.plans import planned
from cxlemu.choices import TIME_SCALE_MAX
from cxlemu.cost import CostModel
from cxlemu.engines.pace import TimeScale, suitable_time_scale
from cxlemu.engines.virtual import VirtualCall, simulate
from cxlemu.errors import ArgumentError
from cxlemu.memory.backend import BACKENDS
from cxlemu.plan import Layout
from cxlemu.topology import Topology

LATE = 1.1  # of what the model says


def check_flags(*, pace: bool, time_scale: float | None, sweep: Sweep, backend: str) -> None:
    if time_scale is not None and not pace:
        raise ArgumentError("--time-scale is for --pace: give both, or neither")
    if not pace:
        return
    if sweep.engine != "native":
        raise ArgumentError(f"--pace needs the native engine, not {sweep.engine}")
    if BACKENDS[backend].on_devices:
        raise ArgumentError("--pace is for emulated pools: real cards have their own time")
    if sweep.integrity is not None:
        raise ArgumentError("--pace does not go with --integrity: the model has no cost for checksums")


def lateness(scale: TimeScale, rows: Sequence[SweepRow]) -> str:
    """Say how many rows took more than `LATE` times what the model says, and what helps; "" if this machine kept up."""
    late = [row for row in rows if row.model_us is not None and row.time_us > LATE * row.model_us]
    if not late:
        return ""
    longer = min(4 * scale.value, TIME_SCALE_MAX)
    return (
        f"{len(late)} of {len(rows)} took more than {LATE - 1:.0%} longer than the model says: ranks were late, on "
        f"busy cores or with too little time; --time-scale {longer:g} gives them more"
    )


def time_scale_of(given: float | None, topology: Topology, ranks: int, backend: str) -> TimeScale:
    """The time scale that was given (real ns per modelled ns), else a suitable one for this machine."""
    return suitable_time_scale(topology, ranks, backend) if given is None else TimeScale(given, "given")


def paced(scale: TimeScale, topology: Topology, layout: Layout, case: Case, sweep: Sweep) -> Paced:
    """Simulate the plan that the ranks executed on their ring."""
    plan, _ = planned(topology, case, sweep.algorithm, layout=layout)
    return Paced(scale.value, simulate(CostModel.of(topology, case.call.ranks), [VirtualCall(plan)], warm=True).time_ns)
