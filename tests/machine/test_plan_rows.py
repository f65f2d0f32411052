"""C says of the rules of single instructions just what their definitions say: that none is broken, or that one is."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from collectives.algorithms.catalog import build, recipe
from cxlemu import _native
from cxlemu.memory.protocol import LINE_BYTES, PAYLOAD_BYTES
from cxlemu.plan import DTYPE_NAMES, Call, Layout, Plan, RedOp
from cxlemu.plan.instructions import OPERAND_FIELDS, RECORD_DTYPE, Records
from cxlemu.plan.rules import findings, references, rows
from cxlemu.plan.rules.program import PlanTable
from faults.mutate.cases import MutationCase, plan_of

PLANS: dict[str, Plan] = {  # every opcode, and every table that an instruction refers to
    str(case): plan_of(case)
    for case in (
        MutationCase("all_reduce", "two_shot", 3, rounds=2),
        MutationCase("all_reduce", "line", 2),
        MutationCase("all_reduce", "zero_copy", 2, rounds=2),
        MutationCase("barrier", "line", 3),
        MutationCase("gemm_all_reduce", "fused", 2),
        MutationCase("broadcast", "naive", 2, checked=True),
    )
}
_LINE = PLANS["all_reduce line 2 ranks"]
PLANS["a mean"] = build(recipe("all_reduce", "line"), _LINE.layout, replace(_LINE.call, redop="avg"))
FIELDS: list[tuple[str, ...]] = [(name,) for name in ("op", "dtype", "redop", "flags", "arg", "value", "nbytes")]
FIELDS += [(name, part) for name in OPERAND_FIELDS for part in ("kind", "id", "seq", "offset")]
FAR = (-(2**63), 2**62, 2**63 - 1)


def numbers(plan: Plan, rank: int, now: int) -> dict[str, Iterable[int]]:
    """For each field, the numbers between which a rule may draw its line; ``now``: what the field has."""
    layout, frame = plan.layout, plan.frame
    counts = (layout.published_count, layout.doorbell_count, len(frame.groups), len(frame.kernels))
    ends = {count + step for count in (*counts, plan.part(rank).events) for step in (-1, 0)}
    return {
        "op": range(20),
        "dtype": range(len(DTYPE_NAMES) + 1),
        "redop": range(len(RedOp) + 1),
        "flags": range(4),
        "arg": {-1, 0, now + 1, *ends},
        "value": {-layout.slots - 1, -layout.slots, -1, 0, frame.rounds - 1, frame.rounds},
        "nbytes": {-1, 0, 1, PAYLOAD_BYTES + 1, now - 1, now + 1, now + LINE_BYTES, *FAR},
        "kind": range(4),
        "id": {0, now + 1, len(frame.regions) - 1, len(frame.regions)},
        "seq": {-1, 0, 1, frame.rounds},
        "offset": {-1, 0, now + 1, now + LINE_BYTES, *FAR},
    }


def column(records: Records, field: tuple[str, ...]) -> NDArray[Any]:
    found: NDArray[Any] = records[field[0]] if len(field) == 1 else records[field[0]][field[1]]
    return found


def spoilt(plan: Plan) -> Iterator[Plan]:
    """Plans in which one field of the first instruction of an opcode has another number."""
    seen: set[int] = set()
    for part in plan.parts:
        for number, stream in enumerate(part.streams):
            for at, op in enumerate(stream.records["op"].tolist()):
                fields = FIELDS if op not in seen else []
                seen.add(op)
                for field in fields:
                    now = int(column(stream.records, field)[at])
                    for value in numbers(plan, part.rank, now)[field[-1]]:
                        records = stream.records.copy()
                        its = column(records, field)
                        its[at] = np.array(value).astype(its.dtype)  # its low bits
                        streams = list(part.streams)
                        streams[number] = replace(stream, records=records)
                        yield plan.with_part(replace(part, streams=tuple(streams)))


@pytest.mark.deep(rows=lambda first: first > 0)
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("name", PLANS)
def test_c_says_the_same_as_the_rules(name: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that may be wrong, every fourth from one of the first four on."""
    plan = PLANS[name]
    assert rows.right(PlanTable(plan, range(plan.ranks)))
    said: set[bool] = set()
    for wrong in islice(spoilt(plan), first, None, 4):
        right = rows.right(PlanTable(wrong, range(wrong.ranks)))
        said.add(right)
        with monkeypatch.context() as patched:
            patched.setattr(rows, "right", lambda _: False)  # then the definitions say it
            told = next(findings(wrong), None)
        assert right == (told is None or told.rule.stage not in rows.STAGES), told
        if right:
            assert next(findings(wrong), None) == told
    assert said == {True, False}


def test_instructions_on_too_many_ranges_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(2, 2, 2, 4096, 2, interleave_bytes=LINE_BYTES)  # a block lies on more granules than there are cards
    plan = build(recipe("broadcast", "all"), layout, Call("broadcast", "all", 2, 1024))
    table, said = PlanTable(plan, range(plan.ranks)), list[bool]()
    for most in range(100):
        for module in (rows, references):
            monkeypatch.setattr(module, "ranges_max", lambda _, most=most: most)
        said.append(rows.right(table))
        assert said[-1] == (not list(references.ranges(table))), most
    assert {*said} == {True, False}


def test_tables_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument in turn, cut short: C looks nowhere else."""
    plan, given = PLANS["gemm_all_reduce fused 2 ranks"], list[Any]()
    monkeypatch.setattr(_native, "rows_right", lambda *arguments: given.extend(arguments) or 0)
    rows.right(PlanTable(plan, range(plan.ranks)))
    monkeypatch.undo()
    assert _native.rows_right(*given) > 0
    ranks = given[1]
    for at, wrong in (
        (0, given[0][: -RECORD_DTYPE.itemsize]),
        (0, given[0][:-1]),
        (1, ranks[:-1]),
        (1, np.where(np.arange(5) == 1, ranks + 1, ranks)),
        (1, np.where(np.arange(5) == 1, -1, ranks)),
        (1, np.where(np.arange(5) == 2, ranks + 1, ranks)),
        (1, np.where(np.arange(5) == 2, -1, ranks)),
        (2, given[2][:-1]),
        (3, given[3][:-1]),
        (5, given[5][:-1]),
        (6, np.zeros_like(given[6])),
        (8, given[8][:, :-1].copy()),
        (9, given[9][:-1]),
    ):
        with pytest.raises(ValueError, match=r"fit|whole"):
            _native.rows_right(*given[:at], wrong, *given[at + 1 :])
