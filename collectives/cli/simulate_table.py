"""The table of ``cxlemu simulate``, printed row by row."""

from collections.abc import Iterator

from rich.console import Console

from collectives.cli.cells import RowsByCollective, cells_of
from collectives.sweep.virtual.simulated import Simulated
from cxlemu.cli.columns import Column, Columns
from cxlemu.cli.console import print_wrapped
from cxlemu.units import counted

COLUMNS = (
    Column("size", "(B)", 11),
    Column("count", "(elem)", 10, order=5),
    *(Column(name, "", width, order=5) for name, width in (("type", 4), ("redop", 5), ("root", 4))),
    Column("time", "(us)", 11),
    Column("algbw", "(GB/s)", 7, order=2),
    Column("busbw", "(GB/s)", 7),
    *(Column(name, "(%)", 4) for name in ("card", "link", "copy")),
    Column("exposed", "wait(us)", 9, order=1),
    Column("queue(us)", "a copy", 9, order=3),
    Column("#wrong", "", 6, order=4),
)
VARIANT_WIDTH = 18


class RowTable:
    def __init__(self, out: Console, *, verbose: bool, check: bool) -> None:
        wrong_matters = [
            column._replace(order=0) if check and column.name == "#wrong" else column for column in COLUMNS
        ]
        self._rows = RowsByCollective(out, Columns(wrong_matters, "variant", VARIANT_WIDTH, out.width))
        self._out, self._verbose = out, verbose

    def add(self, row: Simulated) -> None:
        """Print a row; before the first one of a collective, heads."""
        self._rows.add(row, _cells(row))
        if row.in_switch_us is not None:
            ratio = row.in_switch_us / row.time_us
            print_wrapped(
                self._out, f"#   folded in the switch: {row.in_switch_us:.1f} us, {ratio:.2f} times as long", "dim"
            )
        if self._verbose:
            for line in _more(row):
                print_wrapped(self._out, f"#   {line}", "dim", indent="#     ")


def _cells(row: Simulated) -> dict[str, object]:
    return cells_of(row, slow_digits=4) | {
        "card": f"{100 * row.busiest_card_utilization:.0f}",
        "link": f"{100 * row.busiest_link_utilization:.0f}",
        "copy": f"{100 * row.busiest_engine_utilization:.0f}",
        "exposed": f"{row.exposed_wait_us:.1f}",
        "queue(us)": f"{row.queue_us:.1f}",
    }


def _bound(us: float) -> str:
    """Give a bound two digits at least: the number that follows says how many times it is."""
    return f"{us:.1f}" if us >= 1 else f"{us:.2g}"


def _more(row: Simulated) -> Iterator[str]:
    if row.reason:
        yield f"{row.variant}: {row.reason}"
    names = ", ".join(name for name in (row.busiest_card, row.busiest_link, row.busiest_engine) if name)
    busy = f" ({100 * row.busiest_engine_by_bytes:.0f} % by its bytes)" if row.busiest_engine else ""
    yield f"busiest: {names or 'nothing'}{busy}; {counted(row.instructions, 'instruction')}"
    if row.bound_us is not None and row.started_bound_us is not None:
        yield f"lower bound: {_bound(row.bound_us)} us by {row.bound_by}; {row.time_us / row.bound_us:.2f} times that"
        ratio = row.time_us / row.started_bound_us
        yield (
            f"with what no plan hides, launch, a write's start, a doorbell and a read's start: "
            f"{_bound(row.started_bound_us)} us; {ratio:.2f} times that"
        )
