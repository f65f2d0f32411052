"""Whatever a plan says, the native engine refuses it or stays inside buffers, slots and doorbells.

Here what lies beside them on the cards is looked at; under scripts/sanitize every access is.
"""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe
from cxlemu import _native
from cxlemu.engines.native import DONE, IDLE, KERNEL, STOPPED
from cxlemu.memory import AdversaryRates, HostCache, host_segment_bytes
from cxlemu.memory.adversary import Adversary
from cxlemu.memory.backend import EVERYTHING
from cxlemu.memory.native import NativeShadowMemory
from cxlemu.memory.protocol import Bytes
from cxlemu.plan import (
    DTYPE_NAMES,
    Call,
    DoorbellGroup,
    Flag,
    InHeap,
    Instruction,
    Kind,
    Layout,
    Op,
    Operand,
    RedOp,
    Region,
    encode,
)
from cxlemu.plan.instructions import RECORD_DTYPE, Records
from cxlemu.plan.layout import LAYOUT_DTYPE, layout_record
from cxlemu.plan.plan import group_table, region_table
from tests.helpers.native_lockstep import card
from tests.machine.test_native import examples

LAYOUT = Layout(
    3, cards=2, slots=2, slot_card_bytes=1024, doorbells_per_rank=8, interleave_bytes=256, heap_card_bytes=8192
)
BASE, BESIDE, LARGEST = 4096, 4096, 1 << 14
REGION = Region(0, 2, 256, 0, 0, 2048)
EPOCHS = (0, 1, 7, (1 << 40) - 1, (1 << 47) - 1)
POWERS = [1 << bits for bits in (6, 15, 16, 31, 32, 40, 47, 48, 58, 62, 63)]
EXTREMES = sorted({sign * power + step for power in (0, 1, 8, *POWERS) for step in (-1, 0, 1) for sign in (-1, 1)})
REFUSALS = (ValueError, OverflowError)


def new_cards(fill: int = 0xFF) -> list[Bytes]:
    """0xFF: every doorbell shows an epoch that satisfies every wait, so that a rank alone gets to its end."""
    return [card(BASE + LAYOUT.extent_bytes + BESIDE, fill) for _ in range(LAYOUT.cards)]


def arguments(**others: Any) -> dict[str, Any]:
    """Of a Program that does nothing."""
    tables = {"regions": region_table(()), "groups": group_table(()), "streams": [], "buffer_bytes": [], "events": 0}
    memory = {"elides": EVERYTHING.value, "memory": None}
    return {"cards": new_cards(), "base": BASE, "layout": layout_record(LAYOUT), **tables, **memory, **others}


def changed_layout(layout: Layout = LAYOUT, **fields: int) -> Records:
    """A layout in which some numbers are others than they should be."""
    names = LAYOUT_DTYPE.names or ()
    return np.array([tuple(fields[name] if name in fields else getattr(layout, name) for name in names)], LAYOUT_DTYPE)


def of_plan(collective: str, variant: str, dtype: str = "u8") -> dict[str, Any]:
    redop = "avg" if collective == "all_reduce" else "none"
    heap = InHeap(64) if variant == "zero_copy" else None
    plan = build(recipe(collective, variant), LAYOUT, Call(collective, variant, 3, 3000, dtype, redop, heap=heap))
    part = plan.part(1)
    return arguments(
        regions=region_table(plan.frame.regions),
        groups=group_table(plan.frame.groups),
        streams=[stream.records for stream in part.streams],
        buffer_bytes=[buffer.nbytes for buffer in part.buffers],
        events=part.events,
    )


PLANS = [
    of_plan("all_reduce", "two_shot", "f32"),
    of_plan("all_gather", "all"),
    of_plan("all_gather", "line"),
    of_plan("all_to_all", "naive"),
    of_plan("all_gather", "zero_copy"),
]


