"""Every rule of a plan is broken by a plan that breaks nothing else; every plan we ship breaks none."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe, variants
from collectives.contracts import COLLECTIVES
from collectives.layouts import layout_for
from cxlemu.errors import PlanError
from cxlemu.plan import (
    DTYPE_NAMES,
    Buffer,
    Call,
    DoorbellGroup,
    Flag,
    Frame,
    InHeap,
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
    Stream,
    encode,
)
from cxlemu.plan.rules import RULES, check, findings
from faults.zero_copy_calls import lent_if_zero_copy
from tests.helpers.by_hand import FENCE, local, pool, signal, wait
from tests.helpers.in_place import may_be_in_place

LAYOUT = Layout(ranks=2, cards=2, slots=2, slot_card_bytes=4096, doorbells_per_rank=4, interleave_bytes=256)
FRAME = Frame(
    rounds=4,
    regions=(Region(0, 2, 256, 0, 0, 2048), Region(0, 2, 256, 1024, 0, 2048), Region(0, 2, 256, 0, 0, 2048)),
    groups=(DoorbellGroup(LAYOUT.done(0), 2, 1), DoorbellGroup(0, 2, 4)),
    kernels=(Kernel("gemm_f32", (2, 2, 2)),),
)
BUFFERS = (Buffer("input", 1024), Buffer("output", 1024), Buffer("window", 64, inside="output", at=128))
HEAP = Region(0, 1, 4096, 0, 0, 2048, heap=True)
F32 = DTYPE_NAMES.index("f32")


def instruction(op: Op, nbytes: int = 0, **given: object) -> Instruction:
    return Instruction(op, nbytes=nbytes)._replace(**given)


def write(region: int, nbytes: int = 64, *, offset: int = 0, seq: int = 0, op: Op = Op.WRITE) -> Instruction:
    return instruction(op, nbytes, dst=pool(offset, seq, region=region), a=local())


def drop(region: int, nbytes: int = 64, *, offset: int = 0, seq: int = 0) -> Instruction:
    return instruction(Op.INVALIDATE, nbytes, a=pool(offset, seq, region=region))


def event(op: Op, number: int = 0) -> Instruction:
    return instruction(op, arg=number)


ADD = instruction(Op.REDUCE, 64, dtype=F32, redop=RedOp.SUM, dst=local(1), a=local(0), b=pool())
GEMM = instruction(Op.COMPUTE, 16, dst=local(1), a=local(0), b=local(0, 16))

Program = list[Instruction]


def plan(
    *streams: Program,
    peer: Program | None = None,
    beside: Program | None = None,
    frame: Frame = FRAME,
    layout: Layout = LAYOUT,
    buffers: tuple[Buffer, ...] = BUFFERS,
    names: tuple[str, ...] = ("publish", "retrieve"),
    events: int = 2,
    rank: int = 0,
) -> Plan:
    """Rank 0 runs ``streams``, rank 1 ``peer``, and ``beside`` in another stream."""
    mine = tuple(Stream(name, encode(program)) for name, program in zip(names, streams, strict=False))
    parts = (
        RankPart(rank, buffers, mine, events),
        RankPart(1, BUFFERS, (Stream("main", encode(peer or [])), Stream("beside", encode(beside or []))), events),
    )
    return Plan(Call("test", "rules", 2, 1024, "f32"), layout, lambda rank: (frame, parts[rank]))


def frame(**changes: object) -> Frame:
    return replace(FRAME, **changes)


def region(**changes: int) -> Plan:
    return plan(frame=frame(regions=(replace(FRAME.regions[0], **changes), *FRAME.regions[1:])))


def layout(**changes: int) -> Plan:
    return plan(layout=replace(LAYOUT, **changes))


def in_heap(*streams: Program, peer: Program | None = None, beside: Program | None = None, heap: Region = HEAP) -> Plan:
    """Region 3 lies in the heap, on card 0 where rank 0 writes; rank 1's strip is on card 1."""
    roomy = replace(LAYOUT, heap_card_bytes=HEAP.nbytes)
    return plan(*streams, peer=peer, beside=beside, layout=roomy, frame=frame(regions=(*FRAME.regions, heap)))


def in_told_heap(
    *streams: Program, peer: Program | None = None, beside: Program | None = None, heap: Region = HEAP
) -> Plan:
    """The same, where doorbells tell where arrays lie."""
    made = in_heap(*streams, peer=peer, beside=beside, heap=heap)
    return Plan(replace(made.call, heap=InHeap(0, told=True)), made.layout, made.build)


