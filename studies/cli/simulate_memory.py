"""``cxlemu simulate memory``: what an access takes, over working sets larger and larger than the nearest memory."""

from __future__ import annotations

from typing import Any

import click

from cxlemu.cli.params import Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from studies.choices import PAGES, SEED, TIERS_CONFIGS


def _policies() -> tuple[str, ...]:
    from studies.tiering.policies import POLICIES

    return tuple(POLICIES)


@click.command()
@click.argument("workloads", nargs=-1, metavar="[WORKLOAD]...")
@option(
    "config", dest="configs", multiple=True, help=f"A topology; again for more.  [default: {', '.join(TIERS_CONFIGS)}]"
)
@click.option("--policy", type=Names(_policies), default="static", show_default=True, help="A comma list, or all.")
@option(
    "ranks",
    type=RanksParam(1, 1024),
    default="1",
    show_default=True,
    help="Each with a working set of its own.",
)
@option("minbytes", help="Smallest working set.  [default: half the nearest memory]")
@option("maxbytes", help="Largest.  [default: -b, or what fits all of the topologies]")
@click.option(
    "-f",
    "--stepfactor",
    type=click.IntRange(2),
    metavar="N",
    default=2,
    show_default=True,
    help="Size times.",
)
@click.option(
    "--pages",
    type=click.IntRange(8, 1 << 16),
    metavar="N",
    default=PAGES,
    show_default=True,
    help="Of a sample, that the nearest memory holds.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", default=SEED, show_default=True)
@click.option("-v", "--verbose", is_flag=True, help="Also each tier's share of accesses, and their time.")
@option("json")
@option("plot", help="Draw time over working set: .png, .svg or .pdf.")
@for_each_ranks("plot_file")
def command(**flags: Any) -> None:
    """Simulate memory-bound workloads on a topology's tiers of memory.

    A rank has each space of the topology, nearest first: its own memory, that of its peers, pools and memory nodes.
    Other ranks lend their memory and do nothing. WORKLOAD is pointer-chase, embedding, kv-cache (default: all three)
    or a file. Policies place pages and move them: static never, lru brings near what was touched, hotness what is
    clearly hotter, prefetch what will be needed. Moves take the same links as accesses do.

    \b
    Examples:
      cxlemu simulate memory
      cxlemu simulate memory pointer-chase -b 128G -e 16T --plot chase.png
      cxlemu simulate memory kv-cache --policy all -b 1T --json kv.json
    """
    from studies.cli.simulate_memory_run import run

    run(**flags)