MEMORIES = ("shm", "dax", "emulated", "adversary")
every_memory = pytest.mark.parametrize("memory", MEMORIES)


def memory_of(cards: list[Bytes], memory: str) -> dict[str, Any]:
    """The arguments that say how a Program gets to its cards."""
    if memory == "shm":
        return {"elides": EVERYTHING.value, "memory": None}
    if memory == "dax":
        return {"elides": 0, "memory": None}
    often = AdversaryRates(0.5, 0.5, 0.5)
    nature = Adversary(1, often, host=0, rank=0, card_lines=cards[0].nbytes // 64) if memory == "adversary" else None
    storage = card(host_segment_bytes(len(cards), cards[0].nbytes))
    return {"elides": 0, "memory": NativeShadowMemory(HostCache(cards, storage, None), nature).shadow}


def survives(given_arguments: dict[str, Any], epoch: int, fill: int, memory: str) -> bool:
    """Whether it was accepted; then it ran as far as a rank alone gets, and left alone what is beside its extent."""
    cards = new_cards(fill)
    through = memory_of(cards, memory)
    buffers = [np.zeros(min(max(nbytes, 0), LARGEST), np.uint8) for nbytes in given_arguments["buffer_bytes"]]
    try:
        program = _native.Program(**{**given_arguments, "cards": cards, **through})
        program.start(epoch, 1, *buffers)
    except REFUSALS:
        return False
    for _ in range(100):
        status, obstacles = program.advance(0, 0)
        if status != KERNEL:
            break
        program.skip(obstacles[0][0])
    begin, nbytes = given_arguments["base"], int(given_arguments["layout"]["extent_bytes"][0])
    for where in cards:
        assert (where[:begin] == fill).all() and (where[begin + nbytes :] == fill).all()
    return True


# --- any bytes ----------------------------------------------------------------------------------------------------


def test_the_plans_that_are_changed_below_run_to_their_end() -> None:
    for plan in PLANS:
        program = _native.Program(**plan)
        program.start(1, 1, *(np.zeros(nbytes, np.uint8) for nbytes in plan["buffer_bytes"]))
        assert program.advance(0, 0) == (DONE, [])


@every_memory
@examples(400)
@given(st.data())
def test_one_changed_field_is_refused_or_harmless(memory: str, data: st.DataObject) -> None:
    plan = data.draw(st.sampled_from(PLANS))
    changed = dict(plan)
    what = data.draw(
        st.sampled_from(["regions", "groups", "layout", "layout", "buffer_bytes", "number", *["records"] * 6])
    )
    if what == "number":
        name = data.draw(st.sampled_from([name for name in plan if isinstance(plan[name], int) and name != "elides"]))
        changed[name] = data.draw(st.sampled_from(EXTREMES) | st.integers(-200, 200).map(lambda by: plan[name] + by))
    elif what == "buffer_bytes":
        sizes = list(plan[what])
        sizes[data.draw(st.integers(0, len(sizes) - 1))] = data.draw(st.sampled_from(EXTREMES))
        changed[what] = sizes
    else:
        tables = list(plan["streams"]) if what == "records" else [plan[what]]
        which = data.draw(st.integers(0, len(tables) - 1))
        tables[which] = data.draw(with_one_change(tables[which]))
        changed["streams" if what == "records" else what] = tables if what == "records" else tables[0]
    survives(changed, data.draw(st.sampled_from(EPOCHS)), data.draw(st.sampled_from([0xFF, 0, 1])), memory)


@st.composite
def with_one_change(draw: st.DrawFn, table: np.ndarray) -> np.ndarray:
    """One number of one row becomes an extreme one, or one close by."""
    changed = table.copy()
    if not len(changed):
        return changed
    column = draw(st.sampled_from(columns(changed[draw(st.integers(0, len(changed) - 1)) :][:1])))
    near = st.integers(-70, 70).map(lambda by: int(column[0]) + by)
    put(column, draw(near | st.sampled_from(EXTREMES)))
    return changed


@every_memory
@examples(300)
@given(st.data())
def test_a_random_record_is_refused_or_harmless(memory: str, data: st.DataObject) -> None:
    """Of numbers that may be anything, most of them small enough to mean something."""
    numbers = st.sampled_from([*[0, 0, 0, 1, 1, 2, 2, 8, 16, 56] * 20, *EXTREMES])
    record = np.zeros(1, RECORD_DTYPE)
    for column in columns(record):
        put(column, data.draw(numbers))
    record["op"] = data.draw(st.sampled_from(Op))
    made = arguments(
        regions=region_table((REGION, replace(REGION, granularity_bytes=64, start=8, nbytes=1024), REGION)),
        groups=group_table((DoorbellGroup(0, 2, 3), DoorbellGroup(LAYOUT.done(0), 3, 1))),
        streams=[record],
        buffer_bytes=[100, 1024, 0],
        events=2,
    )
    survives(made, data.draw(st.sampled_from(EPOCHS)), 0xFF, memory)


def put(column: np.ndarray, value: int) -> None:
    """Of a number that is too large, its lower bits."""
    column[:] = np.array(value % (1 << 64), np.uint64).astype(column.dtype)


def columns(rows: np.ndarray) -> list[np.ndarray]:
    """The numbers of a row, those of its operands among them."""
    if not rows.dtype.names:
        return [rows]
    return [column for name in rows.dtype.names for column in columns(rows[name])]


@examples(200)
@given(st.binary(max_size=420), st.binary(max_size=100), st.binary(max_size=50))
def test_random_bytes_are_refused_or_harmless(records: bytes, regions: bytes, groups: bytes) -> None:
    survives(arguments(streams=[records], regions=regions, groups=groups, buffer_bytes=[64], events=1), 1, 0xFF, "shm")


@pytest.mark.parametrize("table", ["streams", "regions", "groups"])
def test_a_broken_row_is_refused(table: str) -> None:
    broken: Any = np.zeros(1000, np.uint8)[: {"streams": 105, "regions": 41, "groups": 13}[table]]
    with pytest.raises(ValueError, match="no whole number of rows"):
        _native.Program(**arguments(**{table: [broken] if table == "streams" else broken}))


# --- numbers that overflow, and places that are just outside ------------------------------------------------------

A, F32 = Operand(Kind.BUFFER), DTYPE_NAMES.index("f32")
A_BYTE = Instruction(Op.WRITE, dst=Operand(Kind.REGION), a=A, nbytes=1)


def accepts(
    *instructions: Instruction, region: Region = REGION, group: DoorbellGroup | None = None, **others: Any
) -> bool:
    try:
        _native.Program(
            **arguments(
                streams=[encode(list(instructions))],
                regions=region_table((region,)),
                groups=group_table((group,) if group else ()),
                **{"buffer_bytes": [64, 64], "events": 1, **others},
            )
        )
    except ValueError:
        return False
    return True


FURTHEST = 2**63 - 1
OUTSIDE: dict[str, Callable[[], bool]] = {
    "an offset near 2^63": lambda: accepts(A_BYTE._replace(a=Operand(Kind.BUFFER, 0, 0, FURTHEST))),
    "an offset near 2^63 in a region": lambda: accepts(A_BYTE._replace(dst=Operand(Kind.REGION, 0, 0, FURTHEST))),
    "an offset near -2^63": lambda: accepts(A_BYTE._replace(a=Operand(Kind.BUFFER, 0, 0, -FURTHEST - 1))),
    "offset and size that add up to 0": lambda: accepts(
        A_BYTE._replace(a=Operand(Kind.BUFFER, 0, 0, -FURTHEST - 1), nbytes=FURTHEST)
    ),
    "a negative size": lambda: accepts(A_BYTE._replace(nbytes=-1)),
    "a huge size": lambda: accepts(A_BYTE._replace(nbytes=FURTHEST)),
    "the byte behind a buffer": lambda: accepts(A_BYTE._replace(a=Operand(Kind.BUFFER, 0, 0, 64))),
    "a mean of nothing": lambda: accepts(
        Instruction(Op.REDUCE_LOCAL, F32, RedOp.SUM, Flag.DIVIDE, dst=A, a=A, b=A, nbytes=4, arg=0)
    ),
    "a byte too many": lambda: accepts(A_BYTE._replace(nbytes=65)),
    "a negative round": lambda: accepts(A_BYTE._replace(dst=Operand(Kind.REGION, 0, -1, 0))),
    "a third destination": lambda: accepts(A_BYTE._replace(dst2=Operand(Kind.REGION))),
    "two buffers as destinations": lambda: accepts(
        Instruction(Op.READ, dst=Operand(Kind.BUFFER), dst2=Operand(Kind.BUFFER), a=Operand(Kind.REGION), nbytes=8)
    ),
    "a doorbell that is not there": lambda: accepts(Instruction(Op.SIGNAL, arg=LAYOUT.doorbell_count)),
    "a negative doorbell": lambda: accepts(Instruction(Op.WAIT, arg=-1)),
    "a slot before the first": lambda: accepts(Instruction(Op.SIGNAL, arg=0, value=-(2**30))),
    "a wait in a slot before the first": lambda: accepts(Instruction(Op.WAIT, arg=0, value=-(2**30))),
    "a done doorbell that shows less than nothing": lambda: accepts(
        Instruction(Op.SIGNAL, arg=LAYOUT.done(0), value=-1)
    ),
    "an epoch near 2^63": lambda: accepts(Instruction(Op.SIGNAL, arg=0, value=FURTHEST)),
    "41 bytes of payload beside places": lambda: accepts(
        Instruction(Op.SIGNAL_DATA, flags=Flag.PLACES, arg=0, a=Operand(Kind.BUFFER), nbytes=41)
    ),
    "57 bytes of payload": lambda: accepts(
        Instruction(Op.SIGNAL_DATA, arg=0, a=Operand(Kind.BUFFER), nbytes=57)
    ),
    "an event that is not there": lambda: accepts(Instruction(Op.RECORD, arg=1)),
    "a group that is not there": lambda: accepts(Instruction(Op.WAIT_ALL, arg=0)),
    "a group of doorbells that are not there": lambda: accepts(group=DoorbellGroup(0, 2, LAYOUT.doorbell_count)),
    "a group whose stride overflows": lambda: accepts(group=DoorbellGroup(0, 3, 2**30)),
    "a group whose count overflows": lambda: accepts(group=DoorbellGroup(1, 2**31 - 1, 2**31 - 1)),
    "a group from the last doorbell on": lambda: accepts(group=DoorbellGroup(LAYOUT.doorbell_count - 1, 2, 1)),
    "a region a byte too long": lambda: accepts(region=replace(REGION, nbytes=2049)),
    "a region a line too far": lambda: accepts(region=replace(REGION, base=64)),
    "a region whose last granule is short": lambda: accepts(
        region=replace(REGION, granularity_bytes=1024, base=64, nbytes=1025)
    ),
    "an element in two granules": lambda: accepts(
        Instruction(Op.REDUCE, F32, RedOp.SUM, dst=A, a=Operand(Kind.REGION, 0, 0, 254), b=A, nbytes=4)
    ),
    "a region on a card that is not there": lambda: accepts(region=replace(REGION, first_card=1)),
    "a region on many cards": lambda: accepts(region=replace(REGION, first_card=2**31 - 1, cards=2**31 - 1)),
    "a region that starts near 2^63": lambda: accepts(region=replace(REGION, start=FURTHEST - 2000)),
    "a huge granule": lambda: accepts(region=replace(REGION, granularity_bytes=2**62, start=2**62 - 64, nbytes=128)),
    "a negative granule": lambda: accepts(region=replace(REGION, granularity_bytes=-64)),
    "a broken granule": lambda: accepts(region=replace(REGION, granularity_bytes=96, nbytes=96)),
    "slots that end after the extent": lambda: accepts(layout=changed_layout(slots=LAYOUT.slots + 3)),
    "an extent that ends after its card": lambda: accepts(
        layout=changed_layout(extent_bytes=LAYOUT.extent_bytes + BESIDE + 1)
    ),
    "a base that is no whole line": lambda: accepts(base=BASE + 8),
    "a card that begins in a line": lambda: accepts(cards=[where[8:] for where in new_cards()]),
    "a buffer of negative size": lambda: accepts(buffer_bytes=[64, -1]),
    "a flush of a buffer": lambda: accepts(Instruction(Op.FLUSH, a=A, nbytes=8)),
    "an invalidate of nothing": lambda: accepts(Instruction(Op.INVALIDATE, nbytes=8)),
    "many events": lambda: accepts(events=2**31 - 1),
}  # fmt: skip


def test_what_the_outsiders_below_are_made_from_is_accepted() -> None:
    assert accepts(
        A_BYTE, A_BYTE._replace(a=Operand(Kind.BUFFER, 0, 0, 63)), group=DoorbellGroup(0, LAYOUT.doorbell_count, 1)
    )


@pytest.mark.parametrize("what", OUTSIDE)
def test_what_lies_outside_is_refused(what: str) -> None:
    assert not OUTSIDE[what]()


def test_doorbells_whose_size_overflows_are_refused() -> None:
    """2^28 slots of 2^36 bytes would end at byte 2^64, which is 0."""
    layout = Layout(1 << 15, 1, 1 << 28, 0, 1 << 15, 64)
    overflowing = changed_layout(layout, data_offset=layout.doorbells_offset, extent_bytes=1 << 21, heap_offset=0)
    made = arguments(layout=overflowing, cards=[card(BASE + (1 << 21))])
    with pytest.raises(ValueError, match="the plan's tables do not fit its layout"):
        _native.Program(**made)


@pytest.mark.parametrize(
    "fields",
    [
        *({name: 0} for name in ("ranks", "cards", "slots", "doorbells_per_rank", "pool_cards")),
        *({name: -1} for name in ("own_doorbells", "slot_card_bytes", "data_offset", "heap_offset")),
        *({name: LAYOUT.extent_bytes + 64} for name in ("data_offset", "heap_offset")),
        *({name: 1 << 62} for name in ("slot_card_bytes", "data_offset", "heap_offset")),
        {"cards": 3},
        {"pool_cards": 3},
        {"own_doorbells": 1},
        {"ranks": (1 << 31) - 1},
        {"doorbells_per_rank": (1 << 31) - 1},
        {"doorbells_offset": 0},
        {"slot_doorbell_bytes": 64},
        {"data_offset": LAYOUT.data_offset - 4096},
        {"heap_offset": LAYOUT.heap_offset + 8},
    ],
    ids=str,
)
def test_a_layout_that_fits_nothing_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="the plan's tables do not fit its layout"):
        _native.Program(**arguments(layout=changed_layout(**fields)))


