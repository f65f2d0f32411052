"""What ``cxlemu simulate memory`` does: simulates each workload on each tier, and prints it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import product
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from collectives.sweep.sweep import last_size
from cxlemu.cli.console import console, print_wrapped
from cxlemu.cli.interruption import Interruption
from cxlemu.cli.output import write_json
from cxlemu.cli.progress import counting
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.provenance import kinds_of
from cxlemu.units import counted, format_bytes, typed_bytes
from cxlemu.version import __version__
from studies.choices import STEPFACTOR, TIERS_CONFIGS
from studies.cli.picture import check_picture, save
from studies.cli.simulate_memory import MemoryFlags
from studies.cli.simulate_memory_plot import draw
from studies.tiering.study import Measured, Memory
from studies.tiering.workloads import Workload

NUMBER_WIDTH, SIZE_WIDTH = 9, 13


def run(ctx: click.Context, asked: MemoryFlags) -> None:
    if asked.plot_file is not None:
        check_picture("--plot", asked.plot_file)
    kinds = [Workload.load(name) for name in asked.workloads or Workload.shipped()]
    memories = [Memory(Topology.load(name), asked.ranks) for name in asked.configs or TIERS_CONFIGS]
    if set(asked.policy) != {"static"} and all(len(memory.tiers) == 1 for memory in memories):
        raise ArgumentError("--policy does nothing here, because there is one memory, and no page moves: leave it out")
    sizes = _sizes(memories, asked.minbytes, asked.maxbytes, asked.stepfactor)
    out = console()
    for line in (*_header(memories), *last_size(sizes, asked.maxbytes)):
        print_wrapped(out, f"# {line}", indent="#            ")
    measured: list[Measured] = []
    finished, interruption = 0, Interruption()
    with interruption:
        for workload in kinds:
            measured_on = [*product(sizes, memories, asked.policy)]
            shown = [
                memory.measure(workload, size, policy=name, pages=asked.pages, seed=asked.seed)
                for size, memory, name in counting(measured_on, workload.name, len(measured_on), out)
            ]
            _print(out, workload, shown, asked.verbose)
            measured += shown
            finished += 1
    document = _document(memories, kinds[:finished], measured)
    write_json(asked.json_file, document | {"interrupted": interruption.happened})
    if asked.plot_file is not None and measured:
        save(draw(measured, memories[0]), "--plot", asked.plot_file)
    interruption.exit(click.get_current_context(), 0, f"{counted(len(kinds) - finished, 'workload')} not finished")


def _sizes(memories: Sequence[Memory], minbytes: int | None, maxbytes: int | None, stepfactor: int | None) -> list[int]:
    smallest = min(memories, key=lambda memory: memory.capacity_bytes)
    if maxbytes is None:
        maxbytes = smallest.capacity_bytes if minbytes is None else minbytes
    if minbytes is None:
        minbytes = min(min(memory.tiers[0].capacity_bytes for memory in memories) // 2, maxbytes)
    if minbytes > maxbytes:
        raise ArgumentError(f"-b {typed_bytes(minbytes)} is more than -e {typed_bytes(maxbytes)}")
    if not minbytes:
        raise ArgumentError(f"-b is 0 and -e is {typed_bytes(maxbytes)}: working sets have 1 byte or more")
    if minbytes == maxbytes and stepfactor is not None:
        raise ArgumentError("--stepfactor does nothing here, because there is one size: leave it out")
    if maxbytes > smallest.capacity_bytes:
        raise ArgumentError(
            f"a working set of {format_bytes(maxbytes)} does not fit {smallest.topology.name}, where a rank has "
            f"{format_bytes(smallest.capacity_bytes)}"
        )
    steps = [minbytes]
    while steps[-1] * (stepfactor or STEPFACTOR) <= maxbytes:
        steps.append(steps[-1] * (stepfactor or STEPFACTOR))
    return steps


def _header(memories: Sequence[Memory]) -> Iterable[str]:
    yield f"cxlemu   {__version__}, engine virtual: modelled figures, the same on every machine"
    for memory in memories:
        figures = kinds_of(memory.topology.provenance) or "of unknown provenance"
        yield f"config   {memory.topology.title}; figures {figures}"
        for tier in memory.tiers:
            how = ", by copies of whole pages" if tier.copied else ""
            size = format_bytes(tier.capacity_bytes)
            yield f"           {tier.name:<14} {size:>9}, a load takes {tier.load_ns} ns{how}"
    ranks = memories[0].ranks
    yield f"ranks    {ranks}, with a working set each; the others lend their memory"


def _print(out: Console, workload: Workload, rows: Sequence[Measured], verbose: bool) -> None:
    """Print a line for each working set, with a column for each topology and policy."""
    columns = list(dict.fromkeys((row.topology, row.policy) for row in rows))
    heads = [name if len({policy for _, policy in columns}) == 1 else f"{name} {policy}" for name, policy in columns]
    widths = [max(len(head), NUMBER_WIDTH) for head in heads]
    out.print(Text("#"))
    print_wrapped(out, f"# {workload.name}: {workload.description}", "bold", indent="#   ")
    out.print(Text("# working set  ns an access:".ljust(SIZE_WIDTH)))
    for part in _panels(widths, out.width - SIZE_WIDTH):
        parted = [*zip(heads, widths, strict=True)][part]
        out.print(Text("#".ljust(SIZE_WIDTH) + "".join(f"  {head:>{width}}" for head, width in parted)))
        for size in dict.fromkeys(row.working_set_bytes for row in rows):
            cells = [row for row in rows if row.working_set_bytes == size][part]
            numbers = "".join(f"  {row.access_ns:>{width}.1f}" for row, (_, width) in zip(cells, parted, strict=True))
            out.print(Text(f"{format_bytes(size):>{SIZE_WIDTH}}{numbers}"))
            for row, (head, _) in zip(cells if verbose else (), parted, strict=False):
                print_wrapped(out, f"#   {head}: {_where(row)}", "dim", indent="#     ")


def _panels(widths: Sequence[int], room: int) -> Iterator[slice]:
    """Cut columns into panels below each other, each with as many of them as there is room for, one at least."""
    first = 0
    while first < len(widths):
        last, left = first + 1, room - widths[first] - 2
        while last < len(widths) and left >= widths[last] + 2:
            left -= widths[last] + 2
            last += 1
        yield slice(first, last)
        first = last


def _where(row: Measured) -> str:
    used = [tier for tier in row.tiers if tier.accesses]
    parts = [f"{tier.name} {100 * tier.accesses / row.accesses:.1f}% at {tier.access_ns:.0f} ns" for tier in used]
    coherence_ns = sum(tier.coherence_ns for tier in used) / row.accesses
    parts += [f"coherence {coherence_ns:.0f} ns an access"] * bool(coherence_ns)
    given_up = sum(tier.back_invalidations for tier in used) / row.accesses
    parts += [f"{given_up:.2f} lines back-invalidated an access"] * bool(given_up)
    parts += [f"moved {row.moved_bytes:.0f} B an access"] * bool(row.moved_bytes)
    return ", ".join(parts)


def _document(memories: Sequence[Memory], workloads: Sequence[Workload], rows: Sequence[Measured]) -> dict[str, Any]:
    return {
        "version": __version__,
        "engine": "virtual",
        "configs": [memory.topology.document() for memory in memories],
        "workloads": [workload.document() for workload in workloads],
        "rows": [asdict(row) for row in rows],
    }
