"""``cxlemu faults campaign``: sweeps faults over everything, and makes what it finds small."""

from pathlib import Path
from typing import Any

import click

from cxlemu.choices import INTEGRITIES
from cxlemu.cli.options import Flags, argument, choice, concept, flag, path, taking
from cxlemu.cli.params import each_once
from cxlemu.cli.vocabulary import RanksParam, SecondsParam
from faults.campaign.executors import NAMES
from faults.choices import CAMPAIGN_RANKS_MAX

SEEDS, BUDGET = 1, "5m"


class Words(click.ParamType):  # type: ignore[type-arg]
    """A comma list; the campaign says which words may be in it."""

    name = "a,b"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        return tuple(each_once(ctx, param, value).split(",")) if isinstance(value, str) else value


class CampaignFlags(Flags):
    """The options, by the names of the fields of a campaign's file that they replace."""

    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...")
    config: str | None = concept(
        "config", help="Campaign file; or the topology of the default campaign: a file or a name."
    )
    seeds: int = flag(
        "--seeds", type=click.IntRange(1, 1_000_000), default=SEEDS, help="Number of seeds for each combination."
    )
    budget_s: float = concept(
        "budget",
        type=SecondsParam(none_at_all=True),
        default=BUDGET,
        help="Time limit; then running cases stop, and findings are no longer shrunk.",
    )
    ranks: tuple[int, ...] | None = concept(
        "ranks", type=RanksParam(2, CAMPAIGN_RANKS_MAX), default_text="2,3, or all of a topology's clusters"
    )
    cluster: int | None = flag(
        "--cluster", type=click.IntRange(1, 64), help="Number of ranks on each host.  [default: the topology's, or 1]"
    )
    sizes: tuple[int, ...] = concept("minbytes", multiple=True, help="Size, as in `cxlemu run -b`; may be repeated.")
    variants: tuple[str, ...] | None = flag(
        "--variant", type=Words(), help="Comma list of variants, or every or auto.  [default: every]"
    )
    algorithms: tuple[str, ...] = concept("algorithm", multiple=True)
    launches: tuple[str, ...] | None = concept(
        "launch",
        type=Words(),
        help="Comma list of ways to run ranks: lockstep, turns, threads, processes.",
        default_text="lockstep,turns",
    )
    engines: tuple[str, ...] | None = flag(
        "--engine", type=Words(), help="Comma list of engines for threads and processes: native, reference."
    )
    scripts: tuple[str, ...] = concept(
        "faults", multiple=True, help="Run this fault script with every seed; may be repeated."
    )
    kinds: tuple[str, ...] | None = concept(
        "kinds", type=Words(), help="Comma list of fault kinds; each case has one fault, and none with nature."
    )
    integrity: str | None = choice("--integrity", of=INTEGRITIES, help="Add checksums, which detect flipped bits.")
    mutant: str | None = flag(
        "--mutant", help="Put the mistake RANK.STREAM.AT:KIND into every plan, to test whether the campaign finds it."
    )
    jobs: int | None = concept("jobs", type=click.IntRange(1, 1024))
    executor: str = choice("--executor", of=NAMES, default="processes", help="Workers that run the cases.")
    scheduler: str | None = flag(
        "--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler.  [default: start one on this machine]"
    )
    resume: Path | None = path(
        "--resume", help="Journal file: finished cases are added to it, and its cases are skipped."
    )
    json_file: Path | None = concept("json")
    junit: Path | None = path("--junit", help="Write JUnit XML, for continuous integration.")
    html: Path | None = path("--html", help="Write a page with a picture of each finding.")


@click.command()
@taking(CampaignFlags, work="campaign_run:run")
def command() -> None:
    """Sweep faults over collectives, ranks, sizes and engines; shrink each finding, and print its token.

    Without arguments: nature, and every kind of fault at a place drawn from the seed, on every variant of every
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
