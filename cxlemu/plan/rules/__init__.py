"""The rules that every plan obeys, as a table. They are structural: the prover decides whether a plan is right.

A plan without its fences, flushes, waits or invalidates is wrong, and breaks no rule here: faults are made of
such plans. Rules come in stages: a later stage indexes with what the earlier ones have vouched for, and is not
reached where they found something, so records may come from anywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from cxlemu.errors import PlanRuleError
from cxlemu.plan.plan import Plan
from cxlemu.plan.rules import fields, lines, references, rows, tables
from cxlemu.plan.rules.program import Defect, PlanTable

__all__ = ["RULES", "Rule", "RuleFinding", "check", "findings"]


class Rule(NamedTuple):
    """One rule."""

    stage: str  # the rules that are checked together with it
    name: str  # a word or two
    sentence: str  # what every plan obeys, for messages
    defects: Callable[[PlanTable], Iterator[Defect]]  # finds where a plan does not


class RuleFinding(NamedTuple):
    """A broken rule. ``rank`` is -1 for tables that all ranks share, ``instruction`` is -1 for tables."""

    rule: Rule
    detail: str
    rank: int = -1
    stream: str = ""
    instruction: int = -1
    text: str = ""

    def __str__(self) -> str:
        where = f"rank {self.rank}" if self.rank >= 0 else "all ranks"
        if self.instruction >= 0:
            where += f", stream {self.stream}, instruction {self.instruction} ({self.text})"
        return f"{where}: {self.detail} (rule {self.rule.name}: {self.rule.sentence})"


RULES: tuple[Rule, ...] = (
    Rule("tables", "layout", "the layout has the call's ranks, cards, slots and whole lines", tables.layout),
    Rule("tables", "regions", "a region lies in its slot or in the heap, on existing cards", tables.regions),
    Rule("tables", "groups", "a group names one or more existing doorbells", tables.groups),
    Rule("tables", "kernels", "a kernel is one of cxlemu/plan/kernels.py", tables.kernels),
    Rule("tables", "buffers", "buffers differ in name; one inside another fits in it", tables.buffers),
    Rule("tables", "streams", "a rank's streams have names of their own", tables.streams),
    Rule("fields", "opcode", "an opcode is one of the instruction set", fields.opcode),
    Rule("fields", "operands", "an instruction has the operands of its signature", fields.operands),
    Rule("fields", "unused", "a field that an instruction does not use is zero", fields.unused),
    Rule("fields", "reduction", "a reduction has a dtype, an operation, maybe a divisor", fields.reduction),
    Rule("fields", "size", "a size is 0 or more, and whole elements in a reduction", fields.size),
    Rule("fields", "payload", "a doorbell's line carries up to 56 bytes, 40 beside places", fields.payload),
    Rule("references", "buffer", "an operand lies in a buffer of its rank", references.buffer),
    Rule("references", "kernel size", "a COMPUTE is as large as its kernel's output", references.compute_size),
    Rule("references", "region", "an operand lies in a region", references.region),
    Rule("references", "round", "rounds count from 0; only done waits reach back", references.in_round),
    Rule("references", "doorbell", "a doorbell is one of the layout's", references.doorbell),
    Rule("references", "owner", "a doorbell is rung by the one rank it belongs to", references.owner),
    Rule("references", "group", "a group is one of the plan's", references.group),
    Rule("references", "event", "an event is one of the rank's", references.event),
    Rule("references", "kernel", "a kernel is one of the plan's", references.kernel),
    Rule("ranges", "ranges", "instructions lie on a bounded number of ranges of cards", references.ranges),
    Rule("order", "one stream", "a doorbell is rung from one stream", references.one_stream),
    Rule("order", "epochs rise", "a doorbell shows larger and larger epochs", references.epochs_rise),
    Rule("order", "recorded", "an AWAIT has one RECORD, earlier or in another stream", references.recorded),
    Rule("order", "told", "an array in the heap is named once its place is known", references.told),
    Rule("order", "one writer", "in a round a line is written by one rank, waits or not", lines.one_writer),
    Rule("order", "own strip", "in the heap a rank writes its own strip, and blocks given to it", lines.own_strip),
    Rule("order", "one kind", "between two FENCEs a line is stored to in one way", lines.one_kind),
    Rule("order", "stale line", "to write part of another rank's line, invalidate it first", lines.stale_line),
)  # fmt: skip


def findings(plan: Plan, ranks: Iterable[int] | None = None) -> Iterator[RuleFinding]:
    """Yield every broken rule of the first stage that has any."""
    program = PlanTable(plan, range(plan.ranks) if ranks is None else ranks)
    right: bool | None = None
    for stage, rules in groupby(RULES, key=lambda rule: rule.stage):
        if stage in rows.STAGES:
            right = rows.right(program) if right is None else right
            if right:
                continue
        broken = False
        for rule in rules:
            for defect in rule.defects(program):
                broken = True
                yield _finding(program, rule, defect)
        if broken:
            return


def check(plan: Plan, ranks: Iterable[int] | None = None) -> None:
    """Accept a plan that obeys all rules."""
    for finding in findings(plan, ranks):
        raise PlanRuleError(str(finding))


def _finding(program: PlanTable, rule: Rule, defect: Defect) -> RuleFinding:
    if defect.row < 0:
        return RuleFinding(rule, defect.detail, defect.rank)
    return RuleFinding(rule, defect.detail, *program.place(defect.row), program.text(defect.row))