def hear(doorbell: int, value: int = 0, flags: int = Flag.PLACES) -> Instruction:
    return wait(doorbell, value)._replace(flags=flags)


def with_buffer(buffer: Buffer) -> Plan:
    return plan(buffers=(*BUFFERS, buffer))


# rule -> plans that break it, and what the message says
TABLES: dict[str, list[tuple[Plan, str]]] = {
    "layout": [
        (layout(heap_card_bytes=100), "the heap has 100 bytes on a card"),
        (layout(ranks=3), "the layout is for 3 ranks, the call for 2"),
        (layout(slots=0), "no slots"),
        (layout(slot_card_bytes=4100), "4100 bytes on a card, no multiple of 64"),
        (layout(doorbells_per_rank=2**31), "more than 2147483647"),
        (plan(frame=frame(rounds=-1)), "-1 rounds"),
    ],
    "regions": [
        (in_heap(heap=replace(HEAP, nbytes=2112)), "ends at byte 2112 of a card, the heap at 2048"),
        (region(first_card=1), "region 0 is on cards 1..2, but there are 2"),
        (region(cards=0), "region 0 is on cards 0..-1"),
        (region(granularity_bytes=32), "interleaved by 32 bytes"),
        (region(granularity_bytes=100), "interleaved by 100 bytes"),
        (region(base=-64), "negative"),
        (region(start=-1), "negative"),
        (region(base=4096 - 1024 + 64), "region 0 ends at byte 4160 of a card, a slot at 4096"),
        (region(nbytes=8192 + 1), "region 0 ends at byte 4097 of a card, a slot at 4096"),
    ],
    "groups": [
        (plan(frame=frame(groups=(DoorbellGroup(0, 0, 1),))), "group 0 is empty"),
        (plan(frame=frame(groups=(DoorbellGroup(0, 1, 0),))), "stride 0"),
        (plan(frame=frame(groups=(DoorbellGroup(8, 2, 2),))), "group 0 is of doorbells 8..10, there are 10"),
    ],
    "kernels": [
        (plan(frame=frame(kernels=(Kernel("sort"),))), "kernel 0 is 'sort'"),
        (plan(frame=frame(kernels=(Kernel("gemm_f32", (2, 0, 2)),))), "takes m, n and k from 1"),
        (plan(frame=frame(kernels=(Kernel("gemm_f32", (2, 2)),))), "takes m, n and k from 1"),
    ],
    "buffers": [
        (with_buffer(Buffer("input", 64)), "rank 0: two buffers have the same name"),
        (with_buffer(Buffer("scratch", -1)), "rank 0: buffer scratch has -1 bytes"),
        (with_buffer(Buffer("b", 8, inside="nowhere")), "buffer b is inside 'nowhere'"),
        (with_buffer(Buffer("b", 8, inside="b")), "buffer b is inside 'b', no memory of its own"),
        (with_buffer(Buffer("b", 8, inside="window")), "buffer b is inside 'window', no memory of its own"),
        (with_buffer(Buffer("b", 8, inside="input", at=1017)), "ends outside the 1024 bytes of input"),
    ],
    "streams": [
        (plan(events=65537), "it has 65537 events for 0 instructions"),
        (plan([], [], names=("main", "main")), "rank 0: two streams have the same name"),
        (plan([], rank=1), "rank 0: its part says rank 1"),
    ],
}

