"""``cxlemu explore``: every execution of a protocol of your own, cache behaviour included."""

from __future__ import annotations

from typing import Any

import click

from cxlemu.choices import DTYPE_NAMES, REDOPS
from cxlemu.cli.params import BytesParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.units import format_bytes
from faults.explore.check import ENGINES
from faults.explore.programs import RANKS_MAX
from faults.explore.result import Budget


@click.command()
@click.argument("program", metavar="FILE.py:FUNCTION|FILE.plan|COLLECTIVE", required=False)
@click.option(
    "--algorithm",
    metavar="FILE.py:FUNCTION",
    help="Explore your own algorithm or protocol, as without the flag; executes the file.",
)
@option(
    "ranks",
    type=RanksParam(1, RANKS_MAX),
    default="2",
    show_default=True,
    help="How many ranks; each has its own host, unless the protocol has ranks_per_host.",
)
@option("minbytes", dest="total_bytes", help="Size of a collective, as in nccl-tests.  [default: one line per rank]")
@option("datatype", type=click.Choice(DTYPE_NAMES), help="Datatype of a collective.  [default: f32]")
@option("op", type=click.Choice(REDOPS), help="Operation of a reduction.  [default: sum]")
@option("root", type=click.IntRange(0), help="Root of a collective that has one.  [default: 0]")
@click.option("--in-place", is_flag=True, help="Make the smaller buffer of a collective part of the larger one.")
@click.option("--variant", help="Variant of a collective.  [default: auto]")
@click.option("--cluster", type=click.IntRange(1, 16), help="Ranks on each host, for a collective.  [default: 1]")
@click.option(
    "--calls", type=click.IntRange(1, 16), help="How many calls of a collective, one after the other.  [default: 1]"
)
@click.option(
    "--among",
    is_flag=True,
    help="Call a collective until the ring has wrapped, with broadcasts that fill it before, between and after.",
)
@click.option(
    "--strategy",
    default="exhaustive",
    show_default=True,
    help="exhaustive; preemption:K or delay:K, all executions with at most K; pct:D or random, some executions.",
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    show_default=True,
    help="Engine of an exhaustive search.",
)
@click.option(
    "--runs", type=click.IntRange(1), default=1000, show_default=True, help="How many executions pct and random try."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of pct and random.")
@click.option("--budget-states", type=click.IntRange(1), default=Budget().states, show_default=True)
@option("budget", default=Budget().seconds, show_default=True)
@click.option(
    "--budget-bytes",
    type=BytesParam(),
    default=format_bytes(Budget().nbytes),
    show_default=True,
    help="Memory that an exhaustive search may use.",
)
@click.option(
    "--replay",
    metavar="TOKEN|FILE",
    help="Run one execution, from a token or from what --json wrote, and search all that can follow it.",
)
@option("json")
@for_each_ranks("replay")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Search every execution of a protocol or an algorithm of your own, or of a collective.

    A protocol is a Python generator for each rank, decorated with @protocol; an algorithm is decorated with @algorithm.

    The file is executed. Found are failed assertions, deadlocks, loops that never end, ends that `final` does not
    accept, and reads of a collective that could see anything but what they must; each is shown as the execution that
    leads there, with the token that replays it.

    \b
    Examples:
      cxlemu explore examples/protocols/ring_queue.py:fixed
      cxlemu explore examples/protocols/ring_queue.py:broken --replay s0s0s1
      cxlemu explore my_lock.py:lock -n 3 --strategy preemption:2 --budget 20s
      cxlemu explore examples/my_all_reduce.py:my_all_reduce -n 3
      cxlemu explore all_gather -n 3 -b 384 --variant all --calls 2
      cxlemu explore gather -n 4 --cluster 2 --variant hierarchical
      cxlemu explore reduce -r 1 -o avg -d i32 --in-place --variant zero_copy
      cxlemu explore all_reduce.plan --among

    A plan has to obey the rules that every plan obeys: the first one that it breaks is named, as `cxlemu plan check`
    does, and nothing is searched. In your algorithm that is a mistake, exit code 1; such a file is bad input. With
    --among a call is held to what other calls before and after it rely on, as `cxlemu prove` holds it.

    \b
    Exit codes: 0 every execution is right, 1 one is wrong, 2 bad input, 3 unknown: not every execution was searched.
    """
    from faults.cli.explore_run import run

    run(ctx, **flags)
