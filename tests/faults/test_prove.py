"""The prover on the plans that we ship: all are right, alone and mixed, and no instruction can be taken away."""

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives.algorithms.catalog import build, recipe, variants
from collectives.builder import Builder
from collectives.builder.alike import AlikeRounds
from collectives.builder.recipes import algorithm, recipes_of, with_checksums
from cxlemu.plan import Call, Instruction, Layout, Op, Plan, encode
from faults.lockstep.counterexample import CallSequence as Execution
from faults.lockstep.counterexample import CounterexampleKind
from faults.lockstep.orders import hasty, in_random_nature
from faults.lockstep.places import data_lines
from faults.prove import Proof, prove, prove_calls
from faults.prove.cases import prove_case
from faults.prove.rounds import shortened
from faults.verdict import Verdict
from faults.zero_copy_calls import lent_if_zero_copy, with_heap
from tests.faults.test_deletions import CASES, EXPOSED, RANKS, Case, Program, deletions, plan_of
from tests.helpers.expected import COLLECTIVES, REDUCTIONS
from tests.helpers.plans import without
from tests.helpers.tiers import examples

SHIPPED = [(collective, variant) for collective in COLLECTIVES for variant in variants(collective)]

CHECKED = [
    (collective, variant)
    for collective in COLLECTIVES
    for variant in variants(collective, checksums=True)
    if variant != "line"
]


def layout_of(ranks: int, slots: int = 2) -> Layout:
    """Several cards, few slots: a ring that soon wraps."""
    return with_heap(Layout(ranks, 2, slots, 2048, 2 * ranks + 4, 256))


def call_of(collective: str, variant: str, ranks: int, nbytes: int) -> Call:
    redop = "sum" if collective in REDUCTIONS else "none"
    return lent_if_zero_copy(Call(collective, variant, ranks, nbytes if collective != "barrier" else 0, "u8", redop))


def right(proof: Proof) -> bool:
    assert proof.verdict is Verdict.OK, proof.reason
    return proof.violation is None and proof.reason == ""


@pytest.mark.deep(rows=lambda ranks: ranks > 3)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_every_plan_that_we_ship_is_right(ranks: int) -> None:
    """Sizes of a broken line, of a broken last chunk, of two rounds."""
    for collective, variant in SHIPPED:
        for nbytes in (8, 200, 900):
            call = call_of(collective, variant, ranks, nbytes)
            assert right(prove_case(recipe(collective, variant), layout_of(ranks), call))


