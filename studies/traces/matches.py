"""Which nodes of different ranks are one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cxlemu.chakra.workload import ChakraCollective, ChakraWorkload
from cxlemu.errors import PlanFileError


@dataclass
class Match:
    """A collective whose ranks are not all ready yet.

    Attributes:
        what: The collective, as every one of its ranks calls it.
        members: The ranks of its group.
        places: For each member, the index of its step.
        missing: How many members are not ready yet.
        ready_ns: By rank, when it was ready.
    """

    what: ChakraCollective
    members: tuple[int, ...]
    places: tuple[int, ...]
    missing: int
    ready_ns: dict[int, int] = field(default_factory=dict)


def matched(workload: ChakraWorkload) -> tuple[list[Match], dict[tuple[int, int], Match]]:
    """Find which steps of different ranks are one collective.

    The k-th collective of a group on one of its ranks is the k-th on all of them.

    Returns:
        All matches, and each match again by (rank, index of the step).

    Raises:
        PlanFileError: Ranks of a group call different collectives, or not equally many.
    """
    called: dict[str, dict[int, list[int]]] = {}
    for rank, steps in enumerate(workload.ranks):
        for at, step in enumerate(steps):
            if isinstance(step.what, ChakraCollective):
                called.setdefault(step.what.group, {}).setdefault(rank, []).append(at)
    matches, match_of = [], {}
    for group, by_rank in called.items():
        members = workload.groups[group]
        counts = {rank: len(by_rank.get(rank, ())) for rank in members}
        first = members[0]
        for rank, count in counts.items():
            if count != counts[first]:
                raise PlanFileError(
                    f"ranks {first} and {rank} call {counts[first]} and {count} collectives of {_named(group)}: "
                    "all of a group must call the same ones"
                )
        for places in zip(*(by_rank[rank] for rank in members), strict=True):
            whats = [workload.ranks[rank][at].what for rank, at in zip(members, places, strict=True)]
            match = Match(_same(whats, members, places, workload), members, places, len(members))
            matches.append(match)
            match_of.update(dict.fromkeys(zip(members, places, strict=True), match))
    return matches, match_of


def _same(
    whats: Sequence[object], members: Sequence[int], places: Sequence[int], workload: ChakraWorkload
) -> ChakraCollective:
    first = whats[0]
    assert isinstance(first, ChakraCollective)
    for rank, at, what in zip(members, places, whats, strict=True):
        if what != first:
            assert isinstance(what, ChakraCollective)
            ids = workload.ranks[members[0]][places[0]].id, workload.ranks[rank][at].id
            raise PlanFileError(
                f"node {ids[0]} of rank {members[0]} is {first.name} of {first.nbytes} bytes, but node {ids[1]} of "
                f"rank {rank} is {what.name} of {what.nbytes}: all of {_named(first.group)} must call the same"
            )
    return first


def _named(group: str) -> str:
    return f"group {group!r}" if group else "all ranks"
