"""An all_reduce of thousands of ranks in two levels, as three calls of groups."""

from dataclasses import replace

from collectives.defaults import AUTO
from collectives.sweep.sweep import Case
from collectives.sweep.virtual.plans import planned
from cxlemu.engines.virtual import VirtualCall
from cxlemu.errors import ArgumentError
from cxlemu.plan import DTYPES, Call
from cxlemu.topology import Topology

SPLIT = "split"  # its name


def split_calls(topology: Topology, case: Case, group: int) -> list[VirtualCall]:
    """Split an all-reduce into two levels, as ``comm.split`` and three calls do.

    The calls are a reduce-scatter in groups of consecutive ranks, an all-reduce of each slice across the groups, and an
    all-gather in the groups, all of them through the pool. Plans are the same for all groups and made once, so that
    memory grows with ranks, not with their square.
    """
    call, ranks = case.call, case.call.ranks
    itemsize = DTYPES[call.dtype].itemsize
    slice_bytes = -(-call.nbytes // (group * itemsize)) * itemsize
    steps = {
        "reduce_scatter": replace(call, collective="reduce_scatter", ranks=group, nbytes=slice_bytes, algorithm=AUTO),
        "all_reduce": replace(call, ranks=ranks // group, nbytes=slice_bytes, algorithm=AUTO),
        "all_gather": replace(
            call, collective="all_gather", ranks=group, nbytes=slice_bytes, redop="none", algorithm=AUTO
        ),
    }
    inside = [tuple(range(first, first + group)) for first in range(0, ranks, group)]
    across = [tuple(range(member, ranks, group)) for member in range(group)]
    calls = []
    for name, step in steps.items():
        plan, _ = planned(topology, Case(step, in_place=False), levels=False)  # a group's ranks may be far apart
        calls += [VirtualCall(plan, members) for members in (across if name == "all_reduce" else inside)]
    return calls


def check_split(topology: Topology, call: Call, group: int, space: str | None, *, check: bool) -> None:
    """Check that a call can be split into groups of so many ranks."""
    if call.collective != "all_reduce" or call.algorithm not in (AUTO, SPLIT):
        raise ArgumentError(f"--split is for all_reduce without a variant, not for {call.collective} {call.algorithm}")
    if space is not None or topology.pool_space.owned:
        raise ArgumentError("--split is for a pool: leave out --space, and memory of hosts or ranks")
    if check:
        raise ArgumentError("--check does not go with --split: its calls are of communicators split off")
    if group < 2 or call.ranks % group or call.ranks // group < 2:
        fits = divisor(call.ranks)
        how = f"give a divisor, such as {fits}" if 1 < fits < call.ranks else "no number of ranks fits"
        raise ArgumentError(f"{call.ranks} ranks do not divide into several groups of {group}: {how}")


def divisor(ranks: int) -> int:
    """The group size that splits the ranks nearest to a square; ``ranks`` where none splits them."""
    return min((d for d in range(2, ranks) if ranks % d == 0), key=lambda d: abs(d - ranks // d), default=ranks)
