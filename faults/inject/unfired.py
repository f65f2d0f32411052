"""Which faults of a script never happened, and why: a run without them says nothing of them."""

from collections.abc import Iterable, Sequence

from cxlemu.units import counted
from faults.inject.fault import FAULTS, Fault
from faults.inject.injection import FaultTally, Happened


def unfired(faults: Sequence[Fault], messages: Iterable[object]) -> dict[int, str]:
    """Find the faults that never happened, or that broke hardware which no access met afterwards."""
    reports = list(messages)
    came = {each.fault for each in reports if isinstance(each, Happened)}
    ended = {each.rank: each for each in reports if isinstance(each, FaultTally)}
    met = {number for each in ended.values() for number in each.met}
    sentences = {}
    for number, fault in enumerate(faults):
        if number not in came:
            sentences[number] = f"fault {number + 1} never happened: {_why(number, fault, ended.get(fault.rank))}"
        elif FAULTS[fault.kind].met and ended and number not in met:
            sentences[number] = f"fault {number + 1} changed nothing: no access met it afterwards"
    return {number: f"{sentence} [{faults[number]}]" for number, sentence in sentences.items()}


def unmoved(faults: Sequence[Fault], messages: Iterable[object]) -> dict[int, str]:
    """Find the moves of nature that were made where no line was there to move."""
    reports = list(messages)
    came = {each.fault for each in reports if isinstance(each, Happened)}
    missed = [each.missed.items() for each in reports if isinstance(each, FaultTally)]
    return {
        number: f"fault {number + 1} changed nothing: {why} [{faults[number]}]"
        for fault in missed
        for number, why in fault
        if number in came
    }


def _why(number: int, fault: Fault, ended: FaultTally | None) -> str:
    if ended is None:
        return f"rank {fault.rank} was gone before it"
    if number in ended.missed:
        return ended.missed[number]
    if ended.calls <= fault.when.call:
        return f"rank {fault.rank} made {counted(ended.calls, 'call')}"
    return f"rank {fault.rank} ended its call before it"