# rule -> programs of rank 0's publish stream whose *last* instruction breaks it, and what the message says
PROGRAMS: dict[str, list[tuple[Program, str]]] = {
    "opcode": [([FENCE, instruction(Op(5))._replace(op=99)], "there is no opcode 99")],
    "operands": [
        ([instruction(Op.FLUSH, 64)], "operand a is missing"),
        ([instruction(Op.FLUSH, 64, a=local())], "operand a may not be a buffer"),
        ([instruction(Op.WRITE, 64, dst=pool(), a=pool(region=1))], "operand a may not be a region"),
        ([FENCE._replace(dst=pool())], "operand dst may not be a region"),
        ([FENCE._replace(c=Operand(9))], "operand c is of kind 9, which does not exist"),
    ],
    "unused": [
        ([FENCE._replace(nbytes=1)], "nbytes is set"),
        ([FENCE._replace(value=1)], "value is set"),
        ([write(0)._replace(arg=1)], "arg is set"),
        ([write(0)._replace(flags=1)], "flags is set"),
        ([write(0)._replace(dtype=1)], "dtype is set"),
        ([signal(0)._replace(redop=RedOp.SUM)], "redop is set"),
        ([ADD._replace(arg=4)], "arg is set"),
        ([FENCE._replace(b=Operand(offset=8))], "operand b has fields"),
        ([write(0)._replace(a=Operand(Kind.BUFFER, 0, 1, 0))], "operand a has fields"),
    ],
    "reduction": [
        ([ADD._replace(dtype=len(DTYPE_NAMES))], "there is no dtype 15"),
        ([ADD._replace(redop=RedOp.NONE)], "there is no operation 0"),
        ([ADD._replace(redop=77)], "there is no operation 77"),
        ([ADD._replace(redop=RedOp.BOR)], "there is no bor of f32"),
        ([ADD._replace(dtype=DTYPE_NAMES.index("c64"), redop=RedOp.MIN)], "there is no min of c64"),
        ([ADD._replace(flags=2)], "there are no flags 2"),
        ([ADD._replace(flags=Flag.DIVIDE, arg=0)], "it divides by 0"),
    ],
    "size": [
        ([drop(0, -64)], "-64 bytes"),
        ([ADD._replace(nbytes=62)], "62 bytes are not a whole number of elements"),
    ],
    "payload": [
        ([instruction(Op.SIGNAL_DATA, 57, a=local())], "57 bytes"),
        ([instruction(Op.SIGNAL_DATA, 41, a=local())._replace(flags=Flag.PLACES)], "41 bytes"),
        ([instruction(Op.SIGNAL, 0)._replace(flags=5)], "there are no flags 5"),
    ],
    "buffer": [
        ([GEMM._replace(a=local(0, 1009))], "operand a is 16 bytes at 1009"),
        ([write(0)._replace(a=local(0, 961))], "operand a is 64 bytes at 961 of buffer 0, which has 1024"),
        ([write(0)._replace(a=local(0, -1))], "at -1 of buffer 0"),
        ([write(0)._replace(a=local(0, 2**63 - 1))], "at 9223372036854775807"),
        ([GEMM._replace(a=local(0, 1025))], "operand a is 16 bytes at 1025"),
    ],
    "region": [
        ([drop(3)], "there is no region 3"),
        ([drop(0, 64, offset=2048)], "operand a is 64 bytes at 2048 of region 0, which has 2048"),
        ([drop(0, 2**62)], "of region 0, which has 2048"),
        ([instruction(Op.READ, 64, dst=local(1), a=pool(), dst2=pool(-64, region=1))], "operand dst2 is 64 bytes at"),
    ],
    "round": [
        ([drop(0, seq=4)], "round 4 of a call of 4"),
        ([drop(0, seq=-1)], "round -1 of a call of 4"),
        ([signal(0, 4)], "epoch e+4"),
        ([signal(LAYOUT.done(0), -1)], "epoch e-1"),
        ([wait(5, -1)], "epoch e-1"),
        ([wait(LAYOUT.done(1), -3)], "epoch e-3"),
        ([instruction(Op.WAIT_ALL, arg=0, value=-3)], "epoch e-3"),
        ([instruction(Op.WAIT_ALL, arg=1, value=-1)], "epoch e-1"),
    ],
    "doorbell": [([wait(10)], "there is no doorbell 10: there are 10"), ([wait(-1)], "there is no doorbell -1")],
    "owner": [
        ([signal(4)], "the doorbell is rank 1's"),
        ([signal(LAYOUT.done(1))], "the doorbell is rank 1's"),
    ],
    "group": [([instruction(Op.WAIT_ALL, arg=2)], "there is no group 2")],
    "event": [([event(Op.RECORD, 2)], "there is no event 2"), ([event(Op.RECORD, -1)], "there is no event -1")],
    "kernel size": [([GEMM._replace(nbytes=12)], "its kernel writes 16 bytes")],
    "kernel": [([GEMM._replace(arg=1)], "there is no kernel 1")],
    "epochs rise": [
        ([signal(0, 1), signal(0, 1)], "instruction 0 has it show e+1 already"),
        ([signal(LAYOUT.done(0), 1), signal(LAYOUT.done(0), 0)], "instruction 0 has it show e+1 already"),
    ],
    "recorded": [
        ([event(Op.AWAIT)], "0 RECORDs of event 0"),
        ([event(Op.RECORD), event(Op.RECORD), event(Op.AWAIT)], "2 RECORDs of event 0"),
    ],
    "one kind": [
        ([write(0), FENCE, write(0, op=Op.WRITE_NT), write(0, 8, offset=32)], "and so does instruction 2"),
    ],
}  # fmt: skip

