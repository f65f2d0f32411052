"""``cxlemu plan``: show, save, check and list plans."""

from pathlib import Path

import click

from collectives.defaults import AUTO, REGION_BYTES
from cxlemu.choices import DEFAULT_TOPOLOGY, DTYPE_NAMES
from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.options import JsonFlags, argument, concept, flag, path, switch, taking
from cxlemu.cli.vocabulary import OneRanksParam
from cxlemu.units import format_bytes


class PlanCallFlags(JsonFlags):
    collective: str | None = argument(required=False)
    algorithm: str | None = concept("algorithm")
    ranks: int = concept("ranks", type=OneRanksParam(1, 4096, "as a plan is made for one"), default=4)
    total_bytes: int = concept(
        "minbytes",
        default="1M",
        help="Total size, as in nccl-tests: the blocks of all ranks together where each rank has one.",
    )
    config: str = concept("config", default=DEFAULT_TOPOLOGY)
    variant: str = flag("--variant", default=AUTO, help="auto, or a name that cxlemu plan list prints.")
    dtype: str = concept("datatype", type=click.Choice(DTYPE_NAMES), default="f32")
    op: str | None = concept(
        "op",
        help="Operation of reductions: sum, prod, min, max or avg.",
        default_text="sum, where there is a reduction",
    )
    root: int = concept("root", type=int, default=0)
    in_place: bool = switch("--in-place", help="Make the smaller buffer part of the larger one, as in NCCL.")
    region_bytes: int = concept("region", default=format_bytes(REGION_BYTES).replace(" ", ""))


class PlanShowFlags(PlanCallFlags):
    collective: str | None = argument(required=False, metavar="[COLLECTIVE|FILE.plan]")
    saved: Path | None = path("--file", help="Show a plan that cxlemu plan save wrote.")
    limit: int = flag("--limit", type=click.IntRange(1), default=100, help="Largest number of rows in a table.")


class PlanSaveFlags(PlanCallFlags):
    output: Path = path("-O", "--output", required=True, help="File to write.")


class PlanTrafficFlags(PlanCallFlags):
    output: Path = path("-O", "--output", required=True, help="Prefix of the files: OUTPUT.0.et, OUTPUT.1.et, ...")


class PlanCheckFlags(JsonFlags):
    file: Path = argument(type=click.Path(path_type=Path))


@click.group(cls=VerbsGroup)
def command() -> None:
    """Show, save and check plans.

    \b
    Examples:
      cxlemu plan list
      cxlemu plan show all_gather -n 4 -b 1M
      cxlemu plan save all_reduce -n 4 -b 1M -O all_reduce.plan
      cxlemu plan check all_reduce.plan
      cxlemu plan traffic all_reduce -n 4 -b 1M -O all_reduce
    """


@command.command()
@taking(PlanShowFlags, work="plan_run:show")
def show() -> None:
    """Print a plan: a table for each stream, with a column for each rank.

    r1+64K@2 is region 1 from byte 64K on in round 2 (round 0 is omitted), h1 a region in the heap, e the epoch
    at which the call starts, e+2 that of round 2; in, out and scratch are the rank's buffers.

    \b
    Examples:
      cxlemu plan show all_gather -n 4 -b 1M
      cxlemu plan show all_reduce --variant two_shot -n 3 -b 64K --limit 20
      cxlemu plan show all_reduce.plan --json -
    """


@command.command()
@taking(PlanSaveFlags, work="plan_run:save")
def save() -> None:
    """Build a plan, check its rules and write it to a file.

    \b
    Examples:
      cxlemu plan save all_reduce -n 4 -b 1M -O all_reduce.plan
      cxlemu plan save --algorithm mine.py:ring -n 4 -b 1M -O ring.plan
    """


@command.command()
@taking(PlanTrafficFlags, work="plan_run:traffic")
def traffic() -> None:
    """Write a plan's traffic as Chakra execution traces: one for each rank, then one for each card.

    ASTRA-sim and other simulators read them: ranks and cards are endpoints that send each other messages. Needs
    protobuf.

    \b
    Examples:
      cxlemu plan traffic all_gather -n 4 -b 1M -O all_gather
    """


@command.command()
@taking(PlanCheckFlags, work="plan_run:check")
def check() -> None:
    """Check a plan file.

    Exit code 0 if the plan obeys every rule and its call is valid, 2 if not.

    \b
    Examples:
      cxlemu plan check all_reduce.plan
    """


@command.command("list")
@taking(JsonFlags, work="plan_run:list_")
def list_() -> None:
    """List the collectives and their variants.

    \b
    Examples:
      cxlemu plan list
      cxlemu plan list --json -
    """
