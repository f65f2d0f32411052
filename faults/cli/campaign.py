"""``cxlemu faults campaign``: sweeps faults over everything, and makes what it finds small."""

from pathlib import Path
from typing import Any

import click

from cxlemu.choices import INTEGRITIES
from cxlemu.cli.params import each_once
from cxlemu.cli.vocabulary import RanksParam, SecondsParam, option
from faults.campaign.executors import NAMES
from faults.choices import CAMPAIGN_RANKS_MAX

SEEDS, BUDGET = 1, "5m"


class Words(click.ParamType):  # type: ignore[type-arg]
    """A comma list; the campaign says which words may be in it."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return tuple(each_once(ctx, param, value).split(",")) if isinstance(value, str) else value


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...", callback=each_once)
@option("config", help="Campaign file; or the topology of the default campaign: a file or a name.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000_000),
    default=SEEDS,
    show_default=True,
    help="Number of seeds for each combination.",
)
@option(
    "budget",
    dest="budget",
    type=SecondsParam(none_at_all=True),
    default=BUDGET,
    show_default=True,
    help="Time limit; then running cases stop, and findings no longer shrink.",
)
@option(
    "ranks",
    type=RanksParam(2, CAMPAIGN_RANKS_MAX),
    default_text="2,3, or all of a topology's clusters",
)
@click.option(
    "--cluster", type=click.IntRange(1, 64), help="Number of ranks on each host.  [default: the topology's, or 1]"
)
@option("minbytes", dest="size", multiple=True, help="Size, as in `cxlemu run -b`; may be repeated.")
@click.option("--variant", "variants", type=Words(), help="Comma list of variants, or every or auto.  [default: every]")
@option("algorithm", dest="algorithms", multiple=True)
@option(
    "launch",
    dest="launches",
    type=Words(),
    help="Comma list of ways to run ranks: lockstep, turns, threads, processes.",
    default_text="lockstep,turns",
)
@click.option(
    "--engine", "engines", type=Words(), help="Comma list of engines for threads and processes: native, reference."
)
@option("faults", dest="scripts", multiple=True, help="Run this fault script with every seed; may be repeated.")
@option("kinds", type=Words(), help="Comma list of fault kinds; each case has one fault, and none with nature.")
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Add checksums, which detect flipped bits.")
@click.option(
    "--mutant", help="Put the mistake RANK.STREAM.AT:KIND into every plan, to test whether the campaign finds it."
)
@option("jobs", type=click.IntRange(1, 1024))
@click.option(
    "--executor", type=click.Choice(NAMES), default="processes", show_default=True, help="Workers that run the cases."
)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler.  [default: start one on this machine]"
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path),
    help="Journal file: finished cases are added to it, and its cases are skipped.",
)
@option("json")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML, for continuous integration.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with a picture of each finding.")
def command(**flags: Any) -> None:
    """Sweep faults over collectives, ranks, sizes and engines; shrink what is found, and give each finding a token.

    Without arguments: nature, and every kind of fault at a place that the seed draws, on every variant of every
    collective with 2 and 3 ranks. The exit code is 0 when every case was judged and none failed, 1 when one failed, 3
    when the budget ended first, or no fault happened in any case.

    \b
    Examples:
      cxlemu faults campaign --seeds 100 --budget 5m
      cxlemu faults campaign all_reduce -n 3 --kinds crash --html report.html
      cxlemu faults campaign -c campaign.yaml --resume night.jsonl --budget 8h
      cxlemu faults campaign all_gather -c two-clusters --variant hierarchical
      cxlemu faults campaign all_gather -n 3 --variant naive --mutant 0.0.3:delete
      cxlemu faults campaign --algorithm mine.py:my_all_reduce --seeds 1000
    """
    from faults.cli.campaign_run import run

    run(**flags)