# rule -> plans of two streams or ranks that break it in the row named, and what the message says
TOGETHER: dict[str, list[tuple[Plan, tuple[int, str, int], str]]] = {
    "one stream": [
        (plan([signal(0)], [signal(0, 1)]), (0, "retrieve", 0), "rung from rank 0, stream publish, instruction 0"),
    ],
    "recorded": [
        (plan([event(Op.AWAIT), event(Op.RECORD)]), (0, "publish", 0), "RECORD is instruction 1, later"),
    ],
    "round": [
        (in_heap([write(3, seq=1)]), (0, "publish", 0), "round 1 in the heap, which has none"),
    ],
    "told": [
        (in_told_heap(peer=[drop(3)]), (1, "main", 0), "no doorbell has carried the place of the array of rank 0"),
        (in_told_heap(peer=[hear(0, flags=0), drop(3)]), (1, "main", 1), "no doorbell has carried"),
        (in_told_heap(peer=[drop(3), hear(0)]), (1, "main", 0), "no doorbell has carried"),
        (in_told_heap(peer=[drop(3)], beside=[hear(0)]), (1, "main", 0), "no doorbell has carried"),
        (
            in_told_heap(peer=[event(Op.AWAIT), drop(3)], beside=[event(Op.RECORD), hear(0)]),
            (1, "main", 1),
            "no doorbell has carried",
        ),
        (in_told_heap(peer=[hear(LAYOUT.doorbells_per_rank), drop(3)]), (1, "main", 1), "no doorbell has carried"),
        (in_told_heap(heap=replace(HEAP, base=64, nbytes=64)), (-1, "", -1), "region 3 in the heap is not part of a"),
    ],
    "own strip": [
        (in_heap(peer=[write(3, seq=0)]), (1, "main", 0), "line 0 of the heap on card 0, which is not rank 1's"),
    ],
    "one writer": [
        (plan([write(2)], peer=[FENCE, write(0)]), (1, "main", 1), "line 0 of card 0"),
        # bytes 64..95 and 32..63 of a line that both regions share
        (plan([write(0, 32)], peer=[write(2, 32, offset=32)]), (1, "main", 0), "line 0 of card 0"),
        # the second rank's range reaches card 1 in its second granule only
        (plan([write(0, 64, offset=256)], peer=[write(2, 320)]), (1, "main", 0), "line 0 of card 1"),
        (
            plan(
                [instruction(Op.READ, 64, dst=local(1), a=pool(region=1), dst2=pool())],
                peer=[write(0, op=Op.WRITE_NT)],
            ),
            (1, "main", 0),
            "rank 0, stream publish, instruction 0 writes line 0",
        ),
    ],
    "stale line": [
        # rounds 0 and 2 share a slot: rank 0 wrote the line that rank 1 now writes in part
        (plan([write(0)], peer=[write(2, 8, seq=2)]), (1, "main", 0), "rank 0 wrote line 0 of card 0 in round 0"),
        # invalidated too late, another slot's, another line
        (plan([write(0)], peer=[write(2, 8, seq=2), drop(2, seq=2)]), (1, "main", 0), "in round 0"),
        (plan([write(0)], peer=[drop(2, seq=1), write(2, 8, seq=2)]), (1, "main", 1), "in round 0"),
        (plan([write(0)], peer=[drop(2, offset=64, seq=2), write(2, 8, seq=2)]), (1, "main", 1), "in round 0"),
        (
            plan([write(0, offset=64)], peer=[drop(2, seq=2), write(2, 8, offset=64, seq=2)]),
            (1, "main", 1),
            "rank 0 wrote line 1 of card 0 in round 0",
        ),
        # invalidated by another rank, and before the line was written
        (plan([write(0), drop(0, seq=2)], peer=[write(2, 8, seq=2)]), (1, "main", 0), "in round 0"),
        (
            plan([write(0, seq=2)], peer=[drop(2), write(2, 8, seq=4)], frame=frame(rounds=6)),
            (1, "main", 1),
            "rank 0 wrote line 0 of card 0 in round 2",
        ),
    ],
    "ranges": [
        (
            plan(
                [drop(0, 64 * 65536)] * 17,
                layout=replace(LAYOUT, cards=65536),
                frame=frame(regions=(Region(0, 65536, 64, 0, 0, 64 * 65536),)),
            ),
            (0, "publish", 0),
            "it lies on 65536 cards, all instructions on 1114112 ranges of cards, above 1049664",
        ),
    ],
}  # fmt: skip

