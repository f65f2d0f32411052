"""``cxlemu simulate``: what collectives would cost on a modelled fabric, in a table as ``cxlemu run`` prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collectives.choices import SIMULATED_MAX_BYTES, SIMULATED_MIN_BYTES, SIMULATED_STEP_FACTOR
from collectives.cli.texts import ALGORITHM_HELP
from collectives.sweep.defaults import AUTO
from cxlemu.choices import DEFAULT_TOPOLOGY, DTYPE_NAMES, REDOPS
from cxlemu.cli.commands import with_forms
from cxlemu.cli.params import BytesParam, Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.units import format_bytes

RANKS_MAX = 16_384


@click.command(cls=with_forms("cxlemu.simulate"))
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@option("config", default=DEFAULT_TOPOLOGY, show_default=True, help="The modelled fabric: a topology file or name.")
@option("ranks", type=RanksParam(1, RANKS_MAX), help="[default: one for each place]")
@option("minbytes", help=f"Smallest size.  [default: {format_bytes(SIMULATED_MIN_BYTES)}]")
@option("maxbytes", help=f"Largest size.  [default: -b, or {format_bytes(SIMULATED_MAX_BYTES)}]")
@click.option(
    "-f", "--stepfactor", type=click.IntRange(2), metavar="N", help=f"Size times.  [default: {SIMULATED_STEP_FACTOR}]"
)
@click.option("-i", "--stepbytes", type=BytesParam(), help="From size to size, plus; instead of -f.")
@option("datatype", type=Names(DTYPE_NAMES), default="f32", show_default=True)
@option("op", type=Names(REDOPS), default="sum", show_default=True)
@option("root", type=click.IntRange(0), metavar="RANK", default=0, show_default=True)
@click.option(
    "--variant",
    default=AUTO,
    show_default=True,
    help="As in cxlemu run: auto, every (line up to 64 KiB a block only), or a name.",
)
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@click.option(
    "--iters", type=click.IntRange(1, 1000), metavar="N", default=1, show_default=True, help="Calls in a row."
)
@click.option("--space", metavar="NAME", help="Which of the config's memories to run on.  [default: its pool]")
@click.option("--against", metavar="CONFIG", help="The same calls on another fabric, beside each row.")
@click.option("--split", type=click.IntRange(2), metavar="N", help="all_reduce in two levels, in groups of N ranks.")
@click.option(
    "--fail",
    "fails",
    multiple=True,
    metavar="WHAT:NAME@US",
    help="link:NAME@US, link:NAME/host3@US or switch:NAME@US fails so many us after a row's first call began.",
)
@click.option("--check", is_flag=True, help="Move real bytes, too, and compare every result with NumPy's.")
@option("json")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write what happened when, for Perfetto.")
@click.option("-v", "--verbose", is_flag=True, help="Why each variant was taken; the busiest card and link by name.")
@for_each_ranks("trace_file")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Simulate collectives on a modelled fabric, in virtual time.

    The plans are those of cxlemu run; what each instruction takes follows from the topology alone, so that the same
    command prints the same bytes on every machine. Columns: busy time of the busiest card, link and copy engine in
    percent; exposed wait of the rank that waits longest; queue, how much longer than alone a transfer took in the mean.

    \b
    Examples:
      cxlemu simulate all_gather -c titan2-6xcz120 -b 1M -e 1G
      cxlemu simulate all_reduce -n 12 -c twelve-hosts -b 64M --variant every -v
      cxlemu simulate all_gather -b 1M -v --against infiniband-3xh100
      cxlemu simulate broadcast -b 1M --check --trace broadcast.json
      cxlemu simulate --algorithm examples/my_all_reduce.py:my_all_reduce -n 3
      cxlemu simulate all_reduce.plan --check
      cxlemu simulate all_reduce -c thousand-hosts -n 4096 --split 64 -b 64M
      cxlemu simulate all_gather -c racks-2x72 --fail switch:cxl-spine0@500
      cxlemu simulate --json all.json

    `cxlemu simulate training` simulates a language model's training step, `cxlemu simulate memory` memory-bound
    workloads on tiers of memory; their --help has their options.
    """
    from collectives.cli.simulate_run import run

    run(ctx, **flags)