def test_a_layout_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="a layout has 72 bytes, not 71"):
        _native.Program(**arguments(layout=layout_record(LAYOUT).view(np.uint8)[:71]))
    with pytest.raises(ValueError, match="the communicator's extent"):
        _native.Program(**arguments(layout=changed_layout(extent_bytes=1 << 40)))


# --- memories that are used as nobody should -----------------------------------------------------------------------

CARD_BYTES = 8 * 64
FAR = (-(2**63), -1, CARD_BYTES + 1, 2**63 - 1, 2**64)


def shadow() -> _native.Shadow:
    """Cards and storage to the byte."""
    cards = [card(CARD_BYTES) for _ in range(2)]
    return NativeShadowMemory(HostCache(cards, card(host_segment_bytes(2, CARD_BYTES)), None)).shadow


@pytest.mark.parametrize("far", FAR)
def test_a_memory_refuses_what_is_outside(far: int) -> None:
    memory, some = shadow(), np.zeros(8, np.uint8)
    for card_number, offset in ((0, far), (far, 0)):
        with pytest.raises(REFUSALS):
            memory.write(card_number, offset, some, False)
        with pytest.raises(REFUSALS):
            memory.write_nt(card_number, offset, some)
        with pytest.raises(REFUSALS):
            memory.read(card_number, offset, some)
        with pytest.raises(REFUSALS):
            memory.signal(card_number, offset, 1, b"")
        with pytest.raises(REFUSALS):
            memory.poll(card_number, offset)
    for offset, nbytes in ((far, 1), (0, far), (64, far)):
        with pytest.raises(REFUSALS):
            memory.flush(0, offset, nbytes, False)
        with pytest.raises(REFUSALS):
            memory.invalidate(0, offset, nbytes)


