"""``cxlemu simulate --fail``: which ways change, and how much time that costs."""

from collections.abc import Sequence
from typing import Any

from cxlemu.cost import CostModel
from cxlemu.topology import Topology
from cxlemu.topology.failures import Failure


def failed_ways(topology: Topology, ranks: int, failures: Sequence[Failure]) -> list[str]:
    """Describe for people what each failure does to the routes between hosts and memories; [] without failures."""
    if not failures:
        return []
    first, *others = [line for change in CostModel.of(topology, ranks, failures).changes for line in change.describe()]
    return [f"fails    {first}", *(f"         {line}" for line in others)]


def cost_of(failures: Sequence[Failure], time_us: float, unfailed_us: float, calls: int) -> str:
    """Describe for people how much longer calls took because of failures."""
    if too_late(failures, unfailed_us * calls):
        return f"over after {unfailed_us * calls:.1f} us, before anything failed"
    return f"without failures {unfailed_us:.1f} us: {time_us / unfailed_us - 1:+.1%}"


def too_late(failures: Sequence[Failure], time_us: float) -> bool:
    """Whether all is over before anything fails."""
    return min(failure.at_ns for failure in failures) / 1e3 >= time_us


def document_of(
    topology: Topology, ranks: int, failures: Sequence[Failure], unfailed_us: Sequence[float]
) -> dict[str, Any]:
    """Describe failures for ``--json``; {} without failures."""
    if not failures:
        return {}
    changes = [
        {
            "at_us": change.at_ns / 1e3,
            "failures": [f"{failure.kind}:{failure.name}" for failure in change.failures],
            "ways": change.ways,
            "rerouted": change.rerouted,
            "ended": [{"host": host, "card": card} for host, card in change.ended],
        }
        for change in CostModel.of(topology, ranks, failures).changes
    ]
    return {"failures": changes, "unfailed_time_us": list(unfailed_us)}
