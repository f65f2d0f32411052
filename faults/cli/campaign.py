"""``cxlemu faults campaign``: sweeps faults over everything, and makes what it finds small."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cxlemu.choices import INTEGRITIES
from cxlemu.cli.vocabulary import RanksParam, SecondsParam, option
from faults.campaign.executors import NAMES
from faults.choices import CAMPAIGN_RANKS_MAX

SEEDS, BUDGET = 1, "5m"


class Words(click.ParamType):  # type: ignore[type-arg]
    """A comma list; the campaign says which words may be in it."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split a comma list."""
        return tuple(value.split(",")) if isinstance(value, str) else value


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@option("config", help="A campaign's file; or a topology, a file or a name, for the default campaign.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000_000),
    default=SEEDS,
    show_default=True,
    help="How many seeds each combination is tried with.",
)
@option(
    "budget",
    dest="budget",
    type=SecondsParam(none_at_all=True),
    default=BUDGET,
    show_default=True,
    help="Time such as 60s, 10m, 2h, after which no case begins, none under way goes on, and no finding shrinks.",
)
@option(
    "ranks",
    type=RanksParam(1, CAMPAIGN_RANKS_MAX),
    help="How many ranks.  [default: 2,3, or all of a topology's clusters]",
)
@click.option("--cluster", type=click.IntRange(1, 64), help="Ranks on each host.  [default: the config's, or 1]")
@option("minbytes", dest="size", multiple=True, help="Size as `cxlemu run -b` counts it; may be repeated.")
@click.option("--variant", "variants", type=Words(), help="Variants, a comma list; every or auto.  [default: every]")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="Run your own algorithm; executes the file.",
)
@option(
    "launch",
    dest="launches",
    type=Words(),
    help="How ranks run: lockstep, turns, threads, processes.  [default: lockstep,turns]",
)
@click.option("--engine", "engines", type=Words(), help="Engines of threads and processes: native, reference.")
@option("faults", dest="scripts", multiple=True, help="Run this fault script with every seed; may be repeated.")
@option("kinds", type=Words(), help="Kinds of faults that each seed places, one at a time; nature places no fault.")
@click.option("--integrity", type=click.Choice(INTEGRITIES), help="Add checksums, which detect flipped bits.")
@click.option(
    "--mutant", help="Put a mistake into every plan, RANK.STREAM.AT:KIND, to see whether the campaign finds it."
)
@click.option("-j", "--jobs", type=click.IntRange(1, 1024), help="How many workers run cases.  [default: one per core]")
@click.option("--executor", type=click.Choice(NAMES), default="processes", show_default=True)
@click.option(
    "--scheduler", metavar="ADDRESS", help="Use the Dask cluster there.  [default: start one on this machine]"
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="Keep a journal in this file, and skip the cases that it has."
)
@option("json")
@click.option("--junit", type=click.Path(path_type=Path), help="Write JUnit XML, for continuous integration.")
@click.option("--html", type=click.Path(path_type=Path), help="Write a page with a picture of each finding.")
def command(**flags: Any) -> None:
    """Sweep faults over collectives, ranks, sizes and engines; shrink what is found, and give each finding a token.

    Without arguments: nature, and every kind of fault at a place that the seed draws, on every variant of every
    collective with 2 and 3 ranks. The exit code is 0 when every case was judged and none failed, 1 when one failed, 3
    when the budget ended first.

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