def test_a_memory_refuses_what_is_no_doorbell() -> None:
    memory = shadow()
    for offset, word, payload in ((8, 1, b""), (0, -1, b""), (0, 2**64, b""), (0, 1, bytes(57))):
        with pytest.raises(REFUSALS):
            memory.signal(0, offset, word, payload)


def test_a_memory_on_too_small_or_other_storage_is_refused() -> None:
    cards, enough = [card(CARD_BYTES)], card(4096)
    lock = _native.HostLock(card(64))
    for given_cards, storage in ((cards, enough[: 2 * CARD_BYTES + 15]), ([], enough), ([cards[0][:100]], enough)):
        with pytest.raises(ValueError, match=r"storage|cards"):
            _native.Shadow(given_cards, storage, lock, 1.0, None, 0, card(1024))
    for host, damage in ((-1, card(1024)), (1 << 16, card(1024)), (0, card(1024)[:1023])):
        with pytest.raises(ValueError, match="a host is a number of 16 bits, and damage a page of 1024 bytes"):
            _native.Shadow(cards, enough, lock, 1.0, None, host, damage)
    with pytest.raises(ValueError, match="a lock needs 64 bytes"):
        _native.HostLock(card(64)[:63])
    unmade = _native.Shadow.__new__(_native.Shadow)
    with pytest.raises(RuntimeError, match="never made"):
        unmade.fence()
    with pytest.raises(TypeError, match="a Shadow that was made"):
        _native.Program(**arguments(memory=unmade))


