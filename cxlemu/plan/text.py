"""Plans for people: an instruction as a line of text, a plan as tables with a column per rank.

``r1+64K@2`` is region 1 from byte 64 K on in round 2 (round 0 is not written), ``h1+64K`` one in the heap, ``e+2`` the
epoch of round 2; ``in``, ``out`` and other names are the rank's buffers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from cxlemu.choices import DTYPE_NAMES
from cxlemu.plan.instructions import SIGNATURES, Flag, Instruction, Kind, Op, Operand
from cxlemu.plan.plan import Plan, RankPart
from cxlemu.units import counted, format_bytes

_SHORT = {"input": "in", "output": "out"}
_COLUMN_CHARS = 36  # wider instructions are folded where a terminal is too narrow for all ranks


def amount(nbytes: int) -> str:
    """Write a number of bytes exactly and briefly: ``64K``, ``1M``, ``1000``."""
    for power, suffix in ((30, "G"), (20, "M"), (10, "K")):
        if nbytes and nbytes % (1 << power) == 0:
            return f"{nbytes >> power}{suffix}"
    return str(nbytes)


# --- one instruction -----------------------------------------------------------------------------------


def text(i: Instruction, plan: Plan, rank: int = 0) -> str:
    """Write an instruction as a line: ``REDUCE out+0 <- in+0 sum r1+0 64K``.

    Args:
        i: The instruction. Its ids may be of things that do not exist.
        plan: The plan whose tables name regions, groups and kernels.
        rank: The rank whose buffers it names.
    """
    sources = [_place(o, plan, rank) for o in (i.a, i.b, i.c) if o.kind]
    targets = [_place(o, plan, rank) for o in (i.dst, i.dst2) if o.kind]
    words = [i.op.name]
    match SIGNATURES[i.op].arg:
        case "doorbell":
            words.append(plan.layout.doorbell_name(i.arg))
        case "group":
            words.append(_group(i.arg, plan))
        case "kernel":
            words.append(_kernel(i.arg, plan))
        case "event":
            words.append(f"event {i.arg}")
    if i.op in (Op.WAIT, Op.WAIT_ALL, Op.WAIT_DATA):
        words.append(f">= e{i.value:+}")
    elif i.op in (Op.SIGNAL, Op.SIGNAL_DATA):
        words.append(f"= e{i.value:+}")
    if targets:
        words += ["->"] if i.op == Op.WAIT_DATA else []
        words.append(", ".join(targets))
    if sources:
        operation = f" {i.redop.name.lower()} " if i.redop else ", "
        words += ["<-"] if i.op not in (Op.FLUSH, Op.INVALIDATE) else []
        words.append(operation.join(sources))
    if i.flags & Flag.DIVIDE:
        words.append(f"/ {i.arg}")
    if SIGNATURES[i.op].typed and DTYPE_NAMES[i.dtype : i.dtype + 1] != (plan.call.dtype,):
        words.append(f"as {', '.join(DTYPE_NAMES[i.dtype : i.dtype + 1]) or f'dtype {i.dtype}'}")
    if SIGNATURES[i.op].sized:
        words.append(amount(i.nbytes))
    return " ".join(words)


def _place(operand: Operand, plan: Plan, rank: int) -> str:
    if operand.kind == Kind.REGION:
        name = _region(operand.id, plan)
        return f"{name}+{amount(operand.offset)}" + (f"@{operand.seq}" if operand.seq else "")
    if operand.kind != Kind.BUFFER:
        return f"kind {operand.kind}"
    buffers = plan.part(rank).buffers
    name = buffers[operand.id].name if operand.id < len(buffers) else f"buffer{operand.id}"
    return f"{_SHORT.get(name, name)}+{amount(operand.offset)}"


def _region(number: int, plan: Plan) -> str:
    regions = plan.frame.regions
    return f"h{number}" if number < len(regions) and regions[number].heap else f"r{number}"


def _group(number: int, plan: Plan) -> str:
    layout, groups = plan.layout, plan.frame.groups
    if not 0 <= number < len(groups):
        return f"group {number}"
    first, count, stride = groups[number].first, groups[number].count, groups[number].stride
    if (first, count, stride) == (layout.done(0), layout.ranks, 1):
        return "done"
    if first < layout.doorbells_per_rank == stride and count == layout.ranks:
        return f"published[*][{first}]"
    return f"{layout.doorbell_name(first)} and {count - 1} more"


def _kernel(number: int, plan: Plan) -> str:
    if not 0 <= number < len(plan.frame.kernels):
        return f"kernel {number}"
    return str(plan.frame.kernels[number])


# --- how much ------------------------------------------------------------------------------------------


class Counts(NamedTuple):
    """How much a rank does. Bytes are those to and from the pool, payloads in doorbell lines among them."""

    instructions: Counter[Op]
    written_bytes: int
    read_bytes: int

    @property
    def rung(self) -> int:
        """How many doorbells the rank rings."""
        return self.instructions[Op.SIGNAL] + self.instructions[Op.SIGNAL_DATA]


def counts(part: RankPart) -> Counts:
    """Count a rank's instructions and the bytes that they move to and from the pool."""
    ops: Counter[Op] = Counter()
    written = read = 0
    for i in (i for stream in part.streams for i in stream.instructions):
        ops[i.op] += 1
        targets, sources = ([o.kind for o in some].count(Kind.REGION) for some in (i[7:9], i[9:]))
        if i.op in (Op.FLUSH, Op.INVALIDATE):
            continue
        written += i.nbytes * (targets + (i.op == Op.SIGNAL_DATA))
        read += i.nbytes * (sources + (i.op == Op.WAIT_DATA))
    return Counts(ops, written, read)


