"""Each rule of the prover: a plan that keeps it, the same plan with a mistake, and that nothing else finds this one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe
from collectives.contracts import COLLECTIVES
from cxlemu.errors import ArgumentError, PlanError
from cxlemu.plan import Call, Instruction, Kernel, Layout, Op, Operand, Plan, encode
from cxlemu.plan.kernels import KERNELS
from faults.prove import RULES, prove_calls
from faults.verdict import Verdict
from tests.helpers.by_hand import FENCE, local, pool
from tests.helpers.prove_programs import (
    INPUT,
    OUTPUT,
    Program,
    await_,
    copy,
    done,
    drop,
    flush,
    load,
    plan,
    record,
    ring,
    ring_data,
    store,
    store_nt,
    wait,
    wait_all,
    wait_data,
)
from tests.helpers.tables import with_rows


class Mistake(NamedTuple):
    """``wrong`` is ``right`` with one instruction less, more or elsewhere. ``words``: of the sentence that tells it."""

    rule: str
    right: Sequence[Program]
    wrong: Sequence[Program]
    words: str
    hosts: Sequence[int] | None = None
    rounds: int = 1
    obliges: bool = False


PUBLISHES = [store(0, 64), flush(0, 64), FENCE, ring(0)]
READS = [wait(0), drop(0, 64), load(0, 64)]

# The reader answers, so that the pass meets its load before the store that overwrites it.
ANSWERS_EARLY = [wait(1), ring(0), drop(0, 8), load(0, 8)]
ANSWERS = [wait(1), drop(0, 8), load(0, 8), ring(0)]
OVERWRITES = [store(0, 8), flush(0, 8), FENCE, ring(1), wait(0), store(0, 8)]

# Rank 1's store over or beside one of rank 0, and rank 2, which reads one of the two.
OVER = [wait(0), store(0, 64), flush(0, 64), FENCE, ring(1)]
BESIDE = [wait(0), drop(0, 64), store(0, 8), flush(0, 8), FENCE, ring(1)]
OTHER = [store(8, 8), flush(8, 8), FENCE, ring(0)]
STORES_AND_IS_DONE = [store(0, 8), flush(0, 8), FENCE, done(0, 2)]


def reads(at: int, nbytes: int) -> list[Instruction]:
    return [wait(1), drop(0, 64), load(at, nbytes)]


MISTAKES = {
    "reads before the signal": Mistake(
        "order", [PUBLISHES, READS], [PUBLISHES, READS[1:]], "rank 1 reads line 0 of slot 0 on card 0 but has waited"
    ),
    "reads what nobody wrote": Mistake(
        "order", [PUBLISHES, READS], [PUBLISHES, [*READS[:2], load(64, 8)]], "which nobody has written"
    ),
    "overwrites before all have read": Mistake(
        "order", [ANSWERS, OVERWRITES], [ANSWERS_EARLY, OVERWRITES], "rank 1 overwrites line 0 of slot 0 on card 0"
    ),
    "no flush": Mistake("landed", [PUBLISHES, READS], [[PUBLISHES[0], *PUBLISHES[2:]], READS], "rank 0 did not flush"),
    "no fence": Mistake("landed", [PUBLISHES, READS], [[*PUBLISHES[:2], ring(0)], READS], "rank 0 did not fence"),
    "flushed before the store": Mistake(
        "landed",
        [PUBLISHES, READS],
        [[flush(0, 64), store(0, 64), FENCE, ring(0)], READS],
        "rank 0 did not flush after its store",
    ),
    "flushed all but the last line": Mistake(
        "landed",
        [[store(0, 72), flush(0, 72), FENCE, ring(0)], [wait(0), drop(0, 72), load(0, 72)]],
        [[store(0, 72), flush(0, 64), FENCE, ring(0)], [wait(0), drop(0, 72), load(0, 72)]],
        "line 1 of slot 0 on card 0, which rank 0 did not flush",
    ),
    "non-temporal, no fence": Mistake(
        "landed",
        [[store_nt(0, 64), FENCE, ring(0)], READS],
        [[store_nt(0, 64), ring(0)], READS],
        "rank 0 did not fence",
    ),
    "another rank of the host reads non-temporal stores": Mistake(
        "landed",
        [[store_nt(0, 64), FENCE, ring(0)], [wait(0), load(0, 64)]],
        [[store_nt(0, 64), ring(0)], [wait(0), load(0, 64)]],
        "rank 0 did not fence",
        hosts=[0, 0],
    ),
    "no invalidate": Mistake(
        "fresh", [PUBLISHES, READS], [PUBLISHES, [wait(0), load(0, 64)]], "did not invalidate it after the wait"
    ),
    "another host has invalidated": Mistake(
        "fresh",
        [PUBLISHES, [wait(0), wait(2), drop(0, 64), load(0, 64)], [*READS, ring(2)]],
        [PUBLISHES, [wait(0), wait(2), load(0, 64)], [*READS, ring(2)]],
        "rank 1 reads line 0 of slot 0 on card 0 but did not invalidate it after the wait",
    ),
    "invalidated before the wait": Mistake(
        "fresh", [PUBLISHES, READS], [PUBLISHES, [drop(0, 64), wait(0), load(0, 64)]], "before the wait, not after it"
    ),
    "invalidated before the store, which came later": Mistake(
        "fresh", [READS, PUBLISHES], [[drop(0, 64), wait(0), load(0, 64)], PUBLISHES], "before the wait, not after it"
    ),
    "reads beside what was written to the same line": Mistake(
        "order",
        [[store(0, 72), flush(0, 72), FENCE, ring(0)], [wait(0), drop(0, 72), load(64, 8)]],
        [[store(0, 72), flush(0, 72), FENCE, ring(0)], [wait(0), drop(0, 72), load(72, 8)]],
        "which nobody has written",
    ),
    "flushed, not fenced, by the reader": Mistake(
        "fresh",
        [PUBLISHES, [wait(0), flush(0, 64), FENCE, load(0, 64)]],
        [PUBLISHES, [wait(0), flush(0, 64), load(0, 64)]],
        "did not fence",
    ),
    "an older store beneath": Mistake(
        "older_write",
        [PUBLISHES, OVER, reads(0, 64)],
        [[store(0, 64), ring(0)], OVER, reads(0, 64)],
        "an older store of rank 0 may still arrive",
    ),
    "dirty residue": Mistake(
        "residue",
        [OTHER, BESIDE, reads(0, 8)],
        [[store(8, 8), ring(0)], BESIDE, reads(0, 8)],
        "the line that rank 0 left dirty",
    ),
    "stale allocate": Mistake(
        "stale_allocate",
        [OTHER, BESIDE, reads(8, 8)],
        [OTHER, [wait(0), *BESIDE[2:]], reads(8, 8)],
        "rank 1 stored to in part while holding an older copy",
    ),
    "false sharing": Mistake(
        "false_sharing",
        [OTHER, [wait(0), *BESIDE[1:]], [wait(0), *reads(0, 16)]],
        [OTHER, BESIDE[2:], [wait(0), *reads(0, 16)]],
        "stores beside it",
    ),
    "a payload over one that was not taken": Mistake(
        "payload",
        [[ring_data(0), wait(1), ring_data(0, value=1)], [wait_data(0), ring(1)]],
        [[ring_data(0), wait(1), ring_data(0, value=1)], [wait(0), ring(1), wait_data(0)]],
        "which rank 1 may not have taken yet",
        rounds=2,
    ),
    "the fence of a neighbour": Mistake(
        "fence_scope",
        [[store(0, 8), flush(0, 8), FENCE, ring(0)], [wait(0), ring(1)], reads(0, 8)],
        [[store(0, 8), flush(0, 8), ring(0)], [wait(0), FENCE, ring(1)], reads(0, 8)],
        "rank 0 did not fence",
        hosts=[0, 0, 1],
    ),
    "streams that race for a buffer": Mistake(
        "local",
        [[[store(0, 8), record(0)], [await_(0), copy(0, 1)]]],
        [[[store(0, 8)], [copy(0, 1)]]],
        "rank 0 stores to line 0 of its own buffer while stream s0 may still read it",
    ),
    "done before all has landed": Mistake(
        "exit",
        [STORES_AND_IS_DONE, [done(1, 2)]],
        [[store(0, 8), flush(0, 8), done(0, 2)], [done(1, 2)]],
        "rank 0's store to line 0 of slot 0 on card 0 may not have landed",
        obliges=True,
    ),
    "done before all is read": Mistake(
        "exit",
        [[*PUBLISHES, done(0, 2)], [*READS, done(1, 2)]],
        [[*PUBLISHES, done(0, 2)], [*READS[:2], done(1, 2), READS[2]]],
        "rank 1 may still be reading line 0 of slot 0",
        obliges=True,
    ),
    "a slot taken from those who are not done": Mistake(
        "reuse",
        [[wait_all(0, -1), *STORES_AND_IS_DONE], [done(1, 2)]],
        [STORES_AND_IS_DONE, [done(1, 2)]],
        "without having waited until rank 1",
        obliges=True,
    ),
}


def proof_of(mistake: Mistake, programs: Sequence[Program], **others: object):  # type: ignore[no-untyped-def]
    one = plan(*programs, rounds=mistake.rounds)
    calls = [one, one] if mistake.rule == "reuse" else [one]
    return prove_calls(calls, hosts=mistake.hosts, obliges=mistake.obliges, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MISTAKES)
def test_the_plan_is_right_and_its_mistake_is_told(name: str) -> None:
    mistake = MISTAKES[name]
    assert proof_of(mistake, mistake.right).verdict is Verdict.OK
    violation = proof_of(mistake, mistake.wrong).violation
    assert violation is not None
    assert violation.rule == ("landed" if mistake.rule == "fence_scope" else mistake.rule)
    assert mistake.words in violation.sentence


FOUND_TWICE = "reads before the signal"  # what no signal ordered has not landed, either


@pytest.mark.parametrize("name", [name for name in MISTAKES if name != FOUND_TWICE])
def test_switched_off_the_rule_lets_the_mistake_slip_through(name: str) -> None:
    """No other rule finds it: each is needed."""
    mistake = MISTAKES[name]
    assert proof_of(mistake, mistake.wrong, without={mistake.rule}).verdict is Verdict.OK


def shipped(collective: str, variant: str, nbytes: int) -> Plan:
    layout = Layout(3, 2, 2, 1024, 8, 256)
    op = "sum" if COLLECTIVES[collective].reduces else "none"
    return build(recipe(collective, variant), layout, Call(collective, variant, 3, nbytes, redop=op))


def folding_last_first(whole: Plan, rank: int) -> Plan:
    part = whole.part(rank)
    [main] = part.streams
    turned = [i._replace(a=i.c, c=i.a) if i.op == Op.REDUCE else i for i in main.instructions]
    return whole.with_part(replace(part, streams=(replace(main, records=encode(turned)),)))


def deleted(whole: Plan, rank: int, op: Op) -> Plan:
    """Without the first such instruction of the rank."""
    part = whole.part(rank)
    streams = [stream.instructions for stream in part.streams]
    number = next(s for s, one in enumerate(streams) if any(i.op == op for i in one))
    at = next(k for k, i in enumerate(streams[number]) if i.op == op)
    kept = replace(part.streams[number], records=np.delete(part.streams[number].records, at))
    return whole.with_part(replace(part, streams=(*part.streams[:number], kept, *part.streams[number + 1 :])))


@with_rows(
    ("barrier", deleted(shipped("barrier", "line", 0), 1, Op.WAIT_ALL)),
    ("contract", deleted(shipped("all_gather", "line", 56), 1, Op.WAIT_DATA)),
    ("fold_order", folding_last_first(shipped("all_reduce", "aggregate", 512), 1)),
    ids=["barrier", "contract", "fold_order"],
)
def test_promises_of_collectives_are_rules_as_well(rule: str, mutant: Plan) -> None:
    found = prove_calls([mutant, mutant])
    assert found.violation is not None and found.violation.rule == rule
    assert found.violation.rank == 1
    assert prove_calls([mutant, mutant], without={rule}).verdict is Verdict.OK


def test_every_rule_has_a_mistake_that_only_it_finds() -> None:
    in_shipped_plans = {"barrier", "contract", "fold_order"}
    ablated = {mistake.rule for name, mistake in MISTAKES.items() if name != FOUND_TWICE}
    assert ablated | in_shipped_plans == set(RULES)


# --- what is right though it looks wrong --------------------------------------------------------------------------

RIGHT = {
    "a host sees its own stores": [[*PUBLISHES, load(0, 64)]],
    "and those of its other ranks": [[store(0, 64), ring(0)], [wait(0), load(0, 64)]],
    "a flush of any rank of the host will do, with its own fence": [
        [store(0, 8), ring(0)],
        [wait(0), flush(0, 8), FENCE, ring(1)],
        reads(0, 8),
    ],
    "an invalidate writes back what is dirty": [[store(0, 64), drop(0, 64), ring(0)], READS],
    "non-temporal stores beside a store carry nothing along": [
        [store_nt(8, 8), ring(0)],
        [wait(0), *BESIDE[1:]],
        reads(0, 8),
    ],
    "a rank's cached store waits for its non-temporal ones": [
        [store_nt(0, 8), store(8, 8), ring(0)],
        [wait(0), drop(0, 8), load(0, 8)],
    ],
    "events order streams as program order does": [
        [[store(0, 64), flush(0, 64), record(0)], [await_(0), FENCE, ring(0)]],
        READS,
    ],
    "the same signal twice is once": [[*PUBLISHES, ring(0)], READS],
    "the same payload twice is once": [[ring_data(0), ring_data(0), wait(1)], [wait_data(0), ring(1)]],
    "stores that nobody reads may race": [[store(0, 8)], [store(0, 8)]],
}
HOSTS = {
    "and those of its other ranks": [0, 0],
    "a flush of any rank of the host will do, with its own fence": [0, 0, 1],
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_proved(name: str) -> None:
    found = prove_calls([plan(*RIGHT[name])], hosts=HOSTS.get(name))
    assert (found.verdict, found.reason) == (Verdict.OK, "")


# --- what the prover cannot tell, and what is no plan -------------------------------------------------------------


def test_waits_that_nothing_satisfies_are_a_deadlock() -> None:
    for programs in ([[wait(1)], []], [[wait(1), ring(0)], [wait(0), ring(1)]], [[await_(0)], []]):
        found = prove_calls([plan(*programs)])
        assert found.violation is not None and found.violation.rule == "deadlock"
        assert (found.violation.rank, found.violation.at) == (0, 0)
        assert "rank 0 waits for what never happens" in found.reason


UNKNOWN = {"no wait orders the two": [[ring(0)], [ring(0)]], "a smaller value": [[ring(0, value=1), ring(0)], []]}


@pytest.mark.parametrize("words", UNKNOWN)
def test_doorbells_without_one_writer_and_rising_values_are_not_judged(words: str) -> None:
    found = prove_calls([plan(*UNKNOWN[words], rounds=2)])
    assert (found.verdict, found.violation) == (Verdict.UNKNOWN, None)
    assert words in found.reason


# --- kernels ------------------------------------------------------------------------------------------------------

CHECKSUM, CHECK, GEMM = range(3)


def computing(*programs: Program, nbytes: int = 0) -> Plan:
    """With a table of kernels: checksums of 8 bytes, and a tile of one number."""
    whole = plan(*programs, nbytes=nbytes)
    kernels = (Kernel("crc32c", (8,)), Kernel("crc32c_check", (8,)), Kernel("gemm_f32", (1, 1, 1)))
    frame = replace(whole.frame, kernels=kernels)
    return Plan(whole.call, whole.layout, lambda rank: (frame, whole.part(rank)))


def compute(kernel: int, dst: Operand, *sources: Operand) -> Instruction:
    a, b = (*sources, *[Operand()] * 2)[:2]
    return Instruction(Op.COMPUTE, arg=kernel, nbytes=4 if kernel == GEMM else 8, dst=dst, a=a, b=b)


SUM = compute(CHECKSUM, local(OUTPUT, 64), local(INPUT))
SENDS_IT = Instruction(Op.SIGNAL_DATA, nbytes=8, a=local(OUTPUT, 64))
SENDS = [store(0, 8), flush(0, 8), FENCE, SUM, SENDS_IT]
COMPARED = compute(CHECK, local(OUTPUT, 64), local(OUTPUT, 128), local(OUTPUT, 192))
TAKES = [
    Instruction(Op.WAIT_DATA, nbytes=8, dst=local(OUTPUT, 192)),
    drop(0, 8),
    Instruction(Op.READ, nbytes=8, dst=local(OUTPUT, 128), a=pool(0)),
    COMPARED,
]
TILE = compute(GEMM, local(OUTPUT), local(INPUT), local(INPUT, 4))


def test_checksums_that_are_of_what_came_with_them_are_right() -> None:
    assert prove_calls([computing(SENDS, TAKES)]).verdict is Verdict.OK


@with_rows(
    ([*SENDS[:3], SENDS_IT], TAKES),
    ([*SENDS[:3], SENDS_IT, SUM], TAKES),
    ([*SENDS[:3], compute(CHECKSUM, local(OUTPUT, 64), local(INPUT, 8)), SENDS_IT], TAKES),
    (SENDS, [*TAKES[:3], compute(CHECK, local(OUTPUT, 64), local(OUTPUT, 128), local(OUTPUT, 193))]),
    (SENDS, [*TAKES[:3], compute(CHECK, local(OUTPUT, 64), local(OUTPUT, 129), local(OUTPUT, 192))]),
    (SENDS, [*TAKES[:2], COMPARED, TAKES[2]]),
    ids=["never made", "sent before", "of other bytes", "another checksum", "compares other bytes", "compares before"],
)
def test_a_checksum_of_other_bytes_is_a_violation(sends: Program, takes: Program) -> None:
    found = prove_calls([computing(sends, takes)])
    assert found.violation is not None and found.violation.rule == "contract"
    assert "rank 1 compares bytes with a checksum of other bytes or of none" in found.reason
    assert prove_calls([computing(sends, takes)], without={"contract"}).verdict is Verdict.OK


def test_a_checksum_is_no_part_of_a_result() -> None:
    right = [copy(OUTPUT, INPUT), compute(CHECKSUM, local(OUTPUT, 64), local(INPUT))]
    wrong = [copy(OUTPUT, INPUT), compute(CHECKSUM, local(OUTPUT), local(INPUT))]
    assert prove_calls([computing(right, nbytes=8)]).verdict is Verdict.OK
    found = prove_calls([computing(wrong, nbytes=8)])
    assert found.violation is not None and found.violation.rule == "contract"


@pytest.mark.parametrize("number", range(2), ids=["it loads", "it stores"])
def test_kernels_race_for_local_memory_as_copies_do(number: int) -> None:
    other = [copy(INPUT, OUTPUT), Instruction(Op.COPY, nbytes=8, dst=local(INPUT, 64), a=local(OUTPUT, 64))][number]
    right, wrong = [[[SUM, record(0)], [await_(0), other]], [[SUM, record(0)], [other, await_(0)]]]
    assert prove_calls([computing(right)]).verdict is Verdict.OK
    found = prove_calls([computing(wrong)])
    assert found.violation is not None and found.violation.rule == "local"
    assert prove_calls([computing(wrong)], without={"local"}).verdict is Verdict.OK


@with_rows([], [Instruction(Op.REDUCE_LOCAL, nbytes=4, dst=TILE.dst, a=TILE.dst, b=TILE.a, dtype=6, redop=1)])
def test_of_what_an_unknown_kernel_makes_only_the_value_is_unknown(
    more: list[Instruction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KERNELS, "gemm_f32", replace(KERNELS["gemm_f32"], product=""))
    found = prove_calls([computing([TILE, *more], nbytes=4)])
    assert (found.verdict, found.violation) == (Verdict.UNKNOWN, None)
    assert found.reason.startswith("call 0, rank 0, stream 0, instruction 0 computes part of a result")
    assert "synchronization is proved, values computed by kernel gemm_f32 are not" in found.reason
    assert prove_calls([computing([TILE, *more], nbytes=4)], without={"contract"}).verdict is Verdict.OK
    assert prove_calls([computing([TILE, *more])]).verdict is Verdict.OK  # nothing is promised of it


def test_a_product_is_no_fold_of_inputs() -> None:
    found = prove_calls([computing([TILE], nbytes=4)])
    assert found.violation is not None and found.violation.rule == "contract"


def test_a_race_is_found_wherever_kernels_compute() -> None:
    sends = [compute(GEMM, local(INPUT, 64), local(INPUT), local(INPUT, 4)), *PUBLISHES]
    assert prove_calls([computing(sends, READS)]).verdict is Verdict.OK
    found = prove_calls([computing(sends, [READS[0], READS[2]])])
    assert found.violation is not None and found.violation.rule == "fresh"


def test_of_bytes_that_nobody_wrote_nothing_is_computed() -> None:
    nothing = compute(GEMM, local(OUTPUT), local(INPUT), local(OUTPUT, 64))
    found = prove_calls([computing([nothing], nbytes=4)])
    assert found.violation is not None and found.violation.rule == "contract"


@with_rows(
    (SUM._replace(arg=3), "a kernel is one of the plan's"),
    (SUM._replace(a=local(INPUT, 505)), "operand a is 8 bytes at 505"),
    (SUM._replace(dst=local(7)), "no buffer 7"),
    (SUM._replace(a=Operand()), "cannot take this plan"),
)
def test_kernels_that_could_not_run_are_refused(instruction: Instruction, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        prove_calls([computing([instruction])])


def test_a_kernel_that_there_is_not_is_refused() -> None:
    whole = plan([SUM])
    frame = replace(whole.frame, kernels=(Kernel("nonsense"),))
    with pytest.raises(PlanError, match=r"a kernel is one of cxlemu/plan/kernels\.py"):
        prove_calls([Plan(whole.call, whole.layout, lambda rank: (frame, whole.part(rank)))])


# --- questions ----------------------------------------------------------------------------------------------------


def test_questions_that_mean_nothing_are_refused() -> None:
    one, other = plan([ring(0)], []), plan([ring(0)], [], [])
    for words, ask in {
        "no calls to prove": lambda: prove_calls([]),
        "share no ring": lambda: prove_calls([one, other]),
        "3 hosts are named for 2 ranks": lambda: prove_calls([one], hosts=[0, 1, 2]),
        "unknown rule 'fence'": lambda: prove_calls([one], without={"fence"}),
    }.items():
        with pytest.raises(ArgumentError, match=words):
            ask()


@pytest.mark.parametrize(
    "broken",
    [
        Instruction(Op.READ, nbytes=64, dst=load(0, 64).dst, a=load(480, 64).a),
        Instruction(Op.SIGNAL, arg=999),
        Instruction(Op.AWAIT, arg=77),
        Instruction(Op.COPY, nbytes=8, dst=copy(1, 0).dst._replace(id=9), a=copy(1, 0).a),
        Instruction(Op.SIGNAL, arg=0, value=-1),
    ],
    ids=["beyond the region", "no doorbell", "no event", "no buffer", "before the call"],
)
def test_records_that_could_not_be_executed_are_refused(broken: Instruction) -> None:
    with pytest.raises(PlanError, match="rank 1"):
        prove_calls([plan([ring(0)], [broken])])
