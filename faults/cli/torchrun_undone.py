"""What ``cxlemu torchrun`` was asked for and did not come to do: each is a sentence, and the exit code is 3."""

from collections.abc import Iterator, Sequence
from typing import Any

from cxlemu.errors import name_ranks
from cxlemu.memory.backend import BACKENDS
from cxlemu.plan import Op
from cxlemu.units import counted
from faults.cli.torchrun import TorchrunFlags
from faults.inject.injection import FaultTally, Happened
from faults.inject.unfired import unfired
from faults.torch.leaving_out import NEEDLESS
from faults.torch.script import TrainingScript

Event = dict[str, Any]


def undone(asked: TorchrunFlags, script: TrainingScript, events: Sequence[Event]) -> list[str]:
    """List what did not happen. A rank tells its counts when its groups end: after an error they are unknown."""
    kinds = {event["kind"] for event in events}
    silent = without_a_word(events)
    counted_all = not kinds & {"difference", "error"}
    known = counted_all and not silent
    sentences = [*_unfired(script, events), *(_left_out(script, events, asked.backend) if known else ())]
    nature = [event["moved"] for event in events if event["kind"] == "nature"]
    if asked.adversary is not None and nature and not any(nature):
        sentences.append("the adversary moved no line: so little work draws no move from that seed")
    compared = [event for event in events if event["kind"] == "compared"]
    if asked.compare and known and not any(event["calls"] + event["messages"] for event in compared):
        sentences.append("nothing was compared: no group of two ranks or more made a call")
    if silent and not compared and (asked.compare or script.leave_out):
        sentences.append(f"what was compared or left out is not known: {name_ranks(silent)} ended without a word")
    sentences += [
        f"rank {event['rank']} did not compare all messages of group {event['group']}"
        for event in compared
        if event["lost"]
    ]
    if asked.digests and "digests" not in kinds:
        steps = counted(asked.digests, "step")
        sentences.append(
            f"no replicas were compared: no optimizer took {steps}, or no model is a DistributedDataParallel"
        )
    if asked.pace and not any(event["kind"] == "steps" and any(s["calls"] for s in event["steps"]) for event in events):
        sentences.append("--pace: no step of an optimizer made a call whose time is known")
    made = [event["calls"] for event in events if event["kind"] == "made"]
    if not kinds & {"group", "error"} and not sentences:
        sentences.append("nothing ran over the pool: the script made no process group")
    elif counted_all and made and not any(made) and not sentences:
        sentences.append("nothing ran over the pool: the script called no collective and sent nothing")
    return sentences


def without_a_word(events: Sequence[Event]) -> list[int]:
    """List the ranks that made a group and then ended without a report, as by a signal or by `os._exit`."""
    told = {event["rank"] for event in events if event["kind"] in ("end", "error", "stopped")}
    return sorted({event["rank"] for event in events if event["kind"] == "group"} - told)


def _unfired(script: TrainingScript, events: Sequence[Event]) -> Iterator[str]:
    for group in dict.fromkeys(fault.group for fault in script.faults):
        group_events = [event for event in events if event.get("group") == group]
        messages: list[Happened | FaultTally] = [
            Happened(event["number"], 0) for event in group_events if event["kind"] == "fault"
        ]
        for event in group_events:
            if event["kind"] == "ended":
                missed = {int(number): why for number, why in event["missed"].items()}
                messages.append(FaultTally(event["pool_rank"], event["calls"], missed, tuple(event["met"])))
        for number, sentence in unfired(script.faults, messages).items():
            if script.faults[number].group == group:
                yield (
                    sentence if group_events else f"fault {number + 1} never happened: the script made no group {group}"
                )


def _left_out(script: TrainingScript, events: Sequence[Event], backend: str) -> Iterator[str]:
    for left in script.leave_out:
        left_out = [
            event
            for event in events
            if (event["kind"], event["rank"], event.get("instruction")) == ("left out", left.rank, left.instruction)
        ]
        count = sum(event["count"] for event in left_out)
        if not count:
            yield f"nothing was left out: no call of rank {left.rank} has {left.instruction}"
        elif not any(event["mattered"] for event in left_out):
            which = f"{count} {left.instruction} left out on rank {left.rank}"
            coherent = None if BACKENDS[backend].emulates_caches else f"the memory of {backend} is coherent"
            yield f"{which}, none of which could matter: {coherent or NEEDLESS[Op[left.instruction]]}"
