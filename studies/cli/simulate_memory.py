"""``cxlemu simulate memory``: what an access takes, over working sets larger and larger than the nearest memory."""

from pathlib import Path

import click

from cxlemu.cli.options import Flags, argument, concept, flag, taking
from cxlemu.cli.params import Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from studies.choices import PAGES, SEED, STEPFACTOR, TIERS_CONFIGS


def _policies() -> tuple[str, ...]:
    from studies.tiering.policies import POLICIES

    return tuple(POLICIES)


class MemoryFlags(Flags):
    workloads: tuple[str, ...] = argument(nargs=-1, metavar="[WORKLOAD]...")
    configs: tuple[str, ...] = concept(
        "config",
        multiple=True,
        help="Topology: a file or a name; repeat it to compare several.",
        default_text=", ".join(TIERS_CONFIGS),
    )
    policy: tuple[str, ...] = flag(
        "--policy",
        type=Names(_policies),
        default="static",
        help="Policies that place and move pages; a comma list or all.",
    )
    ranks: int = concept(
        "ranks", type=RanksParam(1, 1024), default="1", help="Number of ranks; each has its own working set."
    )
    minbytes: int | None = concept("minbytes", help="Smallest working set.", default_text="half the nearest memory")
    maxbytes: int | None = concept(
        "maxbytes", help="Largest working set.", default_text="-b, or what fits all of the topologies"
    )
    stepfactor: int | None = concept("stepfactor", default_text=STEPFACTOR)
    pages: int = flag(
        "--pages",
        type=click.IntRange(8, 1 << 16),
        metavar="N",
        default=PAGES,
        help="Number of sampled pages that the nearest memory holds.",
    )
    seed: int = flag("--seed", type=click.IntRange(0), metavar="N", default=SEED, help="Seed of the accesses.")
    verbose: bool = concept("verbose", help="Also show each tier's share of the accesses, and their time.")
    json_file: Path | None = concept("json")
    plot_file: Path | None = concept("plot", help="Draw time over working set to a .png, .svg or .pdf.")


@click.command()
@for_each_ranks("plot_file")
@taking(MemoryFlags, work="simulate_memory_run:run")
def command() -> None:
    """Simulate memory-bound workloads on a topology's tiers of memory.

    A rank uses each space of the topology, nearest first: its own memory, its peers' memory, pools and memory nodes.
    Idle ranks lend their memory. WORKLOAD is pointer-chase, embedding, kv-cache (default: all three) or a file.
    Policies place and move pages: static moves none, lru brings touched pages near, hotness clearly hotter pages,
    prefetch pages that are needed next. Moves share their links with accesses.

    \b
    Examples:
      cxlemu simulate memory
      cxlemu simulate memory pointer-chase -b 128G -e 16T --plot chase.png
      cxlemu simulate memory kv-cache --policy all -b 1T --json kv.json
    """