@pytest.mark.deep(rows=lambda ranks: ranks != 2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_with_checksums_they_are_right_as_well(ranks: int) -> None:
    for collective, variant in CHECKED:
        for nbytes in (8, 200, 900):
            call = call_of(collective, variant, ranks, nbytes)
            assert right(prove_case(with_checksums(recipe(collective, variant)), layout_of(ranks), call))


def test_a_checksum_waits_for_the_slot_though_zero_copy_needs_none() -> None:
    """It lies in a doorbell's line, where a slow reader may not have taken the one before."""
    layout = layout_of(2)
    called = [recipe("broadcast", variant) for variant in ("naive", "naive", "zero_copy")]
    call = [call_of("broadcast", one.name, 2, 64) for one in called]
    calls = [build(with_checksums(one), layout, of) for one, of in zip(called, call, strict=True)]
    assert Execution.of(calls).run(hasty(0)).kind is CounterexampleKind.NOTHING
    assert right(prove_calls(calls))


def test_ranks_that_share_hosts_are_right_as_well() -> None:
    for collective, variant in SHIPPED:
        plan = build(recipe(collective, variant), layout_of(4), call_of(collective, variant, 4, 200))
        for hosts in ([0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 0, 0]):
            assert right(prove(plan, hosts=hosts))


@pytest.mark.deep(rows=lambda seed: seed > 0)
@pytest.mark.parametrize("seed", range(3))
def test_all_of_them_mixed_on_one_ring_are_right(seed: int) -> None:
    chosen, layout = random.Random(seed), layout_of(3)
    calls = []
    for collective, variant in SHIPPED * 2:
        call = replace(call_of(collective, variant, 3, chosen.choice([8, 64, 200])), root=chosen.randrange(3))
        calls.append(build(recipe(collective, variant), layout, call))
    chosen.shuffle(calls)
    assert right(prove_calls(calls, obliges=True))
    assert right(prove_calls(calls, mapped=True, obliges=True))


def test_more_ranks_than_one_would_wait_for() -> None:
    for collective, variant, ranks in (
        ("all_reduce", "two_shot", 16),
        ("broadcast", "all", 64),
        ("barrier", "line", 64),
    ):
        layout = Layout(ranks, 6, 4, 1 << 16, 2 * ranks, 1024)
        assert right(prove_case(recipe(collective, variant), layout, call_of(collective, variant, ranks, 4096)))


# --- what an instruction is needed for ----------------------------------------------------------------------------

# With arrays that lie in the pool a rank that does not wait reads its peers' own stores, which nobody flushed.
FOUND_BY = {
    "FLUSH": {"landed"},
    "FENCE": {"landed"},
    "INVALIDATE": {"fresh"},
    "SIGNAL": {"deadlock"},
    "SIGNAL_DATA": {"deadlock"},
    "RECORD": {"deadlock"},
    "WAIT": {"order", "landed", "contract"},
    "WAIT_DATA": {"contract"},
    "WAIT_ALL done": {"order", "payload"},
    "WAIT_ALL published": {"barrier"},
    "WAIT_ALL batch": {"order", "landed", "contract"},
    "AWAIT": {"local"},
}


@pytest.mark.each_value_once
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_deletion_is_a_violation_of_the_rule_that_needs_it(case: Case) -> None:
    assert FOUND_BY.keys() == EXPOSED.keys()
    plan, surprises = plan_of(case), []
    for mapped in (False, True) if plan.call.heap else (False,):
        for rank in range(RANKS):
            program = Program(case, plan, rank)
            for deletion in deletions(plan, rank):
                mutant = without(plan, deletion.rank, deletion.stream, deletion.at)
                calls = [mutant if p is plan else p for p in program.plans]
                found = prove_calls(calls, mapped=mapped)
                rule = found.violation.rule if found.violation else found.verdict.value
                if rule not in FOUND_BY.get(deletion.kind, {"ok"}):
                    surprises.append(f"{deletion}: {rule} {found.reason}")
    assert not surprises, "\n".join(surprises)


# With checksums, and with the obligations of every call.
FOUND_WITH_CHECKSUMS = {
    **FOUND_BY,
    "AWAIT": {"local", "reuse", "contract"},  # what is forwarded came from whoever knew that the slot is free
    "SIGNAL": {"deadlock", "exit"},
    "WAIT_DATA": {"order", "landed", "contract"},
    "WAIT_ALL done": {"order", "reuse"},
    "COMPUTE crc32c": {"contract"},
    "COMPUTE crc32c_check": {"ok"},  # what it finds is damage
}


def synchronizing(plan: Plan, rank: int) -> Iterator[tuple[int, int, str]]:
    """(stream, instruction, what it is)"""
    for number, stream in enumerate(plan.part(rank).streams):
        for at, i in enumerate(stream.instructions):
            name = i.op.name
            if i.op in (*SYNCHRONIZING, Op.SIGNAL_DATA, Op.WAIT_DATA):
                yield number, at, f"{name} done" if i.op == Op.WAIT_ALL else name
            elif i.op == Op.COMPUTE:
                yield number, at, f"{name} {plan.frame.kernels[i.arg].name}"


@pytest.mark.each_value_once
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("collective", "variant"), CHECKED)
def test_every_deletion_is_a_violation_with_checksums(collective: str, variant: str, ranks: int) -> None:
    layout = replace(layout_of(ranks), slots=1)
    plan, surprises = (
        build(with_checksums(recipe(collective, variant)), layout, call_of(collective, variant, ranks, 100)),
        [],
    )
    for part in plan.parts:
        for stream, at, name in synchronizing(plan, part.rank):
            mutant = moved(plan, part.rank, stream, at, -1)
            found = prove(mutant)
            rule = found.violation.rule if found.violation else found.verdict.value
            if rule not in FOUND_WITH_CHECKSUMS.get(name, set()):
                surprises.append(
                    f"{name} at rank {part.rank}, stream {stream}, instruction {at}: {rule} {found.reason}"
                )
    assert not surprises, "\n".join(surprises)


