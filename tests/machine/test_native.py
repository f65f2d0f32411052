"""The native engine is held to the reference engine: the same results, the same bytes in the pool, the same refusals.

Compared bit for bit, so calls of which a NaN comes out are left to test_native_fold.py.
"""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe
from collectives.builder.recipes import with_checksums
from cxlemu.choices import DTYPE_KINDS
from cxlemu.engines import Engine, engine_for
from cxlemu.engines.native import STOPPED, NativeEngine
from cxlemu.engines.reference import Runner
from cxlemu.engines.streams import Binding, Blocked, Running
from cxlemu.errors import ArgumentError, DeadlineError, MismatchError, PlanError
from cxlemu.memory import AdversaryRates, HostCache, MemorySpec, lock
from cxlemu.memory.backend import BACKENDS, EVERYTHING
from cxlemu.memory.backend import NOTHING as ELIDE_NOTHING
from cxlemu.memory.direct import DirectMemory
from cxlemu.memory.protocol import PAYLOAD_BYTES, Bytes
from cxlemu.plan import (
    DTYPE_NAMES,
    DTYPES,
    NOTHING,
    Buffer,
    Call,
    DoorbellGroup,
    Flag,
    Frame,
    Instruction,
    Kernel,
    Kind,
    Layout,
    Op,
    Operand,
    Plan,
    RankPart,
    RedOp,
    Region,
)
from cxlemu.plan.layout import doorbell_word
from faults.zero_copy_calls import with_heap
from tests.collectives.test_collectives import plan_of
from tests.helpers import tiers
from tests.helpers.by_hand import local, streams
from tests.helpers.expected import COLLECTIVES, OPS, input_bytes
from tests.helpers.native_lockstep import InTurns, NativeLockstep, ReferenceInTurns, card, outcome


