"""``cxlemu plan``: show, save, check and list plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from collectives.sweep.defaults import REGION_BYTES
from cxlemu.choices import DTYPE_NAMES
from cxlemu.cli.commands import VerbsGroup
from cxlemu.cli.params import BytesParam
from cxlemu.cli.vocabulary import OneRanksParam, option
from cxlemu.units import format_bytes

if TYPE_CHECKING:
    from collectives.cli.plan_run import Wanted


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


def _asks_for_a_plan(function: Callable[..., None]) -> Callable[..., None]:
    """Adds the argument and the options that make a Wanted, and passes it as the first argument."""

    @wraps(function)
    def collected(**given: Any) -> None:
        from collectives.cli.plan_run import Wanted

        function(Wanted(**{field.name: given.pop(field.name) for field in fields(Wanted)}), **given)

    for add in reversed(
        (
            click.argument("collective", required=False),
            click.option(
                "--algorithm",
                metavar="FILE.py:FUNCTION",
                help="Your own algorithm instead. The file is executed.",
            ),
            option("ranks", type=OneRanksParam(1, 4096, "as a plan is made for one"), default=4, show_default=True),
            option(
                "minbytes",
                dest="total_bytes",
                default="1M",
                show_default=True,
                help="Total size as in nccl-tests: of all ranks' blocks together where each has one.",
            ),
            option("config", default="six-cards", show_default=True, help="A topology: file or name."),
            click.option("--variant", default="auto", show_default=True, help="One that `cxlemu plan list` prints."),
            option("datatype", dest="dtype", type=click.Choice(DTYPE_NAMES), default="f32", show_default=True),
            option("op", help="sum, prod, min, max or avg.  [default: sum, where there is a reduction]"),
            option("root", type=int, default=0, show_default=True),
            click.option("--in-place", is_flag=True, help="Input and output are the same memory, as NCCL has it."),
            click.option(
                "--region-bytes",
                type=BytesParam(),
                default=format_bytes(REGION_BYTES).replace(" ", ""),
                show_default=True,
                help="The communicator's ring in the pool.",
            ),
        )
    ):
        collected = add(collected)
    return collected


@command.command()
@_asks_for_a_plan
@click.option("--file", "saved", type=click.Path(path_type=Path), help="A plan that `cxlemu plan save` wrote.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="Rows of any one table.")
@option("json")
def show(wanted: Wanted, saved: Path | None, limit: int, json_file: Path | None) -> None:
    """Print a plan: for every stream a table with a column per rank.

    r1+64K@2 is region 1 from byte 64K on in round 2 (round 0 is not written), h1 a region in the heap, e the epoch
    at which the call starts, e+2 that of round 2; in, out and scratch are the rank's buffers.

    \b
    Examples:
      cxlemu plan show all_gather -n 4 -b 1M
      cxlemu plan show all_reduce --variant two_shot -n 3 -b 64K --limit 20
      cxlemu plan show --file all_reduce.plan --json -
    """
    from collectives.cli import plan_run

    plan_run.show(wanted, saved, limit, json_file)


@command.command()
@_asks_for_a_plan
@click.option("-O", "--output", type=click.Path(path_type=Path), required=True, help="The file to write.")
@option("json")
def save(wanted: Wanted, output: Path, json_file: Path | None) -> None:
    """Build a plan, check its rules and write it to a file.

    \b
    Examples:
      cxlemu plan save all_reduce -n 4 -b 1M -O all_reduce.plan
      cxlemu plan save --algorithm mine.py:ring -n 4 -b 1M -O ring.plan
    """
    from collectives.cli import plan_run

    plan_run.save(wanted, output, json_file)


@command.command()
@_asks_for_a_plan
@click.option("-O", "--output", type=click.Path(path_type=Path), required=True, help="Files are OUTPUT.0.et and so on.")
@option("json")
def traffic(wanted: Wanted, output: Path, json_file: Path | None) -> None:
    """Write what a plan moves as Chakra execution traces, one for each rank and then for each card.

    ASTRA-sim and other simulators read them: ranks and cards are endpoints that send each other messages. Needs
    protobuf.

    \b
    Examples:
      cxlemu plan traffic all_gather -n 4 -b 1M -O all_gather
    """
    from collectives.cli import plan_run

    plan_run.traffic(wanted, output, json_file)


@command.command()
@click.argument("file", type=click.Path(path_type=Path))
@option("json")
def check(file: Path, json_file: Path | None) -> None:
    """Check a plan file: exit code 0 if it obeys every rule and its call means something, 2 if not.

    \b
    Examples:
      cxlemu plan check all_reduce.plan
    """
    from collectives.cli import plan_run

    plan_run.check(file, json_file)


@command.command("list")
@option("json")
def list_(json_file: Path | None) -> None:
    """Name the collectives and their variants.

    \b
    Examples:
      cxlemu plan list
      cxlemu plan list --json -
    """
    from collectives.cli import plan_run

    plan_run.list_(json_file)
