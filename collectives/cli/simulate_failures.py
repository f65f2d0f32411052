"""``cxlemu simulate --fail``: which ways change, and how much time that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cxlemu.cost import CostModel
from cxlemu.topology import Topology
from cxlemu.topology.failures import Failure


def failed_ways(topology: Topology, ranks: int, failures: Sequence[Failure]) -> list[str]:
    """Describe for people what each failure does to the ways between hosts and memories.

    Args:
        topology: The fabric.
        ranks: The number of ranks.
        failures: The failures.

    Returns:
        Lines of the header; none without failures.
    """
    if not failures:
        return []
    first, *others = [line for its in CostModel.of(topology, ranks, failures).changes for line in its.describe()]
    return [f"fails    {first}", *(f"         {line}" for line in others)]


def cost_of(failures: Sequence[Failure], time_us: float, unfailed_us: float, calls: int) -> str:
    """Describe for people how much longer calls took because of failures.

    Args:
        failures: The failures, one at least.
        time_us: The time of one call with them.
        unfailed_us: The time of one call without them.
        calls: How many calls follow each other.
    """
    if min(failure.at_ns for failure in failures) / 1e3 >= unfailed_us * calls:
        return f"over after {unfailed_us * calls:.1f} us, before anything failed"
    return f"without failures {unfailed_us:.1f} us: {time_us / unfailed_us - 1:+.1%}"


def document_of(
    topology: Topology, ranks: int, failures: Sequence[Failure], unfailed_us: Sequence[float]
) -> dict[str, Any]:
    """Describe failures for ``--json``.

    Args:
        topology: The fabric.
        ranks: The number of ranks.
        failures: The failures.
        unfailed_us: Each row's time without them.

    Returns:
        The keys to add to the document; none without failures.
    """
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