# --- programs that are used as nobody should ----------------------------------------------------------------------

COPY = encode([Instruction(Op.COPY, dst=Operand(Kind.BUFFER, 1), a=Operand(Kind.BUFFER), nbytes=8)])


def copying() -> _native.Program:
    return _native.Program(**arguments(streams=[COPY], buffer_bytes=[8, 8]))


def test_a_program_stops_only_before_records_that_are_to_come() -> None:
    program = copying()
    with pytest.raises(RuntimeError, match="there is no such record to come"):
        program.stop(0, 0)  # no call was started
    data, out = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    program.start(1, 1, data, out)
    for stream, at in ((-1, 0), (1, 0), (0, -1), (0, 2), (2**40, 0)):
        with pytest.raises(RuntimeError, match="there is no such record to come"):
            program.stop(stream, at)
    program.stop(0, 0)
    status, found = program.advance(0, 0)
    assert (status, found[0][:2], out.any()) == (STOPPED, (0, 0), False)
    program.stop(0, 1)
    assert program.advance(0, 0) == (DONE, []) and out.tolist() == data.tolist()


def test_a_call_that_could_not_begin_cannot_go_on() -> None:
    program = copying()
    data, out = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    for buffers in ([data, out[:7]], [data[:7], out], [data, out.tobytes()], [data, [1]], [data], [data, out, out]):
        with pytest.raises((ValueError, TypeError, BufferError)):
            program.start(1, 1, *buffers)
        with pytest.raises(RuntimeError, match="no call was started"):
            program.advance(0, 0)
    for epoch, tag in ((-1, 1), (1 << 47, 1), (1 << 64, 1), (1, -1), (1, 1 << 16), (1, 1 << 64), ("1", 1), (1, 1.0)):
        with pytest.raises((ValueError, TypeError, OverflowError)):
            program.start(epoch, tag, data, out)  # type: ignore[arg-type]
        with pytest.raises(RuntimeError, match="no call was started"):
            program.advance(0, 0)
    program.start(1, 1, data, out)
    assert program.advance(0, 0) == (DONE, []) and out.tolist() == data.tolist()
    with pytest.raises(RuntimeError, match="no call was started"):
        program.advance(0, 0)
    with pytest.raises(RuntimeError, match="no record to skip"):
        program.skip(0)


