"""What is written of a part, by itself: events, what streams know of slots, scratch memory, and rounds that follow."""

from collectives.builder.alike import APART, LEAST, AlikeRounds
from collectives.builder.part import Event, Written, concatenated
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Instruction, Kind, Op, Operand

SLOTS, DONE = 2, 9
SIGNAL = Instruction(Op.SIGNAL)


def empty() -> Written:
    return Written({"publish": [], "retrieve": []}, [])


def test_a_stream_awaits_an_event_once_and_learns_which_slots_are_free() -> None:
    its = empty()
    its.streams["publish"] += [SIGNAL, SIGNAL]
    its.knows_free("publish", 5)
    event = its.record("publish")
    assert event == Event("publish", 2, 5)
    assert its.awaits("retrieve", None) is its.awaits("publish", event) is None
    assert its.awaits("retrieve", event) == 0 and its.free["retrieve"] == 5
    assert its.awaits("retrieve", event) is its.awaits("retrieve", event._replace(at=1)) is None
    its.knows_free("retrieve", 3)
    assert its.free["retrieve"] == 5
    its.awaits("retrieve", Event("publish", 1, 7))  # nothing to await, but more is known
    assert its.free["retrieve"] == 7 and its.awaited == {("publish", 2): 0}


def test_the_rows_of_words_share_memory_that_grows_at_its_end_or_moves_there() -> None:
    its = empty()
    assert [its.scratch_row(100), its.scratch_row(100, row=2), its.scratch_row(64)] == [0, 4 * LINE_BYTES, 0]
    assert its.scratch_bytes == 6 * LINE_BYTES
    assert its.scratch(1) == 6 * LINE_BYTES and its.scratch(0) == 7 * LINE_BYTES
    assert its.scratch_row(100, row=2) == 4 * LINE_BYTES
    assert its.scratch_row(100, row=3) == (7 + 6) * LINE_BYTES and its.scratch_bytes == 15 * LINE_BYTES


def write(its: Written) -> None:
    """Write a round: its event is awaited, and then the stream goes on."""
    seq = its.rounds
    place = Operand(Kind.REGION, 0, seq, 64 * seq)
    its.streams["publish"].append(Instruction(Op.WRITE, nbytes=64, dst=place))
    number = its.awaits("retrieve", its.record("publish"))
    assert number is not None
    its.streams["publish"].append(Instruction(Op.SIGNAL, arg=1, value=seq))
    its.streams["retrieve"].append(Instruction(Op.AWAIT, arg=number))
    its.streams["retrieve"].append(Instruction(Op.SIGNAL, arg=DONE, value=seq))
    its.knows_free("publish", seq)
    its.rounds += 1


def test_rounds_that_follow_leave_the_part_as_if_they_had_been_written() -> None:
    whole, short, rounds = empty(), empty(), 4 * LEAST
    repeats = AlikeRounds(short, SLOTS, DONE)
    while whole.rounds < rounds:
        write(whole)
    followed = 0
    while short.rounds < rounds:
        write(short)
        followed += repeats.repeat(rounds - short.rounds)
    assert followed == rounds - SLOTS - APART
    lengths = {name: len(concatenated(items)) for name, items in short.streams.items()}
    events = {name: sum(stream == name for stream, _ in whole.awaited) for name in whole.streams}
    assert len(short.awaited) == len(whole.awaited) == rounds and short.free == whole.free
    assert lengths["retrieve"] == len(whole.streams["retrieve"])
    # RECORDs of rounds that follow are written already
    assert lengths["publish"] == len(whole.streams["publish"]) + events["publish"] - (SLOTS + APART)
    # What a stream has not followed yet it would still await, and a last "done" can be taken back.
    assert len(short.streams["publish"]) - short.follows["retrieve", "publish"] == 1
    assert short.streams["retrieve"][-1] == whole.streams["retrieve"][-1]
    assert [stream.records.tobytes() for stream in short.finish()[1]] == [
        stream.records.tobytes() for stream in whole.finish()[1]
    ]
