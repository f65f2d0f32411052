"""``cxlemu faults campaign``: sweeps faults over everything, and makes what it finds small."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from cxlemu.choices import INTEGRITIES
from cxlemu.units import BytesParam
from faults.campaign.executors import NAMES

SEEDS, BUDGET = 1, "5m"
_UNITS = {"s": 1, "m": 60, "h": 3600}


class Seconds(click.ParamType):  # type: ignore[type-arg]  # generic only in the newest click
    """A time such as ``60s``, ``10m`` or ``2h``, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Convert a time to seconds."""
        if not (match := re.fullmatch(r"(\d{1,7}(?:\.\d{1,3})?)([smh]?)", str(value), re.ASCII)):
            self.fail(f"{str(value)[:40]!r} is not a time: write 60s, 10m or 2h.", param, ctx)
        return float(match[1]) * _UNITS[match[2] or "s"]


class Words(click.ParamType):  # type: ignore[type-arg]
    """A comma list; the campaign says which words may be in it."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        """Split a comma list."""
        return tuple(value.split(",")) if isinstance(value, str) else value


class Numbers(Words):
    """A comma list of whole numbers."""

    name = "n,n"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert a comma list to numbers."""
        words = super().convert(value, param, ctx)
        if not all(re.fullmatch("[0-9]{1,6}", word, re.ASCII) for word in words):
            self.fail(f"{str(value)[:40]!r} is not a comma list of numbers.", param, ctx)
        return tuple(map(int, words))


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@click.option("-c", "--config", help="A campaign's file; or a topology, a file or a name, for the default campaign.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1_000_000),
    default=SEEDS,
    show_default=True,
    help="How many seeds each combination is tried with.",
)
@click.option(
    "--budget",
    type=Seconds(),
    default=BUDGET,
    show_default=True,
    help="Time such as 60s, 10m, 2h, after which no case begins, none under way goes on, and no finding shrinks.",
)
@click.option(
    "-n",
    "--ranks",
    type=Numbers(),
    help="How many ranks, a comma list.  [default: 2,3, or all of a topology's clusters]",
)
@click.option("--cluster", type=click.IntRange(1, 64), help="Ranks on each host.  [default: the config's, or 1]")
@click.option(
    "-b", "--size", type=BytesParam(), multiple=True, help="Size as `cxlemu run -b` counts it; may be repeated."
)
@click.option("--variant", "variants", type=Words(), help="Variants, a comma list; every or auto.  [default: every]")
@click.option(
    "--algorithm",
    "algorithms",
    multiple=True,
    metavar="FILE.py:FUNCTION",
    help="Run your own algorithm; executes the file.",
)
@click.option(
    "--launch",
    "launches",
    type=Words(),
    help="How ranks run: lockstep, turns, threads, processes.  [default: lockstep,turns]",
)
@click.option("--engine", "engines", type=Words(), help="Engines of threads and processes: native, reference.")
@click.option(
    "--script", "scripts", multiple=True, metavar="FILE", help="Run this fault script with every seed; may be repeated."
)
@click.option(
    "--kinds", type=Words(), help="Kinds of faults that each seed places, one at a time; nature places no fault."
)
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
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write everything there as well.")
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
      cxlemu faults campaign all_reduce -n 3 --kinds crash,poison,link_down --html report.html
      cxlemu faults campaign -c campaign.yaml --resume night.jsonl --budget 8h --junit report.xml
      cxlemu faults campaign all_gather -c two-clusters --variant hierarchical
      cxlemu faults campaign --cluster 2 -n 4 --variant hierarchical --mutant 0.0.3:delete
      cxlemu faults campaign --algorithm my_all_reduce.py:my_all_reduce --seeds 1000
    """
    from faults.cli.campaign_run import run

    run(**flags)