def test_a_program_that_was_refused_does_not_run() -> None:
    bad = encode([Instruction(Op.COPY, dst=Operand(Kind.BUFFER, 1), a=Operand(Kind.BUFFER), nbytes=9)])
    program = _native.Program.__new__(_native.Program)
    for _ in range(2):  # made not at all, made and refused
        with pytest.raises(RuntimeError, match="never made"):
            program.start(1, 1, bytes(8), bytearray(8))
        with pytest.raises(RuntimeError, match="no call was started"):
            program.advance(0, 0)
        with pytest.raises((ValueError, RuntimeError)):
            program.__init__(**arguments(streams=[bad], buffer_bytes=[8, 8]))  # type: ignore[misc]


def test_what_was_checked_is_what_runs() -> None:
    """Tables are copied: a plan may lie anywhere, and change later."""
    shifted = np.zeros(COPY.nbytes + 1, np.uint8)[1:]
    shifted[:] = COPY.view(np.uint8)
    program = _native.Program(**arguments(streams=[shifted], buffer_bytes=[8, 8]))
    shifted[:] = 0xFF
    data, out = np.arange(8, dtype=np.uint8), np.zeros(8, np.uint8)
    program.start(1, 1, data, out)
    assert program.advance(0, 0) == (DONE, []) and out.tolist() == data.tolist()


