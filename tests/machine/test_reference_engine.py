"""What each instruction means, one at a time, on parts made by hand: the definition that other engines are held to."""

from collections.abc import Sequence

import numpy as np
import pytest

import tests.helpers.by_hand as by_hand
from cxlemu.engines.reference import Runner, run
from cxlemu.engines.streams import Binding, Blocked, run_together
from cxlemu.errors import ArgumentError, DeadlineError, MismatchError
from cxlemu.memory import HostCache, MemorySpec
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import (
    DTYPE_NAMES,
    Buffer,
    Call,
    DoorbellGroup,
    Flag,
    Frame,
    Instruction,
    Kernel,
    Layout,
    Op,
    Operand,
    RankPart,
    RedOp,
    Region,
)
from cxlemu.plan.layout import TAG_BITS, doorbell_word
from tests.helpers.by_hand import FENCE, pool

LAYOUT = Layout(ranks=2, cards=2, slots=2, slot_card_bytes=512, doorbells_per_rank=2, interleave_bytes=64)
REGION = Region(first_card=0, cards=2, granularity_bytes=64, base=0, start=0, nbytes=1024)
FRAME = Frame(1, (REGION,), (DoorbellGroup(LAYOUT.done(0), 2, 1),), (Kernel("gemm_f32", (2, 2, 3)),))
BASE, EPOCH = 4096, 5
CALL = Call("all_gather", "by hand", 2, 100)
BUFFERS = ("a", "b", "c", "d")
BUFFER_BYTES = 256
F32 = DTYPE_NAMES.index("f32")


def local(name: str, offset: int = 0) -> Operand:
    return by_hand.local(BUFFERS.index(name), offset)


class World:
    """Two ranks, each on its own host; every buffer of rank r holds other bytes."""

    def __init__(self, kind: str = "emulated") -> None:
        self.cards = [np.zeros(BASE + LAYOUT.extent_bytes, np.uint8) for _ in range(2)]
        spec = MemorySpec(kind)
        self.memories = [
            spec.open(self.cards, host_cache=HostCache.private(self.cards), host=rank, rank=rank) for rank in (0, 1)
        ]
        self.buffers = [
            [np.arange(BUFFER_BYTES, dtype=np.uint8) + 16 * rank + 50 * k for k in range(len(BUFFERS))]
            for rank in (0, 1)
        ]

    def runner(self, rank: int, *streams: Sequence[Instruction], call: Call = CALL, epoch: int = EPOCH) -> Runner:
        part = RankPart(rank, tuple(Buffer(name, BUFFER_BYTES) for name in BUFFERS), by_hand.streams(streams), events=4)
        binding = Binding(LAYOUT, BASE, epoch, call.tag())
        return Runner(call, FRAME, part, binding, memory=self.memories[rank], buffers=self.buffers[rank])

    def does(self, rank: int, *instructions: Instruction) -> None:
        runner = self.runner(rank, instructions)
        for _ in instructions:
            assert runner.step(0) is None

    def buffer(self, rank: int, name: str) -> Bytes:
        return self.buffers[rank][BUFFERS.index(name)]

    def in_pool(self, offset: int, nbytes: int, epoch: int = EPOCH) -> Bytes:
        """What the cards hold, byte by byte, whatever the caches hold."""
        at = BASE + LAYOUT.slot_offset(epoch)
        places = [REGION.map.locate(offset + k) for k in range(nbytes)]
        return np.array([self.cards[place.card][at + place.offset] for place in places], np.uint8)


WRITE = Instruction(Op.WRITE, dst=pool(30), a=local("a", 7), nbytes=150)
FLUSH = Instruction(Op.FLUSH, a=pool(30), nbytes=150)
INVALIDATE = Instruction(Op.INVALIDATE, a=pool(30), nbytes=150)
READ = Instruction(Op.READ, dst=local("b", 3), a=pool(30), nbytes=150)
DONE_0, DONE_1 = LAYOUT.done(0), LAYOUT.done(1)
BELL = LAYOUT.published(0, 1)