ALL_CASES = [
    *[(name, made, (-1, "", -1), says) for name, cases in TABLES.items() for made, says in cases],
    *[
        (name, plan(program), (0, "publish", len(program) - 1), says)
        for name, cases in PROGRAMS.items()
        for program, says in cases
    ],
    *[(name, *case) for name, cases in TOGETHER.items() for case in cases],
]


@pytest.mark.parametrize(("name", "broken", "at", "says"), ALL_CASES)
def test_a_plan_breaks_exactly_one_rule(name: str, broken: Plan, at: tuple[int, str, int], says: str) -> None:
    found = list(findings(broken))
    assert {finding.rule.name for finding in found} == {name}
    assert says in str(found[0])
    rank, stream, index = at
    if index >= 0:
        assert (found[0].rank, found[0].stream, found[0].instruction) == at
        assert f"rank {rank}, stream {stream}, instruction {index} (" in str(found[0])
    with pytest.raises(PlanError) as error:
        check(broken)
    assert str(error.value) == str(found[0])
    assert f"(rule {name}: " in str(error.value)


def test_every_rule_is_broken_by_some_plan() -> None:
    assert {name for name, *_ in ALL_CASES} == {rule.name for rule in RULES}
    assert len({rule.name for rule in RULES}) == len(RULES)


LEGAL: dict[str, Callable[[], Plan]] = {
    "an empty plan": plan,
    "operands that end where their buffer or region does": lambda: plan(
        [write(0)._replace(a=local(0, 960)), drop(1, 64, offset=1984)]
    ),
    "transfers of nothing": lambda: plan([write(0, 0, offset=2048), drop(0, 0)], peer=[write(2, 0)]),
    "waits for done of rounds before the call": lambda: plan(
        [wait(LAYOUT.done(1), -2), instruction(Op.WAIT_ALL, arg=0, value=-2)]
    ),
    "events between streams, in any order": lambda: plan([event(Op.AWAIT)], [FENCE, event(Op.RECORD)]),
    "a region on every byte of a slot": lambda: region(nbytes=8192),
    "one's own strip of the heap, and reading another's": lambda: in_heap(
        [write(3, 1024), write(3, 1024, offset=1024)],
        peer=[drop(3, 2048), instruction(Op.READ, 64, dst=local(1), a=pool(region=3))],
    ),
    "reading another's array once it has told where that lies": lambda: in_told_heap(
        [write(3)], peer=[hear(0), drop(3, 2048), instruction(Op.READ, 64, dst=local(1), a=pool(region=3))]
    ),
    "reading another's array after an event of the stream in which it told": lambda: in_told_heap(
        [write(3)], peer=[event(Op.AWAIT), drop(3, 2048)], beside=[hear(0), event(Op.RECORD)]
    ),
    "the same line of a slot and of the heap": lambda: in_heap([write(3)], peer=[write(0)]),
    "neighbouring lines in one round": lambda: plan([write(0)], peer=[write(2, 64, offset=64)]),
    "one line in different slots": lambda: plan([write(0)], peer=[write(2, seq=1)]),
    "a whole line that another rank wrote": lambda: plan([write(0)], peer=[write(2, seq=2)]),
    "part of one's own line again": lambda: plan([write(0), write(0, 8, seq=2)]),
    "part of a line, after an invalidate": lambda: plan([write(0)], peer=[drop(2, seq=2), write(2, 8, seq=2)]),
    "part of a line past the cache, which fetches nothing": lambda: plan(
        [write(0)], peer=[write(2, 8, seq=2, op=Op.WRITE_NT)]
    ),
    "both kinds of store on both sides of a fence": lambda: plan([write(0), FENCE, write(0, op=Op.WRITE_NT)]),
    "a division": lambda: plan([ADD._replace(flags=Flag.DIVIDE, arg=2)]),
    "a kernel": lambda: plan([GEMM]),
}


