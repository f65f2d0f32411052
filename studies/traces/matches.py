"""Which nodes of different ranks are one collective, or the two ends of one message."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cxlemu.chakra.workload import ChakraCollective, ChakraMessage, ChakraWorkload
from cxlemu.errors import PlanFileError


@dataclass
class Match:
    """A collective whose ranks are not all ready yet."""

    what: ChakraCollective  # the collective, as every one of its ranks calls it
    members: tuple[int, ...]  # the ranks of its group
    places: tuple[int, ...]  # for each member, the index of its step
    missing: int  # how many members are not ready yet
    ready_ns: dict[int, int] = field(default_factory=dict)  # by rank, when it was ready


@dataclass
class TracedMessage:
    what: ChakraMessage  # the message, as both its ranks name it
    places: tuple[int, int]  # the index of its step on the rank that sends it, and on the one that receives it
    begin_ns: int | None = None  # when its sender began to send it; None before
    sent_ns: int = 0  # when its sender had sent it
    arrives_ns: int = 0  # when all of it can be with its receiver, if that is ready by then
    variant: str = ""  # the variant of `send` that it took
    ready_ns: int | None = None  # when its receiver was ready; None before


def matched(workload: ChakraWorkload) -> tuple[list[Match], dict[tuple[int, int], Match]]:
    """Find which steps of different ranks are one collective: all of them, and each by (rank, index of the step).

    The k-th collective of a group on one of its ranks is the k-th on all of them.
    """
    called: dict[str, dict[int, list[int]]] = {}
    for rank, steps in enumerate(workload.ranks):
        for index, step in enumerate(steps):
            if isinstance(step.what, ChakraCollective):
                called.setdefault(step.what.group, {}).setdefault(rank, []).append(index)
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
            whats = [workload.ranks[rank][index].what for rank, index in zip(members, places, strict=True)]
            match = Match(_same(whats, members, places, workload), members, places, len(members))
            matches.append(match)
            match_of.update(dict.fromkeys(zip(members, places, strict=True), match))
    return matches, match_of


def messages(workload: ChakraWorkload) -> dict[tuple[int, int], TracedMessage]:
    """Find which steps of two ranks are one message: each twice, by (rank, index of the step).

    The k-th message that a rank sends to another with a tag, in a group, is the k-th that this one receives.
    """
    matches: dict[tuple[int, int], TracedMessage] = {}
    ends: dict[tuple[int, int, int, str], tuple[list[int], list[int]]] = {}
    for rank, steps in enumerate(workload.ranks):
        for index, step in enumerate(steps):
            if isinstance(message := step.what, ChakraMessage):
                ends.setdefault((message.source, message.target, message.tag, message.group), ([], []))[
                    message.target == rank
                ].append(index)
    for (source, target, tag, _), (sent, received) in ends.items():
        of = f"from rank {source} to rank {target} with tag {tag}"
        if len(sent) != len(received):
            raise PlanFileError(f"{len(sent)} messages {of} are sent, but {len(received)} received")
        for k, places in enumerate(zip(sent, received, strict=True)):
            one, other = (workload.ranks[rank][index] for rank, index in zip((source, target), places, strict=True))
            assert isinstance(one.what, ChakraMessage) and isinstance(other.what, ChakraMessage)
            if one.what != other.what:
                raise PlanFileError(
                    f"message {k} {of} has {one.what.nbytes} bytes at node {one.id}, which sends it, but "
                    f"{other.what.nbytes} at node {other.id}, which receives it"
                )
            matches[source, places[0]] = matches[target, places[1]] = TracedMessage(one.what, places)
    return matches


def _same(
    whats: Sequence[object], members: Sequence[int], places: Sequence[int], workload: ChakraWorkload
) -> ChakraCollective:
    first = whats[0]
    assert isinstance(first, ChakraCollective)
    for rank, index, what in zip(members, places, whats, strict=True):
        if what != first:
            assert isinstance(what, ChakraCollective)
            ids = workload.ranks[members[0]][places[0]].id, workload.ranks[rank][index].id
            raise PlanFileError(
                f"node {ids[0]} of rank {members[0]} is {first.name} of {first.nbytes} bytes, but node {ids[1]} of "
                f"rank {rank} is {what.name} of {what.nbytes}: all of {_named(first.group)} must call the same"
            )
    return first


def _named(group: str) -> str:
    return f"group {group!r}" if group else "all ranks"