def examples(count: int) -> settings:
    return tiers.examples(count * tiers.PERCENT // 100, derandomize=True)


# --- whole collectives --------------------------------------------------------------------------------------------


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Small rings, so that messages take several rounds and calls wrap them."""
    ranks, cards, slots = draw(st.integers(1, 6)), draw(st.integers(1, 7)), draw(st.integers(1, 4))
    need = 4 * -(-ranks // cards) * (ranks + 1)  # lines that the most demanding placement needs of a card
    lines = 1 << need.bit_length() + draw(st.integers(-1, 1))
    return with_heap(Layout(ranks, cards, slots, lines * 64, 2 * ranks + 2, draw(st.sampled_from([64, 256, 4096]))))


@st.composite
def plans(draw: st.DrawFn, layout: Layout, collective: str) -> Plan:
    largest = 6000 if layout.ranks < 4 else 1800
    nbytes = draw(st.sampled_from([0, 1, 63, 64, 65, 200, 999, largest // 2, largest]))
    dtype, op = draw(st.sampled_from(list(DTYPES))), draw(st.sampled_from(OPS))
    root, in_place = draw(st.integers(0, layout.ranks - 1)), draw(st.booleans())
    return plan_of(layout, collective, nbytes, dtype, op, root, in_place, random.Random(draw(st.integers(0, 99))))


def harmless_bits(call: Call, rng: np.random.Generator) -> list[Bytes]:
    """Random bits, but nothing that could become a NaN: infinities only under min and max, no zeros under prod."""
    given_bytes = [rng.integers(0, 256, input_bytes(call, rank), np.uint8) for rank in range(call.ranks)]
    if call.redop == "none" or DTYPES[call.dtype].kind in "iu":
        return given_bytes
    for data in given_bytes:
        numbers = data.view(DTYPES[call.dtype])
        with np.errstate(invalid="ignore"):
            harmful = np.isnan(numbers) if call.redop in ("min", "max") else ~np.isfinite(numbers)
            harmful |= (numbers == 0) & (call.redop == "prod")
        numbers[harmful] = 1
    return given_bytes


WILD = AdversaryRates(evict=0.3, prefetch=0.3, land=0.3)
NEW_SEED = MemorySpec(seed=0, rates=WILD)
MEMORIES: dict[str, dict[str, Any]] = {
    "shm": {"elides": EVERYTHING},
    "dax": {"elides": ELIDE_NOTHING},
    "emulated": {"memory": MemorySpec()},
    "adversary": {"memory": NEW_SEED},
}
every_memory = pytest.mark.parametrize("memory", MEMORIES)


def worlds(layout: Layout, memory: str, seed: int, *, per_host: int = 1) -> tuple[InTurns, InTurns]:
    """The same for both engines."""
    given = {"hosts": [rank // per_host for rank in range(layout.ranks)], "seed": seed, **MEMORIES[memory]}
    if memory == "adversary":
        given["memory"] = replace(NEW_SEED, seed=seed)
    native = NativeLockstep(layout, **given)
    given.pop("elides", None)
    return ReferenceInTurns(layout, **given), native


@pytest.mark.each_value_once
@every_memory
@pytest.mark.parametrize("collective", COLLECTIVES)
@examples(20)
@given(st.data())
def test_the_same_calls_leave_the_same_bytes(collective: str, memory: str, data: st.DataObject) -> None:
    """A call, others, and the same call again: results of all ranks, all cards, doorbells included, and all caches."""
    layout = data.draw(layouts())
    any_collective = st.sampled_from(COLLECTIVES)
    first, second, third = (
        data.draw(plans(layout, name)) for name in (collective, collective, data.draw(any_collective))
    )
    seed, per_host = data.draw(st.integers(0, 1 << 20)), data.draw(st.sampled_from([1, 1, 2]))
    calls = [(p, harmless_bits(p.call, np.random.default_rng(seed))) for p in (first, second, third, first)]
    reference, native = worlds(layout, memory, seed, per_host=per_host)
    wanted = outcome(reference, calls)
    assert wanted[0] == "" and outcome(native, calls) == wanted


@pytest.mark.each_value_once
@every_memory
@pytest.mark.parametrize(("collective", "variant"), [("all_reduce", "two_shot"), ("reduce_scatter", "all")])
def test_large_blocks_leave_the_same_bytes(collective: str, variant: str, memory: str) -> None:
    """Folded in several pieces where nothing moves in between."""
    layout = Layout(ranks=2, cards=3, slots=2, slot_card_bytes=1 << 18, doorbells_per_rank=3, interleave_bytes=4096)
    plan = build(recipe(collective, variant), layout, Call(collective, variant, 2, 300_000, "i32", "sum"))
    assert any(i.op == Op.REDUCE and i.nbytes > 1 << 16 for s in plan.part(0).streams for i in s.instructions)
    calls = [(plan, harmless_bits(plan.call, np.random.default_rng(number))) for number in range(3)]
    reference, native = worlds(layout, memory, seed=5)
    assert outcome(native, calls) == outcome(reference, calls)


# With one of these missing a plan may read what it should not, or wait for ever.
NEEDED = [Op.FLUSH, Op.FENCE, Op.INVALIDATE, Op.SIGNAL, Op.WAIT, Op.WAIT_ALL, Op.SIGNAL_DATA, Op.WAIT_DATA, Op.AWAIT]


@st.composite
def broken(draw: st.DrawFn, plan: Plan) -> Plan:
    """Without one of its instructions, if it has any that it needs."""
    rank = draw(st.integers(0, len(plan.parts) - 1))
    part = plan.part(rank)
    places = [
        (s, at) for s, stream in enumerate(part.streams) for at in np.flatnonzero(np.isin(stream.records["op"], NEEDED))
    ]
    if not places:
        return plan
    stream, at = draw(st.sampled_from(places))
    streams = list(part.streams)
    streams[stream] = replace(streams[stream], records=np.delete(streams[stream].records, at))
    return plan.with_part(replace(part, streams=tuple(streams)))


@pytest.mark.each_value_once
@pytest.mark.parametrize("memory", ["emulated", "adversary"])
@pytest.mark.parametrize("collective", COLLECTIVES)
@examples(30)
@given(st.data())
def test_broken_plans_go_wrong_in_the_same_way(collective: str, memory: str, data: st.DataObject) -> None:
    """Wrong bytes, the same ones; a deadlock at the same place; and the adversary has done the same."""
    layout = data.draw(layouts())
    nbytes = 0 if collective == "barrier" else data.draw(st.sampled_from([8, 200, 2000]))
    seed = data.draw(st.integers(0, 1 << 20))
    plan = plan_of(layout, collective, nbytes, "u8", data.draw(st.sampled_from(OPS)), 0, False, random.Random(seed))
    mutant = data.draw(broken(plan))
    rng = np.random.default_rng(seed)
    calls = [(p, harmless_bits(p.call, rng)) for p in (plan, mutant, mutant, plan, mutant)]
    reference, native = worlds(layout, memory, seed, per_host=data.draw(st.sampled_from([1, 1, 2])))
    assert outcome(native, calls) == outcome(reference, calls)


# --- any instructions ---------------------------------------------------------------------------------------------

LAYOUT = Layout(
    2, cards=3, slots=3, slot_card_bytes=1024, doorbells_per_rank=3, interleave_bytes=64, heap_card_bytes=1024
)
BASE, CALL = 4096, Call("all_gather", "by hand", 2, 100)
BUFFER_BYTES = 700
INTEGERS = [DTYPE_NAMES.index(name) for name, kind in DTYPE_KINDS.items() if kind == "integer"]  # without NaNs
OUT, A, B, C = range(4)


class Case(NamedTuple):
    """What one rank does, from a state of buffers and cards that a seed decides."""

    frame: Frame
    streams: list[list[Instruction]]
    epoch: int
    seed: int

    def buffers(self) -> list[Bytes]:
        rng = np.random.default_rng(self.seed)
        return [rng.integers(0, 256, BUFFER_BYTES, np.uint8) for _ in range(4)]

    def cards(self) -> list[Bytes]:
        """Doorbells show epochs around the call's, some of them rung in another call."""
        rng = np.random.default_rng([self.seed, 1])
        cards = [card(BASE + LAYOUT.extent_bytes) for _ in range(LAYOUT.cards)]
        for where in cards:
            where[:] = rng.integers(0, 256, where.nbytes, np.uint8)
            lines = where[BASE : BASE + LAYOUT.data_offset].view("<u8")[::8]
            for k in range(len(lines)):
                other = int(rng.integers(4) == 0)
                lines[k] = doorbell_word(int(rng.integers(0, self.epoch + 4)), CALL.tag() ^ other << 1)
        return cards

    def running(self) -> Running:
        buffers = tuple(Buffer(name, BUFFER_BYTES) for name in "oabc")
        return Running(
            CALL,
            self.frame,
            RankPart(0, buffers, streams(self.streams), 3),
            Binding(LAYOUT, BASE, self.epoch, CALL.tag()),
        )


@st.composite
def regions(draw: st.DrawFn) -> Region:
    cards, granularity = draw(st.integers(1, LAYOUT.cards)), draw(st.sampled_from([64, 128, 1024]))
    base, start = draw(st.sampled_from([0, 64])), draw(st.sampled_from([0, 8, 64, 200]))
    room = (LAYOUT.slot_card_bytes - base) // granularity * granularity * cards - start
    first_card, nbytes = draw(st.integers(0, LAYOUT.cards - cards)), draw(st.integers(0, max(room, 0)))
    return Region(first_card, cards, granularity, base, start, nbytes, heap=draw(st.booleans()))


@st.composite
def instructions(draw: st.DrawFn, frame: Frame) -> Instruction:
    """One that obeys the rules; and no REDUCE overwrites a part of what it reads, as no builder lets it."""
    op, dtype = draw(st.sampled_from(Op)), draw(st.sampled_from(INTEGERS))
    number, region = draw(st.sampled_from(list(enumerate(frame.regions))))
    reduces, carries = op in (Op.REDUCE, Op.REDUCE_LOCAL), op in (Op.SIGNAL_DATA, Op.WAIT_DATA)
    item_bytes = DTYPES[DTYPE_NAMES[dtype]].itemsize if reduces else 1
    first = -region.start % item_bytes  # elements do not straddle granules
    most = max(min(BUFFER_BYTES, region.nbytes - first), 0)
    nbytes = draw(st.integers(0, min(most, PAYLOAD_BYTES) if carries else most)) // item_bytes * item_bytes

    def local(name: int) -> Operand:
        return Operand(Kind.BUFFER, name, 0, draw(st.integers(0, BUFFER_BYTES - nbytes)))

    def pool(*seqs: int) -> Operand:
        steps = max(region.nbytes - first - nbytes, 0) // item_bytes
        offset = min(first + draw(st.integers(0, steps)) * item_bytes, region.nbytes)
        return Operand(Kind.REGION, number, draw(st.sampled_from(seqs)), offset)

    def or_nothing(operand: Operand) -> Operand:
        return draw(st.sampled_from([NOTHING, operand]))

    def too() -> Operand:
        """In another slot than what is read; the heap has none."""
        return NOTHING if region.heap else or_nothing(pool(1))

    value = draw(st.integers(0, 3))
    match op:
        case Op.WRITE | Op.WRITE_NT:
            return Instruction(op, dst=pool(*range(6)), a=local(A), nbytes=nbytes)
        case Op.READ:
            return Instruction(op, dst=local(OUT), dst2=too(), a=pool(0, 2), nbytes=nbytes)
        case Op.FLUSH | Op.INVALIDATE:
            return Instruction(op, a=pool(*range(6)), nbytes=nbytes)
        case Op.COPY:
            return Instruction(op, dst=local(OUT), a=local(draw(st.sampled_from([OUT, A]))), nbytes=nbytes)
        case Op.REDUCE | Op.REDUCE_LOCAL:
            a, b, c = (draw(st.sampled_from([local(k), pool(0)][: Op.REDUCE_LOCAL - op + 1])) for k in (A, B, C))
            second = too() if op == Op.REDUCE else NOTHING
            into = draw(st.sampled_from([local(OUT), *(s for s in (a, b) if s.kind == Kind.BUFFER)]))
            divisor = draw(st.sampled_from([0, 1, 2, 7]))
            redop, flags = draw(st.sampled_from([*RedOp][1:])), Flag.DIVIDE if divisor else 0
            return Instruction(op, dtype, redop, flags, divisor, 0, nbytes, into, second, a, b, or_nothing(c))
        case Op.SIGNAL | Op.SIGNAL_DATA:
            bell = draw(st.integers(0, LAYOUT.doorbell_count - 1))
            return Instruction(op, arg=bell, value=value, **({"a": local(A), "nbytes": nbytes} if carries else {}))
        case Op.WAIT | Op.WAIT_DATA:
            bell = draw(st.integers(0, LAYOUT.doorbell_count - 1))
            value -= draw(st.sampled_from([0, LAYOUT.slots])) if bell >= LAYOUT.published_count else 0
            return Instruction(op, arg=bell, value=value, **({"dst": local(OUT), "nbytes": nbytes} if carries else {}))
        case Op.WAIT_ALL:
            group = draw(st.integers(0, len(frame.groups) - 1))
            value -= draw(st.sampled_from([0, LAYOUT.slots])) if group == DONE_GROUP else 0
            return Instruction(op, arg=group, value=value)
        case Op.RECORD | Op.AWAIT:
            return Instruction(op, arg=draw(st.integers(0, 2)))
        case _:
            return Instruction(Op.FENCE)


GROUPS = (DoorbellGroup(0, 2, 3), DoorbellGroup(1, 3, 1), DoorbellGroup(LAYOUT.done(0), 2, 1))
DONE_GROUP = 2


@st.composite
def cases(draw: st.DrawFn) -> Case:
    frame = Frame(4, tuple(draw(st.lists(regions(), min_size=1, max_size=3))), GROUPS)
    streams = st.lists(st.lists(instructions(frame), max_size=12), max_size=4)
    return Case(frame, draw(streams), draw(st.integers(1, 9)), draw(st.integers(0, 1 << 20)))


@every_memory
@examples(150)
@given(cases())
def test_any_instructions_do_the_same(memory: str, case: Case) -> None:
    """Buffers, cards, caches, and for every stream where it stands and why; or the same mismatch."""
    r = case.running()
    seen = []
    for world in worlds(LAYOUT, memory, case.seed):
        buffers = case.buffers()
        for where, content in zip(world.cards, case.cards(), strict=True):
            where[:] = content
        stands: object
        try:
            stands = world.advance(world.begin(r, buffers))
        except MismatchError as error:
            stands = str(error)
        seen.append((stands, [mine.tobytes() for mine in buffers], world.seen(), world.stats()))
    assert seen[0] == seen[1]


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(("collective", "variant"), [("all_reduce", "doubling"), ("reduce", "binomial")])
@pytest.mark.parametrize("memory", ["emulated", "adversary"])
def test_a_checksum_changes_no_order_of_streams(memory: str, collective: str, variant: str, ranks: int) -> None:
    """C comes back from a kernel of Python to the stream that it left: other streams have their turn after it."""
    layout, checked = Layout(ranks, 2, 2, 4096, 2 * ranks + 2, 64), with_checksums(recipe(collective, variant))
    plan = build(checked, layout, Call(collective, checked.name, ranks, 65, "u8", "sum"))
    calls = [(plan, harmless_bits(plan.call, np.random.default_rng(number))) for number in range(3)]
    reference, native = worlds(layout, memory, seed=1)
    assert outcome(native, calls) == outcome(reference, calls)


def test_a_stream_goes_on_from_its_stop_before_others_have_their_turn() -> None:
    """Stream 0 may go on since stream 1 recorded its event, but its turn comes when stream 1 waits for a doorbell."""
    load = Instruction(Op.READ, dst=local(A), a=Operand(Kind.REGION, 0), nbytes=64)
    store = Instruction(Op.WRITE, dst=Operand(Kind.REGION, 0, 1), a=local(B), nbytes=640)
    programs = [
        [Instruction(Op.AWAIT, arg=0), store],
        [Instruction(Op.RECORD, arg=0), load, Instruction(Op.WAIT, arg=0)],
    ]
    sizes = (0, 640, 640, 0)
    running = by_hand(programs, Frame(1, (Region(0, 3, 64, 0, 0, 640),)), sizes)
    reference, native = worlds(LAYOUT, "adversary", seed=3)
    buffers = [np.zeros(n, np.uint8) for n in sizes]
    r, stops = running, {(1, 1): lambda: False}
    runner = Runner(r.call, r.frame, r.part, r.binding, memory=reference.memories[0], buffers=buffers, stops=stops)
    call = native.begin(running, [np.zeros(n, np.uint8) for n in sizes])
    call.program.stop(1, 1)
    assert call.program.advance(0, 0) == (STOPPED, [(1, 1, -1, 0, 0)])
    call.program.stop(1, 3)
    assert native.advance(call) == reference.advance(runner) != []
    assert (native.stats()[0], native.seen()) == (reference.stats()[0], reference.seen())


@pytest.mark.parametrize("left_out", [False, True])
def test_a_stop_forgets_no_stream_that_waits(left_out: bool) -> None:
    """Stream 0 had its turn before stream 1 came to its stop."""
    wait, copy = Instruction(Op.WAIT, arg=0), Instruction(Op.COPY, dst=local(OUT), a=local(A), nbytes=8)
    _, native = worlds(LAYOUT, "shm", seed=3)
    call = native.begin(by_hand([[wait], [wait if not left_out else copy]]), [np.zeros(n, np.uint8) for n in SIZES])
    call.program.stop(1, 0)
    assert call.program.advance(0, 0)[0] == STOPPED
    call.program.stop(1, 1)
    if left_out:
        call.program.skip(1)
    assert [stands[0] for stands in native.advance(call)] == ([0] if left_out else [0, 1])


# --- what a rank sees of the engine -------------------------------------------------------------------------------

GEMM = Frame(1, (), (), (Kernel("gemm_f32", (2, 3, 4)),))
SIZES = (24, 32, 48, 0)  # of C = A B, A and B


def by_hand(programs: list[list[Instruction]], frame: Frame = GEMM, sizes: tuple[int, ...] = SIZES) -> Running:
    buffers = tuple(Buffer(name, nbytes) for name, nbytes in zip("oabc", sizes, strict=True))
    return Running(CALL, frame, RankPart(0, buffers, streams(programs), 1), Binding(LAYOUT, BASE, 5, CALL.tag()))


@pytest.fixture(params=["reference", "native", "native emulated"])
def engine(request: pytest.FixtureRequest) -> Engine:
    cards = [card(BASE + LAYOUT.extent_bytes) for _ in range(LAYOUT.cards)]
    if request.param == "native emulated":
        memory = MemorySpec(seed=1).open(cards, host_cache=HostCache.private(cards), host=0, rank=0)
        return engine_for("native", BACKENDS["emulated"], memory, cards)
    return engine_for(request.param, BACKENDS["shm"], DirectMemory(cards), cards)


def test_compute_runs_its_kernel_where_the_stream_stands(engine: Engine) -> None:
    """Between an instruction that makes its input and one that uses its output, beside a stream that waits for it."""
    halve = Instruction(Op.COPY, dst=local(A, 16), a=local(A), nbytes=16)
    tile = Instruction(Op.COMPUTE, arg=0, nbytes=24, dst=local(OUT), a=local(A), b=local(B))
    main = [halve, tile, Instruction(Op.RECORD, arg=0)]
    beside = [Instruction(Op.AWAIT, arg=0), Instruction(Op.COPY, dst=local(OUT, 20), a=local(OUT), nbytes=4)]
    out, a, b = (np.arange(n // 4, dtype=np.float32) for n in SIZES[:3])
    engine.run(by_hand([main, beside]), [x.view(np.uint8) for x in (out, a, b)] + [np.empty(0, np.uint8)], deadline_s=5)
    row = a[:4] @ b.reshape(4, 3)
    assert out.tolist() == [*row, *row[:2], row[0]]


def test_every_call_begins_at_the_beginning(engine: Engine) -> None:
    """Also the second call of one part: what happened in the first has not happened yet."""
    waits = [Instruction(Op.AWAIT, arg=0), Instruction(Op.COPY, dst=local(OUT, 8), a=local(OUT), nbytes=8)]
    copies = [Instruction(Op.COPY, dst=local(OUT), a=local(A), nbytes=8), Instruction(Op.RECORD, arg=0)]
    running = by_hand([waits, copies])
    for number in (1, 2):
        out, a = np.zeros(24, np.uint8), np.full(32, number, np.uint8)
        engine.run(running, [out, a, np.empty(48, np.uint8), np.empty(0, np.uint8)], deadline_s=5)
        assert out.tolist() == [number] * 16 + [0] * 8


def test_a_deadline_says_what_every_stream_waits_for(engine: Engine) -> None:
    waits = [Instruction(Op.WAIT, arg=LAYOUT.published(1, 2), value=3)], [Instruction(Op.AWAIT, arg=0)]
    with pytest.raises(DeadlineError) as raised:
        engine.run(by_hand([*waits], sizes=(0,) * 4), [np.empty(0, np.uint8)] * 4, deadline_s=0.05)
    assert re.fullmatch(
        r"rank 0 waited \d\.\d s in \[all_gather by hand 100 B u8\] for rank 1 to ring published\[1\]\[2\] "
        r"with epoch 8 \(it shows 0; s0:0 WAIT\), and for its own event 0 \(s1:0 AWAIT\)",
        str(raised.value),
    )


def test_a_wait_names_the_instruction_at_which_its_stream_stands(engine: Engine) -> None:
    waits = [Instruction(Op.FENCE), Instruction(Op.WAIT, arg=LAYOUT.published(1, 2), value=3)]
    with pytest.raises(DeadlineError, match=r"\(it shows 0; s0:1 WAIT\)"):
        engine.run(by_hand([waits], sizes=(0,) * 4), [np.empty(0, np.uint8)] * 4, deadline_s=0.05)


def test_a_watch_may_end_a_wait(engine: Engine) -> None:
    def watch(running: Running, blocked: list[Blocked], waited_s: float) -> None:
        raise MismatchError(f"{len(blocked)} streams wait")

    wait = [Instruction(Op.WAIT, arg=0)]
    with pytest.raises(MismatchError, match="2 streams wait"):
        engine.run(by_hand([wait, wait], sizes=(0,) * 4), [np.empty(0, np.uint8)] * 4, deadline_s=9, watch=watch)


def test_a_buffer_that_is_too_small_is_refused(engine: Engine) -> None:
    buffers = [np.zeros(nbytes, np.uint8) for nbytes in (24, 32, 47, 0)]
    with pytest.raises(ArgumentError, match=r"buffer \w has 47 bytes, the plan needs 48"):
        engine.run(by_hand([[]]), buffers, deadline_s=5)


def test_a_buffer_that_the_plan_writes_may_not_be_read_only(engine: Engine) -> None:
    buffers = [np.zeros(nbytes, np.uint8) for nbytes in SIZES]
    for buffer in buffers:
        buffer.flags.writeable = False
    copy = Instruction(Op.COPY, dst=local(OUT), a=local(A), nbytes=8)
    with pytest.raises(ValueError, match="read-only"):
        engine.run(by_hand([[copy]]), buffers, deadline_s=5)
    buffers[OUT] = np.ones(24, np.uint8)
    engine.run(by_hand([[copy]]), buffers, deadline_s=5)  # what it only reads may be
    assert buffers[OUT].tolist() == [0] * 8 + [1] * 16


def test_a_cache_that_cannot_be_had_is_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "DEADLINE_S", 0.05)
    cards = [card(BASE + LAYOUT.extent_bytes) for _ in range(LAYOUT.cards)]
    cache = HostCache.private(cards)
    engine = engine_for(
        "native", BACKENDS["emulated"], MemorySpec().open(cards, host_cache=cache, host=0, rank=0), cards
    )
    running, none = by_hand([[Instruction(Op.FENCE)]], sizes=(0,) * 4), [np.empty(0, np.uint8)] * 4
    with cache.lock, ThreadPoolExecutor(1) as another, pytest.raises(DeadlineError, match="held its cache for more"):
        another.submit(engine.run, running, none, deadline_s=5).result()
    engine.run(running, none, deadline_s=5)


def test_a_memory_of_other_cards_is_refused() -> None:
    cards = [card(BASE + LAYOUT.extent_bytes) for _ in range(LAYOUT.cards)]
    for others in (cards[1:], [where[:-64] for where in cards]):
        memory = MemorySpec().open(others, host_cache=HostCache.private(others), host=0, rank=0)
        with pytest.raises(PlanError, match="the memory is a cache of other cards"):
            engine_for("native", BACKENDS["emulated"], memory, cards).run(
                by_hand([]), [np.zeros(n, np.uint8) for n in SIZES], deadline_s=5
            )


def test_a_plan_that_would_leave_its_buffers_is_refused() -> None:
    cards = [card(BASE + LAYOUT.extent_bytes) for _ in range(LAYOUT.cards)]
    bad = Instruction(Op.COPY, dst=local(OUT, 17), a=local(A), nbytes=8)
    buffers = [np.zeros(nbytes, np.uint8) for nbytes in SIZES]
    with pytest.raises(PlanError, match=r"rank 0 of \[all_gather by hand .*record 1 of stream 1 is not valid"):
        NativeEngine(cards).run(by_hand([[], [bad._replace(nbytes=7), bad]]), buffers, deadline_s=5)