def test_write_stays_in_the_cache_until_it_is_flushed_and_fenced() -> None:
    world = World()
    data = world.buffer(0, "a")[7:157].copy()
    world.does(0, WRITE)
    assert not world.in_pool(30, 150).any()
    world.does(0, FLUSH)
    assert not world.in_pool(30, 150).any()
    world.does(0, FENCE)
    assert (world.in_pool(30, 150) == data).all()
    assert not world.in_pool(0, 30).any() and not world.in_pool(180, 12).any()


def test_write_nt_is_in_the_pool_after_a_fence_without_a_flush() -> None:
    world = World()
    world.does(0, WRITE._replace(op=Op.WRITE_NT))
    assert not world.in_pool(30, 150).any()
    world.does(0, FENCE)
    assert (world.in_pool(30, 150) == world.buffer(0, "a")[7:157]).all()


def test_read_finds_what_the_cache_held_until_it_is_invalidated() -> None:
    world = World()
    world.does(1, READ)
    assert not world.buffer(1, "b")[3:153].any()
    world.does(0, WRITE, FLUSH, FENCE)
    world.does(1, READ)
    assert not world.buffer(1, "b")[3:153].any()
    world.does(1, INVALIDATE, READ)
    assert (world.buffer(1, "b")[3:153] == world.buffer(0, "a")[7:157]).all()


def test_read_has_a_second_destination_in_the_pool() -> None:
    world = World("shm")
    world.does(0, WRITE, READ._replace(dst2=pool(400)))
    assert (world.in_pool(400, 150) == world.buffer(0, "b")[3:153]).all()
    assert (world.in_pool(400, 150) == world.buffer(0, "a")[7:157]).all()


def test_the_sequence_number_chooses_the_slot() -> None:
    world = World("shm")
    world.does(0, WRITE._replace(dst=pool(30, seq=1)))
    assert not world.in_pool(30, 150, EPOCH).any()
    assert (world.in_pool(30, 150, EPOCH + 1) == world.buffer(0, "a")[7:157]).all()
    assert (world.in_pool(30, 150, EPOCH + 1 + LAYOUT.slots) == world.buffer(0, "a")[7:157]).all()


def test_copy() -> None:
    world = World()
    world.does(0, Instruction(Op.COPY, dst=local("b", 10), a=local("a", 20), nbytes=30))
    assert world.buffer(0, "b")[10:40].tolist() == list(range(20, 50))
    assert world.buffer(0, "b")[[9, 40]].tolist() == [59, 90]


def test_reduce_folds_buffers_and_regions_into_a_buffer_and_a_slot() -> None:
    world = World("shm")
    a, b, c = (np.arange(4, dtype=np.float32) * k for k in (1, 10, 100))
    for name, values in (("a", a), ("b", b), ("c", c)):
        world.buffer(0, name)[:16] = values.view(np.uint8)
    world.does(
        0,
        Instruction(Op.WRITE, dst=pool(64), a=local("b"), nbytes=16),
        Instruction(
            Op.REDUCE, dtype=F32, redop=RedOp.SUM, nbytes=16, dst=local("d"), dst2=pool(128), a=local("a"), b=pool(64),
            c=local("c"),
        ),
    )  # fmt: skip
    assert world.buffer(0, "d")[:16].view(np.float32).tolist() == [0, 111, 222, 333]
    assert world.in_pool(128, 16).view(np.float32).tolist() == [0, 111, 222, 333]