@pytest.mark.parametrize("name", LEGAL)
def test_legal(name: str) -> None:
    assert list(findings(LEGAL[name]())) == []


def test_a_stage_is_not_reached_where_an_earlier_one_found_something() -> None:
    """Region 9 is looked up nowhere while an opcode is unknown."""
    both = plan([instruction(Op.FENCE)._replace(op=99), drop(9)])
    assert [finding.rule.name for finding in findings(both)] == ["opcode"]


def test_all_findings_of_a_stage_are_told() -> None:
    found = findings(plan([wait(10), drop(9), signal(4)]))
    assert {(finding.rule.name, finding.instruction) for finding in found} == {
        ("doorbell", 0),
        ("region", 1),
        ("owner", 2),
    }


def test_some_ranks_are_checked_without_building_the_others() -> None:
    """Rank 1's defect is not looked for, and nobody asks for rank 0's part."""
    asked: list[int] = []
    broken = plan([write(0)], peer=[FENCE._replace(nbytes=1)])

    def built(rank: int) -> tuple[Frame, RankPart]:
        asked.append(rank)
        return broken.build(rank)

    check(Plan(broken.call, broken.layout, built), [0])
    with pytest.raises(PlanError, match="rank 1, stream main, instruction 0"):
        check(Plan(broken.call, broken.layout, built), [1])
    assert asked == [0, 1]


def test_the_sweep_finds_what_comparing_every_pair_finds() -> None:
    """Two ranks, random ranges: is there any line that both write, byte by byte?"""
    random = np.random.default_rng(7)
    for _ in range(40):
        programs = [
            [
                write(
                    0,
                    int(random.integers(1, 300)),
                    offset=int(random.integers(0, 1500)),
                    seq=int(random.integers(0, 2)),
                )
                for _ in range(6)
            ]
            for _ in range(2)
        ]
        made = plan(programs[0], peer=programs[1])

        def lines(i: Instruction) -> set[tuple[int, int, int]]:
            return {
                (i.dst.seq, card, offset // 64)
                for card, offset in (FRAME.regions[0].map.locate(i.dst.offset + at) for at in range(i.nbytes))
            }

        rivals = any(lines(mine) & lines(theirs) for mine in programs[0] for theirs in programs[1])
        assert rivals == any(finding.rule.name == "one writer" for finding in findings(made))


@pytest.mark.each_value_once
@pytest.mark.deep(rows=lambda ranks: ranks not in (1, 3))
@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_we_ship_breaks_no_rule(collective: str, ranks: int) -> None:
    """Small slots, so that larger sizes take several rounds; unaligned sizes; in place and not."""
    shape = COLLECTIVES[collective]
    small = replace(layout_for(ranks, 6, 1 << 20, 4096, region_bytes=1 << 20), heap_card_bytes=4 << 20)
    for variant in variants(collective):
        for nbytes in (0, 4, 1000, 70_004):
            if variant == "line" and nbytes > 1000:
                continue
            call = Call(collective, variant, ranks, nbytes if shape.moves_data else 0, "f32")
            in_place = nbytes > 4 and may_be_in_place(collective, variant)
            call = replace(call, redop="avg" if "avg" in shape.ops else shape.ops[0], in_place=in_place)
            call = replace(call, root=ranks - 1 if shape.rooted else 0)
            assert list(findings(build(recipe(collective, variant), small, lent_if_zero_copy(call)))) == []


@pytest.mark.parametrize("op", [Op.WAIT, Op.WAIT_ALL, Op.INVALIDATE, Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.AWAIT])
def test_mutants_without_a_synchronizing_instruction_still_load(op: Op) -> None:
    call = Call("all_reduce", "two_shot", 3, 5000, "f32", "sum")
    made = build(recipe("all_reduce", "two_shot"), layout_for(3, 2, 1 << 20, 4096), call)
    part = made.part(1)
    for number, stream in enumerate(part.streams):
        for at in np.flatnonzero(stream.records["op"] == op).tolist():
            shorter = Stream(stream.name, np.delete(stream.records, at))
            streams = tuple(shorter if n == number else s for n, s in enumerate(part.streams))
            check(made.with_part(replace(part, streams=streams)))
