"""``cxlemu faults sweep``: a fault before every instruction of every rank, and a table of how each run ended."""

from __future__ import annotations

from typing import Any

import click

from collectives.cli.texts import ALGORITHM_HELP
from cxlemu.choices import ENGINES
from cxlemu.cli.params import Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from faults.choices import SWEPT_FAULTS, SWEPT_RANKS_MAX


def _kinds() -> tuple[str, ...]:
    from faults.inject.fault import FAULTS

    return tuple(FAULTS)


@click.command("sweep")
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
@option("ranks", type=RanksParam(2, SWEPT_RANKS_MAX), default="3", show_default=True)
@option("config", default="", help="A topology, a file or a name.  [default: hosts around two cards]")
@click.option(
    "--cluster", type=click.IntRange(1, 16), default=1, show_default=True, help="Ranks on each host, without --config."
)
@option("minbytes", dest="nbytes", default="96", show_default=True, help="Size of a block.")
@click.option("--variant", default="every", show_default=True, help="A variant of the collectives, or every.")
@click.option("--algorithm", metavar="FILE.py:FUNCTION", help=ALGORITHM_HELP)
@option(
    "kinds",
    type=Names(_kinds),
    default=",".join(SWEPT_FAULTS),
    show_default=True,
    help="Kinds of faults; a comma list or all.",
)
@click.option("--engine", type=click.Choice(ENGINES), default="reference", show_default=True)
@option(
    "launch",
    dest="launch",
    type=click.Choice(["turns", "threads", "processes"]),
    help="How ranks run; turns: one at a time, in virtual time.  [default: turns, or threads on the native engine]",
)
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Run only N of all places, which --seed chooses.")
@click.option(
    "--seed", type=click.IntRange(0, 10**18 - 1), default=0, show_default=True, help="Seed of the data and of --sample."
)
@click.option(
    "--deadline-s", type=click.FloatRange(0.05, 60), default=0.5, show_default=True, help="Deadline of any one wait."
)
@click.option(
    "-j",
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="How many processes run scenarios.  [default: one per core for turns, else 1]",
)
@option("json")
@for_each_ranks()
@click.pass_context
def sweep_command(ctx: click.Context, /, **flags: Any) -> None:
    """Put a fault before every instruction of every rank, one a run, and judge how every rank ends.

    Calls go on until the ring has come round. Without arguments: all collectives in all variants, and the faults that
    hardware and hosts have. Exit code 1 when a rank hangs, returns wrong bytes or raises a wrong error.

    \b
    Examples:
      cxlemu faults sweep all_gather
      cxlemu faults sweep all_reduce -n 4 --kinds kill,skip_doorbell
      cxlemu faults sweep all_gather -n 4 --cluster 2 --variant hierarchical
      cxlemu faults sweep --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu faults sweep all_reduce.plan
      cxlemu faults sweep --engine native --launch processes --sample 20
    """
    from faults.cli.faults_sweep_run import run

    run(ctx, **flags)