def test_reduce_local_divides_where_the_flag_says_so() -> None:
    world = World()
    reduce = Instruction(
        Op.REDUCE_LOCAL, dtype=DTYPE_NAMES.index("u8"), redop=RedOp.AVG, nbytes=4, dst=local("a"), a=local("a"),
        b=local("a", 2), arg=3,
    )  # fmt: skip
    world.does(0, reduce)
    assert world.buffer(0, "a")[:6].tolist() == [2, 4, 6, 8, 4, 5]  # may be one of its own operands
    world.does(0, reduce._replace(flags=Flag.DIVIDE))
    assert world.buffer(0, "a")[:6].tolist() == [8 // 3, 12 // 3, 10 // 3, 13 // 3, 4, 5]


def test_compute_runs_the_kernel_of_the_frame() -> None:
    world = World()
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(6, dtype=np.float32).reshape(3, 2) - 2
    world.buffer(0, "a")[8:32] = a.view(np.uint8).ravel()
    world.buffer(0, "b")[:24] = b.view(np.uint8).ravel()
    world.does(0, Instruction(Op.COMPUTE, dst=local("d", 4), a=local("a", 8), b=local("b"), nbytes=16))
    got = world.buffer(0, "d")[4:20].copy().view(np.float32).reshape(2, 2)
    assert (got == a @ b).all()


def test_signal_shows_epoch_and_tag_and_fences_nothing() -> None:
    world = World()
    world.does(0, WRITE, FLUSH, Instruction(Op.SIGNAL, arg=BELL, value=1))
    card, offset = LAYOUT.doorbell_address(BELL, EPOCH + 1)
    word = int(world.cards[card][BASE + offset :][:8].view("<u8")[0])
    assert word == doorbell_word(EPOCH + 1, CALL.tag()) and word >> TAG_BITS == EPOCH + 1
    assert not world.in_pool(30, 150).any()


def test_wait_blocks_until_the_doorbell_shows_the_epoch_or_a_later_one() -> None:
    world = World()
    waiting = world.runner(1, [Instruction(Op.WAIT, arg=DONE_0, value=0)])
    for shown in (-2, -1):
        world.does(0, Instruction(Op.SIGNAL, arg=DONE_0, value=shown))
        blocked = waiting.step(0)
        assert (blocked.doorbell, blocked.owner) == (DONE_0, 0)
        assert (blocked.wanted, blocked.shows) == (EPOCH, EPOCH + shown)
    world.does(0, Instruction(Op.SIGNAL, arg=DONE_0, value=3))
    assert waiting.step(0) is None and waiting.pending() == []


def test_wait_all_blocks_on_any_of_its_group() -> None:
    world = World()
    waiting = world.runner(1, [Instruction(Op.WAIT_ALL, arg=0, value=0)])
    for doorbell in (DONE_0, DONE_1):
        blocked = waiting.step(0)
        assert blocked is not None and blocked.doorbell == doorbell
        world.does(LAYOUT.owner(doorbell), Instruction(Op.SIGNAL, arg=doorbell))
    assert waiting.step(0) is None


def test_wait_all_for_rounds_before_the_first_is_no_wait() -> None:
    world = World()
    wait = Instruction(Op.WAIT_ALL, arg=0, value=-LAYOUT.slots)
    assert world.runner(0, [wait], epoch=LAYOUT.slots).step(0) is None
    assert world.runner(0, [wait], epoch=LAYOUT.slots + 1).step(0) is not None


@pytest.mark.parametrize("nbytes", [1, 8, 56])
def test_a_payload_travels_in_the_line_of_its_doorbell(nbytes: int) -> None:
    world = World()
    waiting = world.runner(1, [Instruction(Op.WAIT_DATA, arg=BELL, dst=local("b", 5), nbytes=nbytes)])
    assert waiting.step(0) is not None
    world.does(0, Instruction(Op.SIGNAL_DATA, arg=BELL, a=local("c", 9), nbytes=nbytes))
    assert waiting.step(0) is None
    assert (world.buffer(1, "b")[5 : 5 + nbytes] == world.buffer(0, "c")[9 : 9 + nbytes]).all()
    assert world.buffer(1, "b")[5 + nbytes] == (50 + 16 + 5 + nbytes) % 256


def test_await_follows_the_record_of_another_stream() -> None:
    world = World()
    record, copy = Instruction(Op.RECORD, arg=2), Instruction(Op.COPY, dst=local("b"), a=local("a"), nbytes=1)
    runner = world.runner(0, [copy, record], [Instruction(Op.AWAIT, arg=2), copy])
    blocked = runner.step(1)
    assert blocked is not None and runner.describe(blocked) == "its own event 2 (s1:0 AWAIT)"
    assert runner.step(0) is None and runner.step(1) is not None
    assert runner.step(0) is None and runner.step(1) is None
    assert runner.pending() == [1]


def test_a_rank_in_another_call_is_noticed() -> None:
    world = World()
    other = Call("broadcast", "by hand", 2, 100)
    assert world.runner(0, [Instruction(Op.SIGNAL, arg=BELL)], call=other).step(0) is None
    with pytest.raises(MismatchError, match=r"rank 1 is in \[all_gather .* rank 0 rang published\[0\]\[1\]"):
        world.runner(1, [Instruction(Op.WAIT, arg=BELL)]).step(0)


def test_done_doorbells_outlive_calls_and_are_not_compared() -> None:
    world = World()
    other = Call("broadcast", "by hand", 2, 100)
    assert world.runner(0, [Instruction(Op.SIGNAL, arg=DONE_0)], call=other).step(0) is None
    assert world.runner(1, [Instruction(Op.WAIT, arg=DONE_0)]).step(0) is None


def test_a_deadline_names_rank_doorbell_and_what_it_shows() -> None:
    world = World()
    world.does(0, Instruction(Op.SIGNAL, arg=DONE_0, value=-3))
    with pytest.raises(DeadlineError) as raised:
        run(world.runner(1, [Instruction(Op.WAIT, arg=DONE_0)]), deadline_s=0.01)
    message = str(raised.value)
    assert message.startswith("rank 1 waited ")
    assert "[all_gather by hand 100 B u8]" in message
    assert "rank 0 to ring done[0] with epoch 5 (it shows 2; s0:0 WAIT)" in message


def test_a_watch_may_end_a_wait() -> None:
    def watch(runner: Runner, blocked: list[Blocked], waited_s: float) -> None:
        raise MismatchError(f"{len(blocked)} streams wait")

    wait = [Instruction(Op.WAIT, arg=BELL)]
    with pytest.raises(MismatchError, match="2 streams wait"):
        run(World().runner(1, wait, wait), deadline_s=5, watch=watch)


def test_run_takes_the_streams_in_turn() -> None:
    """Each stream waits once for the other."""
    world = World()
    streams = [
        [Instruction(Op.AWAIT, arg=0), Instruction(Op.RECORD, arg=1)],
        [Instruction(Op.RECORD, arg=0), Instruction(Op.AWAIT, arg=1), Instruction(Op.RECORD, arg=2)],
    ]
    runner = world.runner(0, *streams)
    run(runner, deadline_s=5)
    assert runner.pending() == [] and runner.events == {0, 1, 2}


def test_a_deadlock_of_all_ranks_is_seen_at_once() -> None:
    world = World()
    wait, ring = (Instruction(op, arg=DONE_0) for op in (Op.WAIT, Op.SIGNAL))
    ranks = [world.runner(0, [Instruction(Op.WAIT, arg=DONE_1), ring]), world.runner(1, [wait])]
    with pytest.raises(DeadlineError) as raised:
        run_together(ranks, lambda choices: choices[-1])
    message = str(raised.value)
    assert message.startswith("deadlock: ")
    assert "rank 0 waits for rank 1 to ring done[1] with epoch 5 (it shows 0; s0:0 WAIT)" in message
    assert "rank 1 waits for rank 0 to ring done[0]" in message


@pytest.mark.parametrize("which", [0, -1])
def test_the_schedule_decides_what_a_race_reads(which: int) -> None:
    """The first rank reads before or after the other writes."""
    world = World("shm")
    run_together([world.runner(0, [READ]), world.runner(1, [WRITE])], lambda choices: choices[which])
    assert world.buffer(0, "b")[3:153].any() == (which == -1)


def test_buffers_that_are_too_small_are_refused() -> None:
    world = World()
    world.buffers[0][1] = np.zeros(10, np.uint8)
    with pytest.raises(ArgumentError, match="buffer b has 10 bytes, the plan needs 256"):
        world.runner(0, [])
