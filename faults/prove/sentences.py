"""Findings of the prover's pass in the field's words: each names the link of the chain that is missing."""

from collections.abc import Sequence

from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Layout, Plan
from cxlemu.plan.text import text
from faults.prove._pass import CONSTANTS
from faults.prove.proof import DEADLOCK, RULES, ProgramPoint

# enum detail in pass/pass.h
(
    PLAIN,
    UNWRITTEN,
    UNORDERED_WRITE,
    OVERWRITES,
    NEVER_FLUSHED,
    NEVER_FENCED,
    NOT_TOLD,
    NEVER_DROPPED,
    DROPPED_EARLY,
    DROP_UNFENCED,
    UNREAD,
    UNLANDED,
    NOT_DONE,
    UNMATCHED,
    MISFOLDED,
) = (
    CONSTANTS[name]
    for name in (
        *("PLAIN", "UNWRITTEN", "UNORDERED_WRITE", "OVERWRITES", "NEVER_FLUSHED", "NEVER_FENCED", "NOT_TOLD"),
        *(
            "NEVER_DROPPED",
            "DROPPED_EARLY",
            "DROP_UNFENCED",
            "UNREAD",
            "UNLANDED",
            "NOT_DONE",
            "UNMATCHED",
            "MISFOLDED",
        ),
    )
)

# {line}: the line, {rank}: the rank that goes wrong, {by}: the other rank that is involved; by rule and detail, or by
# detail alone.
_SENTENCES: dict[tuple[str, int] | int, str] = {
    UNWRITTEN: "rank {rank} reads {line}, which nobody has written",
    ("order", UNORDERED_WRITE): "rank {rank} reads {line} but has waited for no signal that follows {by}'s store to it",
    (
        "order",
        OVERWRITES,
    ): "rank {rank} overwrites {line}, which {by} may still be reading: no signal from there was waited for",
    ("order", PLAIN): "rank {rank} reads {line}, to which two stores are not ordered, {by}'s being one of them",
    NEVER_FLUSHED: "rank {rank} reads {line}, which {by} did not flush after its store",
    NEVER_FENCED: "rank {rank} reads {line}, which {by} did not fence before its signal",
    NOT_TOLD: "rank {rank} reads {line}, and no signal that it waited for follows the fence after {by}'s store",
    NEVER_DROPPED: "rank {rank} reads {line} but did not invalidate it after the wait",
    DROPPED_EARLY: "rank {rank} reads {line} but invalidated it before the wait, not after it",
    DROP_UNFENCED: "rank {rank} reads {line}, which it flushed but did not fence: it may still be in the cache",
    (
        "older_write",
        PLAIN,
    ): "rank {rank} reads {line}, over which an older store of {by} may still arrive: it had not landed",
    ("residue", PLAIN): "rank {rank} reads {line}, over which the line that {by} left dirty may still be written",
    (
        "stale_allocate",
        PLAIN,
    ): "rank {rank} reads {line}, which {by} stored to in part while holding an older copy of the rest",
    (
        "false_sharing",
        PLAIN,
    ): "rank {rank} reads {line}, to which {by} stores beside it in another order or at the same time",
    ("payload", UNWRITTEN): "rank {rank} takes places of arrays from {line}, where no signal of the call stored any",
    ("payload", OVERWRITES): "rank {rank} stores the next payload into {line}, which {by} may not have taken yet",
    (
        "payload",
        UNORDERED_WRITE,
    ): "rank {rank} takes the payload of {line}, into which {by} may already have stored the next one",
    (
        "local",
        UNORDERED_WRITE,
    ): "rank {rank} reads {line} while {stream} may still store to it",
    ("local", OVERWRITES): "rank {rank} stores to {line} while {stream} may still read it",
    ("local", PLAIN): "rank {rank} reads {line}, to which {stream} and another of its streams store in no order",
    UNREAD: "rank {rank} may still be reading {line} when all ranks have said that they are done with the round",
    UNLANDED: "rank {rank}'s store to {line} may not have landed when all ranks have said that they are done with it",
    ("exit", NOT_DONE): "rank {rank} does not say that it is done with a round of {line}",
    ("reuse", NOT_DONE): "rank {rank} stores to {line} without having waited until {by} was done with the round before",
    ("barrier", PLAIN): "rank {rank} may leave the barrier before {by} has come",
    ("contract", UNMATCHED): "rank {rank} compares bytes with a checksum of other bytes or of none",
    (
        "contract",
        MISFOLDED,
    ): "rank {rank} folds parts of two elements as one, or another dtype or operation than the call's",
    (DEADLOCK, PLAIN): "rank {rank} waits for what never happens",
}


# A call has returned, so the user whose array was lent may store to it.
_USER = "rank {rank} may still be reading {line} when {by}'s call has returned, whose user may store there at once"


def sentence(
    plans: Sequence[Plan], rule: str, detail: int, point: ProgramPoint, by: ProgramPoint | None, card: int, line: int
) -> str:
    """Put one finding into words that end with its instruction; card -1 means that ``line`` is a slot."""
    key = (rule, detail)
    words = _SENTENCES[key if key in _SENTENCES else detail]
    layout = plans[point.call].layout
    if rule == "order" and by is not None and not _is_instruction(plans, by):
        words = _USER
    clause = words.format(
        rank=point.rank, by=_other(by, point), line=_line(layout, rule, card, line), stream=_stream(plans, by, point)
    )
    return f"{clause} ({_instruction(plans, point)})"


def _other(by: ProgramPoint | None, point: ProgramPoint) -> str:
    if by is None:
        return "any other rank"
    return f"rank {by.rank}" if by.call == point.call else f"rank {by.rank} (call {by.call})"


def _stream(plans: Sequence[Plan], by: ProgramPoint | None, point: ProgramPoint) -> str:
    """Name the other stream of a rank that races for its own memory."""
    if by is None:
        return "another of its streams"
    if not _is_instruction(plans, by):
        return f"the user of call {by.call}"
    name = f"stream {plans[by.call].part(by.rank).streams[by.stream].name}"
    return name if by.call == point.call else f"{name} of call {by.call}"


def _line(layout: Layout, rule: str, card: int, line: int) -> str:
    if rule == "local":
        return f"line {line} of its own buffer"
    if card < 0:
        return f"slot {line}"
    point = line * LINE_BYTES
    if point >= layout.heap_offset:
        return f"line {(point - layout.heap_offset) // LINE_BYTES} of the heap on card {card}"
    if point < layout.data_offset:
        return f"doorbell line {line} of card {card}"
    slot, within = divmod(point - layout.data_offset, layout.slot_card_bytes)
    return f"line {within // LINE_BYTES} of slot {slot} on card {card}"


def _is_instruction(plans: Sequence[Plan], place: ProgramPoint) -> bool:
    """Whether a point is an instruction, and not something that the user does before or after the call."""
    streams = plans[place.call].part(place.rank).streams
    return place.stream < len(streams) and 0 <= place.at < len(streams[place.stream].records)


def _instruction(plans: Sequence[Plan], point: ProgramPoint) -> str:
    if not _is_instruction(plans, point):
        return f"call {point.call}, {'before its first' if point.at < 0 else 'after its last'} instruction"
    plan = plans[point.call]
    stream = plan.part(point.rank).streams[point.stream]
    what = text(stream.instructions[point.at], plan, point.rank)
    return f"call {point.call}, stream {stream.name}, instruction {point.at}: {what}"


def rule_name(number: int) -> str:
    """Name a rule by its number in enum rule of pass/pass.h; the number after the last one is DEADLOCK."""
    return RULES[number] if number < len(RULES) else DEADLOCK
