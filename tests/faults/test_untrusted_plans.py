"""A small plan file asks for little work, whatever it says: every command refuses it with a sentence."""

from dataclasses import replace
from pathlib import Path

import pytest

from collectives.algorithms.catalog import load_plan
from cxlemu import _native
from cxlemu.errors import PlanFileError
from cxlemu.memory.backend import EVERYTHING
from cxlemu.memory.protocol import LINE_BYTES
from cxlemu.plan import Buffer, Call, Frame, Instruction, Kernel, Layout, Op, Plan, RankPart, Region, Stream, encode
from cxlemu.plan import file as plan_file
from cxlemu.plan.instructions import Kind, Operand
from cxlemu.plan.layout import layout_record
from cxlemu.plan.plan import group_table, region_table
from tests.helpers.commands import cxlemu
from tests.helpers.native_lockstep import card
from tests.helpers.tables import with_rows

MANY_CARDS = 1 << 16
LAYOUT = Layout(ranks=2, cards=2, slots=2, slot_card_bytes=4096, doorbells_per_rank=4, interleave_bytes=64)
WIDE = Region(0, MANY_CARDS, LINE_BYTES, 0, 0, MANY_CARDS * LINE_BYTES)
HUGE = 2**53
SMALL_WORK_BYTES = 8192  # of native/core.h: what fits is executed without giving the interpreter away


def plan(
    *instructions: Instruction,
    layout: Layout = LAYOUT,
    regions: tuple[Region, ...] = (),
    kernels: tuple[Kernel, ...] = (),
    rounds: int = 1,
    events: int = 0,
    scratch_bytes: int = 0,
    input_bytes: int = 64,
) -> Plan:
    frame = Frame(rounds, regions, (), kernels)
    buffers = (Buffer("input", input_bytes), Buffer("output", 128), Buffer("scratch", scratch_bytes))
    parts = [RankPart(rank, buffers, (Stream("main", encode([*instructions])),), events) for rank in range(2)]
    return Plan(Call("all_gather", "small", 2, 64), layout, lambda rank: (frame, parts[rank]))


NEVER_LOADED = {
    "ranges": plan(
        *[Instruction(Op.INVALIDATE, nbytes=WIDE.nbytes, a=Operand(Kind.REGION))] * 2000,
        layout=replace(LAYOUT, cards=MANY_CARDS),
        regions=(WIDE,) * 2000,
    ),
    "kernels": plan(kernels=(Kernel("gemm_f64", (1, 1, 1, HUGE, HUGE, HUGE)),)),
    "streams": plan(events=2**31 - 1),
}


@pytest.mark.parametrize("rule", NEVER_LOADED)
def test_what_asks_for_too_much_is_not_loaded(tmp_path: Path, rule: str) -> None:
    plan_file.save(NEVER_LOADED[rule], tmp_path / "small.plan")
    with pytest.raises(PlanFileError, match=rf"\(rule {rule}: "):
        load_plan(tmp_path / "small.plan")


@with_rows(
    (plan(input_bytes=32), "rank 0 has input of 32 B, output of 128 B; its call takes input of 64 B"),
    (plan(scratch_bytes=HUGE), f"rank 0 has scratch of {HUGE} B: the limit is {1 << 40}"),
)
def test_memory_that_is_not_its_calls_is_not_loaded(made: Plan, says: str, tmp_path: Path) -> None:
    plan_file.save(made, tmp_path / "small.plan")
    with pytest.raises(PlanFileError, match=says):
        load_plan(tmp_path / "small.plan")
    shown = cxlemu("plan", "show", "--file", tmp_path / "small.plan", code=2)
    assert says in shown.output, shown.output


def test_ends_of_regions_are_computed_not_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """2,000 regions on 65,536 cards each: no range of a card is ever made."""
    plan_file.save(plan(layout=replace(LAYOUT, cards=MANY_CARDS), regions=(WIDE,) * 2000), tmp_path / "small.plan")
    monkeypatch.setattr("cxlemu.plan.address.AddressMap.extents", lambda *given: pytest.fail("looks at every card"))
    assert len(load_plan(tmp_path / "small.plan").frame.regions) == 2000


REFUSED = {
    "mutate": {
        "memory": (plan(scratch_bytes=1 << 40), "1099511627968 bytes in the memory of a rank, too many to mutate"),
        "cards": (plan(layout=replace(LAYOUT, cards=MANY_CARDS)), "65536 cards, too many to mutate: 256 at most"),
        "slots": (plan(layout=replace(LAYOUT, slots=MANY_CARDS)), "65536 slots, too many to mutate"),
        "rounds": (plan(rounds=2**31 - 1), "2147483647 rounds, too many to mutate"),
    },
    "prove": {
        "cards": (plan(layout=replace(LAYOUT, cards=MANY_CARDS)), "too large to be proved: 256 at most"),
        "slots": (plan(layout=replace(LAYOUT, slots=MANY_CARDS)), "the limits are 1024 and 4096"),
    },
}


@pytest.mark.parametrize(("verb", "what"), [(verb, what) for verb in REFUSED for what in REFUSED[verb]])
def test_what_is_too_large_to_be_judged(tmp_path: Path, verb: str, what: str) -> None:
    made, says = REFUSED[verb][what]
    plan_file.save(made, tmp_path / "small.plan")
    assert says in cxlemu(verb, tmp_path / "small.plan", code=2).output


def test_c_reads_aligned_records_from_a_header_of_any_length(tmp_path: Path) -> None:
    for length in range(1, 9):
        one = plan(Instruction(Op.FENCE))
        plan_file.save(Plan(replace(one.call, algorithm="x" * length), one.layout, one.build), tmp_path / "some.plan")
        loaded = load_plan(tmp_path / "some.plan")
        assert all(part.streams[0].records.flags.aligned for part in loaded.parts)
        assert all(not part.streams[0].records.flags.writeable for part in loaded.parts)


@pytest.mark.parametrize("nbytes", [2**63 - 1, 2**62, SMALL_WORK_BYTES + 1])
def test_sizes_that_no_instruction_uses_are_counted_without_overflow(nbytes: int) -> None:
    """A FENCE of 2^63 - 1 bytes, twice: C counts the work of a call, and that count stays what it is: large."""
    made = plan(*[Instruction(Op.FENCE, nbytes=nbytes)] * 3)
    cards = [card(made.layout.extent_bytes) for _ in range(made.layout.cards)]
    part = made.part(0)
    program = _native.Program(
        cards=cards,
        base=0,
        layout=layout_record(made.layout),
        regions=region_table(()),
        groups=group_table(()),
        streams=[stream.records for stream in part.streams],
        buffer_bytes=[buffer.nbytes for buffer in part.buffers],
        events=0,
        elides=EVERYTHING.value,
        memory=None,
    )
    assert program.work_bytes == nbytes
