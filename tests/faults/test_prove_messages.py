"""Messages as they really go: envelopes and segments, one after another on a mailbox; proved, and no step too many."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.builder import AGGREGATE, LINE
from collectives.builder.recipes import with_checksums
from collectives.communicator.messages.mailboxes import RECEIVER, SENDER
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import Call, Layout, Op, Plan, Stream
from faults.prove import prove, prove_calls
from faults.verdict import Verdict

MAILBOX = Layout(
    2, 2, 2, 2 * LINE_BYTES, 1, LINE_BYTES
)  # two slots of four lines on two cards, as mailboxes_in makes it


@cache
def envelope(layout: Layout = MAILBOX) -> Plan:
    return build(recipe("send", LINE.name), layout, Call("send", LINE.name, 2, PAYLOAD_BYTES))


@cache
def segment(nbytes: int, layout: Layout = MAILBOX, *, checked: bool = False) -> Plan:
    chosen = recipe("send", AGGREGATE.name)
    chosen = with_checksums(chosen) if checked else chosen
    return build(chosen, layout, Call("send", chosen.name, 2, nbytes))


def messages(*, checked: bool = False) -> list[Plan]:
    """Small ones, one of a part of a slot, one of a whole mailbox and a rest; so often that every slot has held all."""
    part, whole, rest = (segment(nbytes, checked=checked) for nbytes in (100, 2 * MAILBOX.slot_bytes, 70))
    return [envelope(), envelope(), envelope(), part, envelope(), whole, rest, envelope(), envelope(), rest] * 2


@pytest.mark.parametrize("checked", [False, True])
def test_messages_on_a_mailbox_are_right_in_every_execution(checked: bool) -> None:
    proof = prove_calls(messages(checked=checked), obliges=True)
    assert proof.verdict is Verdict.OK, proof.reason
    for plan in (envelope(), segment(100, checked=checked), segment(2 * MAILBOX.slot_bytes, checked=checked)):
        assert prove(plan).verdict is Verdict.OK


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_on_mailboxes_of_any_length(slots: int) -> None:
    layout = replace(MAILBOX, slots=slots)
    calls = [
        envelope(layout),
        segment(slots * layout.slot_bytes, layout),
        envelope(layout),
        segment((2 * slots + 1) * layout.slot_bytes, layout),  # more than the mailbox holds
        segment(60, layout),
    ] * slots
    assert prove_calls(calls, obliges=True).verdict is Verdict.OK


def without(plan: Plan, rank: int, stream: int, at: int) -> Plan:
    part = plan.part(rank)
    streams = list(part.streams)
    kept = [i for i in range(len(streams[stream].records)) if i != at]
    streams[stream] = Stream(streams[stream].name, streams[stream].records[kept])
    return plan.with_part(replace(part, streams=tuple(streams)))


def deletions() -> Iterator[tuple[str, Plan, Plan]]:
    """Each instruction of each kind of call, left out wherever that call comes.

    But for a "done" that another one of the call follows: it only lets the peer go on sooner.
    """
    for name, plan in (("envelope", envelope()), ("segment", segment(2 * MAILBOX.slot_bytes))):
        for part in plan.parts:
            for number, stream in enumerate(part.streams):
                for at, i in enumerate(stream.instructions):
                    if i.op is Op.SIGNAL and any(
                        j.op is i.op and j.arg == i.arg for j in stream.instructions[at + 1 :]
                    ):
                        continue
                    who = ("sender", "receiver")[part.rank]
                    yield f"{name} {who}:{at} {i.op.name}", plan, without(plan, part.rank, number, at)


@pytest.mark.parametrize(("plan", "mutant"), [its[1:] for its in deletions()], ids=[its[0] for its in deletions()])
def test_no_instruction_can_be_left_out(plan: Plan, mutant: Plan) -> None:
    proof = prove_calls([mutant if call == plan else call for call in messages()], obliges=True)
    assert proof.verdict is Verdict.VIOLATION


def test_the_steps_of_a_message_are_those_of_the_chain() -> None:
    def steps(plan: Plan, rank: int) -> list[Op]:
        return [i.op for stream in plan.part(rank).streams for i in stream.instructions]

    assert steps(envelope(), SENDER) == [Op.WAIT_ALL, Op.SIGNAL_DATA, Op.SIGNAL]
    assert steps(envelope(), RECEIVER) == [Op.WAIT_DATA, Op.SIGNAL]
    assert steps(segment(100), SENDER) == [Op.WAIT_ALL, Op.WRITE, Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.SIGNAL]
    assert steps(segment(100), RECEIVER) == [Op.WAIT, Op.INVALIDATE, Op.READ, Op.SIGNAL]
