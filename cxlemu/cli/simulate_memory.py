"""``cxlemu simulate memory``: what an access takes, over working sets larger and larger than the nearest memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from collectives.tiering.policies import POLICIES
from collectives.tiering.study import PAGES, SEED, Measured, Memory
from collectives.tiering.workloads import Workload
from cxlemu import __version__
from cxlemu.cli.output import check_json_file, check_output, write_json, write_output
from cxlemu.cli.run import Names
from cxlemu.cli.simulate_memory_plot import draw
from cxlemu.cli.bench_plot import pyplot
from cxlemu.errors import ArgumentError
from cxlemu.topology import Topology
from cxlemu.topology.standing import KINDS
from cxlemu.units import BytesParam, format_bytes

CONFIGS = ("tiers-rdma", "tiers-clusters", "tiers-scalepool")
STEP_FACTOR = 2
PAGES_MAX = 1 << 20


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@click.option("-c", "--config", "configs", multiple=True, help=f"A topology; again for more.  [default: {', '.join(CONFIGS)}]")
@click.option("--policy", type=Names(tuple(POLICIES)), default="static", show_default=True, help="A comma list, or all.")
@click.option("-n", "--ranks", type=click.IntRange(1, 1024), metavar="N", default=1, show_default=True, help="With a working set of its own each.")
@click.option("-b", "--minbytes", type=BytesParam(), help="Smallest working set.  [default: half of the nearest memory]")
@click.option("-e", "--maxbytes", type=BytesParam(), help="Largest.  [default: -b, or what fits all of the topologies]")
@click.option("-f", "--stepfactor", type=click.IntRange(2), metavar="N", default=STEP_FACTOR, show_default=True, help="Size times.")
@click.option("--pages", type=click.IntRange(16, PAGES_MAX), metavar="N", default=PAGES, show_default=True, help="Stand for the working set.")
@click.option("--seed", type=click.IntRange(0), default=SEED, show_default=True)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw time over working set, as a PNG file.")
def command(
    workloads: tuple[str, ...],
    configs: tuple[str, ...],
    policy: tuple[str, ...],
    ranks: int,
    minbytes: int | None,
    maxbytes: int | None,
    stepfactor: int,
    pages: int,
    seed: int,
    json_file: Path | None,
    plot_file: Path | None,
) -> None:
    """Simulate memory-bound workloads on a topology's tiers of memory.

    A rank has each space of the topology, nearest first: its own memory, that of its peers, pools and memory nodes.
    Other ranks lend their memory and do nothing. WORKLOAD is pointer-chase, embedding, kv-cache (default: all three) or a
    file. Policies place pages and move them: static never, lru to the nearest what was touched, hotness what is clearly
    hotter, prefetch what will be needed. Moves take the same links as accesses do.

    \b
    Examples:
      cxlemu simulate memory
      cxlemu simulate memory pointer-chase -c tiers-scalepool -b 128G -e 16T --plot chase.png
      cxlemu simulate memory kv-cache --policy all -b 1T --json kv.json
    """
    check_json_file(json_file)
    if plot_file is not None:
        pyplot()
        check_output("--plot", plot_file)
    kinds = [Workload.load(name) for name in workloads or Workload.shipped()]
    memories = [Memory(Topology.load(name), ranks) for name in configs or CONFIGS]
    sizes = _sizes(memories, minbytes, maxbytes, stepfactor)
    out = Console(highlight=False, soft_wrap=True)
    for line in _header(memories, pages):
        out.print(Text(f"# {line}"))
    measured: list[Measured] = []
    for workload in kinds:
        its = [
            memory.measure(workload, size, policy=name, pages=pages, seed=seed)
            for size in sizes
            for memory in memories
            for name in policy
        ]
        out.print(Text(f"\n{workload.name}: {workload.description}", "bold"))
        out.print(_table(its))
        measured += its
    write_json(json_file, _document(memories, kinds, measured))
    if plot_file is not None:
        write_output("--plot", plot_file, draw(measured, memories))


def _sizes(memories: Sequence[Memory], minbytes: int | None, maxbytes: int | None, stepfactor: int) -> list[int]:
    """Raises ArgumentError for none."""
    if maxbytes is None:
        maxbytes = min(memory.capacity_bytes for memory in memories) if minbytes is None else minbytes
    if minbytes is None:
        minbytes = min(min(memory.tiers[0].capacity_bytes for memory in memories) // 2, maxbytes)
    if not 0 < minbytes <= maxbytes:
        raise ArgumentError(f"-b is {minbytes} and -e {maxbytes}: the smallest working set is from 1 byte to the largest")
    steps = [minbytes]
    while steps[-1] * stepfactor <= maxbytes:
        steps.append(steps[-1] * stepfactor)
    return steps


def _header(memories: Sequence[Memory], pages: int) -> Iterable[str]:
    yield f"cxlemu    {__version__}, engine virtual: modelled times, the same on every machine"
    for memory in memories:
        kinds = [standing.kind for standing in memory.topology.standings.values()]
        figures = ", ".join(f"{kinds.count(kind)} {kind}" for kind in KINDS if kind in kinds)
        yield f"config    {memory.topology.name}: {memory.topology.description}; figures {figures or 'of unknown standing'}"
        for tier in memory.tiers:
            copied = ", a page at a time" if tier.copied else ""
            yield f"  {tier.name:<18} {format_bytes(tier.capacity_bytes):>9}  load {tier.load_ns} ns{copied}"
    yield f"pages     a working set is modelled by {pages} of its pages at most, in tiers that hold the same part of them"


def _table(rows: Sequence[Measured]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name, justify in (("working set", "right"), ("config", "left"), ("policy", "left"), ("access (ns)", "right")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("moved (B)", justify="right", no_wrap=True)
    table.add_column("of all accesses, and what one takes there", no_wrap=True)
    last = None
    for row in rows:
        size = format_bytes(row.working_set_bytes)
        table.add_row(
            "" if size == last else size, row.topology, row.policy, f"{row.access_ns:,.0f}", f"{row.moved_bytes:,.0f}", _where(row)
        )
        last = size
    return table


def _where(row: Measured) -> str:
    used = [tier for tier in row.tiers if tier.accesses]
    return ", ".join(f"{tier.name} {100 * tier.accesses / row.accesses:.0f}% {tier.access_ns:,.0f} ns" for tier in used)


def _document(memories: Sequence[Memory], workloads: Sequence[Workload], rows: Sequence[Measured]) -> dict[str, Any]:
    return {
        "version": __version__,
        "engine": "virtual",
        "configs": [memory.topology.document() for memory in memories],
        "workloads": [workload.document() for workload in workloads],
        "rows": [asdict(row) for row in rows],
    }
