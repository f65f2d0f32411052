"""``cxlemu explore``: every execution of a protocol of your own, cache behaviour included."""

from __future__ import annotations

from pathlib import Path

import click

from cxlemu.choices import DTYPE_NAMES, REDOPS
from cxlemu.cli.options import Flags, argument, concept, flag, switch, taking
from cxlemu.cli.params import BytesParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes
from faults.explore.exhaustive import ENGINES
from faults.explore.programs import RANKS_MAX
from faults.explore.result import Budget


class ExploreFlags(Flags):
    """Which program is searched, and how far."""

    program: str | None = argument(metavar="FILE.py:FUNCTION|FILE.plan|COLLECTIVE", required=False)
    algorithm: str | None = concept(
        "algorithm", help="Explore an algorithm or a protocol of your own; executes the file."
    )
    ranks: int = concept(
        "ranks",
        type=RanksParam(1, RANKS_MAX),
        default="2",
        help="Number of ranks; each has its own host, unless the protocol has ranks_per_host.",
    )
    total_bytes: int | None = concept(
        "minbytes", help="Size of a collective, as in nccl-tests.", default_text="one line per rank"
    )
    datatype: str | None = concept(
        "datatype", type=click.Choice(DTYPE_NAMES), help="Type of a collective's elements.", default_text="f32"
    )
    op: str | None = concept("op", type=click.Choice(REDOPS), default_text="sum")
    root: int | None = concept("root", type=click.IntRange(0), default_text="0")
    in_place: bool = switch("--in-place", help="Make the smaller buffer part of the larger one, as in NCCL.")
    variant: str | None = flag("--variant", help="Variant of a collective.  [default: auto]")
    cluster: int | None = flag(
        "--cluster", type=click.IntRange(1, 16), help="Number of ranks on each host, for a collective.  [default: 1]"
    )
    calls: int | None = flag(
        "--calls", type=click.IntRange(1, 16), help="Number of consecutive calls of a collective.  [default: 1]"
    )
    strategy: str = flag(
        "--strategy",
        default="exhaustive",
        help="exhaustive; preemption:K or delay:K: all executions with at most K preemptions or delays; pct:D or "
        "random: a sample.",
    )
    engine: str = flag(
        "--engine", type=click.Choice(ENGINES), default=ENGINES[0], help="Engine of an exhaustive search."
    )
    runs: int = flag(
        "--runs", type=click.IntRange(1), default=1000, help="Number of executions that pct and random try."
    )
    seed: int = flag("--seed", type=int, default=0, help="Seed of pct and random.")
    budget_states: int = flag(
        "--budget-states", type=click.IntRange(1), default=Budget().states, help="Largest number of states to search."
    )
    budget_s: float = concept("budget", default=Budget().seconds, help="Time limit of the search.")
    budget_bytes: int = flag(
        "--budget-bytes",
        type=BytesParam(),
        default=format_bytes(Budget().nbytes),
        help="Memory limit of an exhaustive search.",
    )
    replay: str | None = flag(
        "--replay",
        metavar="TOKEN|FILE",
        help="Run one execution, from a token or a file of --json, and search all executions that continue it.",
    )
    json_file: Path | None = concept("json")


@click.command()
@for_each_ranks("replay")
@taking(ExploreFlags, work="explore_run:run")
def command() -> None:
    """Search every execution of a protocol or an algorithm of your own, or of a collective.

    A protocol is a Python generator for each rank, decorated with @protocol; an algorithm is decorated with @algorithm.

    Executes the file. Reports failed assertions, deadlocks, endless loops, final states that `final` rejects, and reads
    of a collective that could return wrong bytes; each with the execution that leads there and a token that replays it.

    \b
    Examples:
      cxlemu explore examples/protocols/ring_queue.py:fixed
      cxlemu explore examples/protocols/ring_queue.py:broken --replay s0s0s1
      cxlemu explore my_lock.py:lock -n 3 --strategy preemption:2 --budget 20s
      cxlemu explore examples/my_all_reduce.py:my_all_reduce -n 3
      cxlemu explore all_gather -n 3 -b 384 --variant all --calls 2
      cxlemu explore gather -n 4 --cluster 2 --variant hierarchical
      cxlemu explore reduce -r 1 -o avg -d i32 --in-place --variant zero_copy
      cxlemu explore all_reduce.plan

    A plan must obey the rules of all plans: explore names the first broken rule, as `cxlemu plan check` does, and
    searches nothing. The exit code is 1 for an algorithm and 2 for a plan file. explore judges these calls
    alone; `cxlemu prove` also judges what calls before and after rely on.

    Exit codes: 0 every execution is right, 1 one is wrong, 2 bad input, 3 unknown: not every execution was searched,
    or nothing is asserted.
    """