# --- a whole plan --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanView:
    """A plan for rich to print. Ranks that do not fit side by side follow below."""

    plan: Plan
    ranks: tuple[int, ...]
    limit: int | None  # rows of any one table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        plan, layout = self.plan, self.plan.layout
        yield Text(f"{plan.call}, {counted(plan.ranks, 'rank')}", style="bold")
        yield Text(
            f"{counted(plan.rounds, 'round')}; "
            f"{counted(layout.slots, 'slot')} of {format_bytes(layout.slot_bytes)} on {layout.cards_text}, "
            f"interleaved by {format_bytes(layout.interleave_bytes)}"
        )
        yield from self._summary()
        if plan.frame.regions:
            yield from ("", self._regions())
            yield from self._left_out(len(plan.frame.regions), "regions")
        names = dict.fromkeys(stream.name for rank in self.ranks for stream in plan.part(rank).streams)
        for name in names:
            columns = {rank: column for rank in self.ranks if (column := self._column(rank, name))}
            for some in _side_by_side(columns, options.max_width):
                yield from ("", Text(f"stream {name}", style="bold"), self._stream(some))
            yield from self._left_out(max(map(len, columns.values()), default=0), "instructions")

    def _summary(self) -> Iterator[Text]:
        """One line for all ranks that do equally much."""
        alike: dict[str, list[int]] = {}
        for rank in self.ranks:
            c = counts(self.plan.part(rank))
            line = (
                f"{counted(c.instructions.total(), 'instruction')}, {format_bytes(c.written_bytes)} written, "
                f"{format_bytes(c.read_bytes)} read, {counted(c.rung, 'doorbell')}"
            )
            alike.setdefault(line, []).append(rank)
        for line, ranks in alike.items():
            yield Text(f"{_listed(ranks)}{', each' if len(ranks) > 1 else ''}: {line}")

    def _regions(self) -> Table:
        table = Table(
            "region",
            "cards",
            "granule",
            "base",
            "start",
            "size",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for column in table.columns:
            column.justify, column.no_wrap = "right", True
        for index, r in enumerate(self.plan.frame.regions[: self.limit]):
            cards = f"{r.first_card}" if r.cards == 1 else f"{r.first_card}-{r.first_card + r.cards - 1}"
            table.add_row(
                _region(index, self.plan), cards, *map(amount, (r.granularity_bytes, r.base, r.start, r.nbytes))
            )
        return table

    def _column(self, rank: int, name: str) -> list[str]:
        found = [stream for stream in self.plan.part(rank).streams if stream.name == name]
        return [text(i, self.plan, rank) for stream in found for i in stream.instructions]

    def _stream(self, columns: dict[int, list[str]]) -> Table:
        table = Table(box=box.MINIMAL, show_edge=False, padding=0)
        table.add_column(justify="right", style="dim", no_wrap=True)
        for rank in columns:
            table.add_column(f"rank {rank}", overflow="fold")
        for index, cells in enumerate(zip_longest(*columns.values(), fillvalue="")):
            if index == self.limit:
                break
            table.add_row(str(index), *map(Text, cells))
        return table

    def _left_out(self, there: int, what: str) -> Iterator[Text]:
        if self.limit is not None and there > self.limit:
            yield Text(f"... {there - self.limit} more {what}", style="italic")


def render(plan: Plan, ranks: Iterable[int] | None = None, *, limit: int | None = None) -> PlanView:
    """Show a plan: call, layout, sums, regions, and every stream with a column per rank.

    Args:
        plan: The plan; the parts of the ranks that are shown are built.
        ranks: Which ranks to show (default: all).
        limit: How many rows of any one table to show (default: all).

    Returns:
        An object for a rich Console to print.
    """
    return PlanView(plan, tuple(range(plan.ranks) if ranks is None else ranks), limit)


def _listed(ranks: list[int]) -> str:
    """``rank 0``, ``ranks 1-3``, ``ranks 0-1, 3``."""
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1][1:] = [rank]
        else:
            spans.append([rank])
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join("-".join(map(str, span)) for span in spans)


def _side_by_side(columns: dict[int, list[str]], width: int) -> list[dict[int, list[str]]]:
    """As many ranks at a time as the width has room for, in tables of about equally many."""
    if not columns:
        return []
    rows = max(map(len, columns.values()))
    need = min(max(len(line) for column in columns.values() for line in column), _COLUMN_CHARS) + 1
    fit = max(1, (width - len(str(rows))) // need)
    tables = -(-len(columns) // fit)
    each = -(-len(columns) // tables)
    items = list(columns.items())
    return [dict(items[at : at + each]) for at in range(0, len(items), each)]