def test_obligations_find_in_one_call_what_otherwise_takes_another_one_before_it() -> None:
    """Who retrieves from all ranks need not wait for them to be done, as long as all calls are of this kind."""
    plan = plan_of(Case("all_gather", "naive"))
    [first, *_] = [d for d in deletions(plan, 0) if d.kind == "WAIT_ALL done"]
    assert right(prove_calls([without(plan, first.rank, first.stream, first.at)] * 5, obliges=True))
    proof = prove(without(plan, first.rank, first.stream, first.at))
    assert proof.violation is not None and proof.violation.rule == "reuse"
    assert "without having waited until rank" in proof.reason


def test_of_arrays_in_the_pool_the_user_may_write_at_once() -> None:
    """Without the last wait a call returns while its peers still read."""
    plan = plan_of(Case("broadcast", "zero_copy"))
    deletion = [d for d in deletions(plan, plan.call.root) if d.kind == "WAIT_ALL done"][-1]
    mutant = without(plan, deletion.rank, deletion.stream, deletion.at)
    for mapped, obliges in ((False, True), (True, True), (True, False)):
        found = prove_calls([mutant], mapped=mapped, obliges=obliges)
        assert (found.violation.rule, found.violation.mapped) == ("order", mapped)
        assert "rank 0's call has returned, whose user may store there at once" in found.reason
        assert right(prove_calls([plan], mapped=mapped, obliges=obliges))
    assert right(prove_calls([mutant]))


# --- proofs and executions ----------------------------------------------------------------------------------------

SMALL = [(c, v) for c, v in SHIPPED if c in ("all_gather", "all_reduce", "broadcast") and v != "zero_copy"]
SYNCHRONIZING = (Op.FLUSH, Op.FENCE, Op.SIGNAL, Op.WAIT, Op.WAIT_ALL, Op.INVALIDATE, Op.RECORD, Op.AWAIT)


def moved(plan: Plan, rank: int, stream: int, at: int, to: int) -> Plan:
    """One instruction of the plan elsewhere in its stream, or gone (to = -1)."""
    part = plan.part(rank)
    instructions: list[Instruction] = list(part.streams[stream].instructions)
    taken = instructions.pop(at)
    if to >= 0:
        instructions.insert(to % (len(instructions) + 1), taken)
    changed = replace(part.streams[stream], records=encode(instructions))
    return plan.with_part(replace(part, streams=(*part.streams[:stream], changed, *part.streams[stream + 1 :])))


@examples(60, derandomize=True)
@given(st.data())
def test_no_execution_contradicts_a_proof(data: st.DataObject) -> None:
    """Whatever was moved or taken away: what is proved right goes right, with any order and any nature."""
    collective, variant = data.draw(st.sampled_from(SMALL))
    layout = Layout(2, 2, 1, 512, 8, 64)
    plan = build(recipe(collective, variant), layout, call_of(collective, variant, 2, 100))
    part = plan.part(data.draw(st.integers(0, 1)))
    stream = data.draw(st.sampled_from([s for s, one in enumerate(part.streams) if len(one.records)]))
    records = part.streams[stream].records
    [candidates] = np.isin(records["op"], SYNCHRONIZING).nonzero()
    at, to = int(data.draw(st.sampled_from(candidates.tolist()))), data.draw(st.integers(-1, len(records)))
    mutant = moved(plan, part.rank, stream, at, to)
    calls = [mutant] * 3
    if prove_calls(calls).verdict is Verdict.OK:
        order = in_random_nature(data.draw(st.integers(0, 1000)), range(2), data_lines(calls), 0.4)
        assert Execution.of(calls).run(order).kind is CounterexampleKind.NOTHING


