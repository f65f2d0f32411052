"""A READ whose result nobody uses is held to the rules, by prover and explorer alike, and both say why."""

from dataclasses import replace

import numpy as np
import pytest

from collectives.algorithms.catalog import build, recipe
from cxlemu.plan import Call, Kind, Op, Plan
from faults.dead import WHY
from faults.explore.plans import explore_plan, tiny_layout
from faults.prove import prove_calls
from faults.verdict import Verdict


def with_early_read() -> Plan:
    """An all_gather in which rank 1 reads its peer's block before it waits for it, and again when it has."""
    plan = build(recipe("all_gather", "naive"), tiny_layout(2, lines=3), Call("all_gather", "naive", 2, 64, "u8"))
    part = plan.part(1)
    [stream] = part.streams
    read = next(k for k, i in enumerate(stream.instructions) if i.op == Op.READ)
    early = stream.records[read]
    return plan.with_part(replace(part, streams=(replace(stream, records=np.insert(stream.records, 0, early)),)))


@pytest.mark.parametrize("calls", [1, 3])
def test_a_read_that_is_overwritten_unused_is_a_violation_that_says_why(calls: int) -> None:
    plan = with_early_read()
    proof, explored = prove_calls([plan] * calls), explore_plan([plan] * calls)
    assert proof.verdict is explored.verdict is Verdict.VIOLATION
    assert proof.violation is not None and explored.finding is not None
    assert proof.violation.sentence.startswith("rank 1 reads line 0") and proof.violation.sentence.endswith(WHY)
    assert explored.finding.text.startswith("rank 1 stream 0 sees") and explored.finding.text.endswith(WHY)


def test_what_is_used_or_is_the_result_needs_no_such_reason() -> None:
    plan = build(recipe("all_gather", "naive"), tiny_layout(2, lines=3), Call("all_gather", "naive", 2, 64, "u8"))
    part = plan.part(1)
    [stream] = part.streams
    records = stream.records[[i.op != Op.WAIT for i in stream.instructions]]
    wrong = plan.with_part(replace(part, streams=(replace(stream, records=records),)))
    proof, explored = prove_calls([wrong]), explore_plan(wrong)
    assert proof.verdict is explored.verdict is Verdict.VIOLATION
    assert explored.finding is not None and WHY not in proof.reason + explored.finding.text


def test_a_read_of_which_some_bytes_are_used_before_is_not_dead() -> None:
    plan = with_early_read()
    part = plan.part(1)
    [stream] = part.streams
    write = next(k for k, i in enumerate(stream.instructions) if i.op == Op.WRITE)
    records = stream.records.copy()
    records["a"][write] = records["dst"][0]  # what was read too early is published
    assert stream.instructions[0].dst.kind == Kind.BUFFER
    proof = prove_calls([plan.with_part(replace(part, streams=(replace(stream, records=records),)))])
    assert proof.verdict is Verdict.VIOLATION and WHY not in proof.reason
