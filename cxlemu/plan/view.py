"""A plan as tables with a column per rank, for rich to print."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from cxlemu.errors import runs_of
from cxlemu.plan.plan import Plan
from cxlemu.plan.text import amount, counts, region_name, text
from cxlemu.units import counted, format_bytes

_COLUMN_CHARS = 36  # wider instructions are folded where a terminal is too narrow for all ranks


@dataclass(frozen=True)
class PlanView:
    """A plan for rich to print. Ranks that do not fit side by side follow below."""

    plan: Plan
    limit: int | None = None  # rows of any one table

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
        names = dict.fromkeys(stream.name for part in plan.parts for stream in part.streams)
        for name in names:
            columns = {rank: column for rank in range(plan.ranks) if (column := self._column(rank, name))}
            for some in _side_by_side(columns, options.max_width):
                yield from ("", Text(f"stream {name}", style="bold"), self._stream(some))
            yield from self._left_out(max(map(len, columns.values()), default=0), "instructions")

    def _summary(self) -> Iterator[Text]:
        """One line for all ranks that do equally much."""
        alike: dict[str, list[int]] = {}
        for part in self.plan.parts:
            c = counts(part)
            line = (
                f"{counted(c.instructions.total(), 'instruction')}, {format_bytes(c.written_bytes)} written, "
                f"{format_bytes(c.read_bytes)} read, {counted(c.rung, 'doorbell')}"
            )
            alike.setdefault(line, []).append(part.rank)
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
                region_name(index, self.plan), cards, *map(amount, (r.granularity_bytes, r.base, r.start, r.nbytes))
            )
        return table

    def _column(self, rank: int, name: str) -> list[str]:
        streams = [stream for stream in self.plan.part(rank).streams if stream.name == name]
        return [text(i, self.plan, rank) for stream in streams for i in stream.instructions]

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


def _listed(ranks: list[int]) -> str:
    """``rank 0``, ``ranks 1-3``, ``ranks 0-1, 3``."""
    spans = (dict.fromkeys((run[0], run[-1])) for run in runs_of(ranks))
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
    return [dict(items[begin : begin + each]) for begin in range(0, len(items), each)]