def test_a_program_runs_in_one_thread_at_a_time() -> None:
    cards = new_cards(0)
    program = _native.Program(**arguments(cards=cards, streams=[encode([Instruction(Op.WAIT, arg=0)])]))
    program.start(1, 0)
    ended: list[int] = []
    looking = threading.Thread(target=lambda: ended.append(program.advance(60_000_000_000, 0)[0]))
    looking.start()
    while True:
        try:
            assert program.advance(0, 0)[0] == IDLE  # the thread had not begun
        except RuntimeError:
            break
    with pytest.raises(RuntimeError, match="in another thread"):
        program.start(1, 0)
    with pytest.raises(RuntimeError, match="no record to skip"):
        program.skip(0)
    cards[0][BASE : BASE + LAYOUT.data_offset] = 0xFF  # now all doorbells have rung
    looking.join()
    assert ended == [DONE]


def test_memory_is_borrowed_from_an_owner_that_the_array_keeps() -> None:
    owner = np.arange(6, dtype=np.int16)
    array = _native.borrowed(owner.ctypes.data, 6, owner.dtype, owner)
    array[2] = 70
    assert owner[2] == 70 and array.base is owner
    assert _native.borrowed(0, 0, owner.dtype, None).shape == (0,)
    for count in (-1, 1):
        with pytest.raises(ValueError, match="no memory to borrow"):
            _native.borrowed(0, count, owner.dtype, None)
    for wrong in ((1, 1, "int16", None), (1, 1, owner.dtype)):
        with pytest.raises(TypeError, match="an address, a count, a dtype"):
            _native.borrowed(*wrong)  # type: ignore[arg-type, call-arg]