# --- rounds that repeat -------------------------------------------------------------------------------------------


TWO_LOOPS = ("two_shot_batched", "two_shot_crosswise")


@pytest.mark.deep(rows=lambda collective, variant: variant != variants(collective)[0])
@pytest.mark.parametrize(
    ("collective", "variant"), [its for its in SHIPPED if its[0] != "barrier" and its[1] != "zero_copy"]
)
def test_calls_of_many_rounds_are_proved_by_fewer_alike(collective: str, variant: str) -> None:
    """The longer call, looked at as a whole, is right as well; calls of two loops are always looked at as a whole."""
    own, layout = recipe(collective, variant), layout_of(2)
    plan = build(own, layout, call_of(collective, variant, 2, 200_000))
    proof = prove_case(own, layout, plan.call)
    assert right(proof) and (proof.rounds_alike > 0) == (variant not in TWO_LOOPS)
    shorter, less = shortened(own, layout, plan.call)
    assert (shorter.rounds, less) == (plan.rounds - less, proof.rounds_alike)
    assert right(prove_calls([plan], obliges=True))


def test_what_is_wrong_with_rounds_in_columns_shows_in_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that never says that it is done with rounds in columns, and one round more than two laps has none."""
    write = AlikeRounds._write

    def forgetful(self: AlikeRounds, name: str, last: Any, apart: Any, rounds: int) -> None:
        if len(last):
            write(self, name, last, apart, rounds)

    own, layout = recipe("broadcast", "all"), layout_of(2)
    call = call_of("broadcast", "all", 2, 64 * 3584)  # 64 whole rounds
    assert right(found := prove_case(own, layout, call)) and found.rounds_alike > 0
    monkeypatch.setattr(AlikeRounds, "_write", forgetful)
    found = prove_case(own, layout, call)
    assert (found.verdict, found.rounds_alike > 0) == (Verdict.VIOLATION, True)


def test_the_right_fold_of_other_bytes_is_a_violation() -> None:
    """Rank 3 mixes up where two results go, which ranks before it have folded alike and in the right places."""
    plan = build(recipe("all_reduce", "rabenseifner"), layout_of(4), call_of("all_reduce", "rabenseifner", 4, 1024))
    part = plan.part(3)
    [stream] = [stream for stream in part.streams if np.any(stream.records["op"] == Op.READ)]
    records = stream.records.copy()
    reads, places = np.flatnonzero(records["op"] == Op.READ)[:2], records["dst"]["offset"]
    places[reads] = places[reads[::-1]]
    streams = tuple(replace(one, records=records) if one is stream else one for one in part.streams)
    found = prove(plan.with_part(replace(part, streams=streams)), without={"local"}).violation
    assert found is not None and (found.rule, found.rank) == ("contract", 3)


def test_an_algorithm_that_differs_in_one_round_is_not_shortened() -> None:
    @algorithm("broadcast", variants=("all",))
    def odd(b: Builder) -> None:
        for chunks in b.rounds(b.nbytes, writers=[b.root], spread="cards"):
            for chunk in chunks[::-1] if chunks[0].seq == 3 else chunks:
                if b.is_root:
                    b.copy(b.output(chunk.offset), b.input(chunk.offset), chunk.nbytes)
                    b.publish(chunk, b.input(chunk.offset))
                else:
                    b.retrieve(b.output(chunk.offset), chunk, b.root)

    [own], layout = recipes_of(odd), layout_of(2)
    call = call_of("broadcast", "all", 2, 100_000)
    plan, less = shortened(own, layout, call)
    assert (plan.call.nbytes, less) == (call.nbytes, 0)
    assert right(prove_case(own, layout, call))
