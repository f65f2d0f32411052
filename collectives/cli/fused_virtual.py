"""``cxlemu fused --engine virtual``: the same operators on modelled accelerators, in virtual time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collectives.choices import KINDS, ORDERS
from collectives.cli.fused_options import RANKS_MAX, Dimensions
from cxlemu.choices import GEMM_DTYPES
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option


@click.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="OPERATOR")
@click.option("--engine", type=click.Choice(["virtual"]), required=True, help="On modelled accelerators.")
@option("ranks", type=RanksParam(2, RANKS_MAX), help="[default: one for each place]")
@click.option(
    "-s",
    "--shape",
    type=Dimensions("MxNxK"),
    default="4096x49152x12288",
    show_default=True,
    metavar="MxNxK",
    help="Of the whole product: A is M x K, B is K x N.",
)
@option("datatype", type=click.Choice(GEMM_DTYPES), default="bf16", show_default=True)
@click.option("--comm-rows", type=click.IntRange(1), metavar="N", help="Rows of a communication tile.")
@click.option("--tile", type=Dimensions("ROWSxCOLS"), metavar="ROWSxCOLS", help="A compute tile.")
@click.option("--order", type=click.Choice(ORDERS), help="Who turns to whom.")
@click.option("--transport", help="pull, or push: a copy for every reader.")
@click.option("--tune", "tunes", is_flag=True, help="Search tiles, transport and order for this shape.")
@click.option(
    "--tuned",
    "tuned_file",
    type=click.Path(path_type=Path),
    help="As --tune, and keep what is found in this file, for this machine.",
)
@option("config", default="nvlink-8xa100", show_default=True, help="A topology with an accelerator.")
@option("json")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write when what happened, for Perfetto.")
@for_each_ranks("trace_file")
def command(**flags: Any) -> None:
    """Simulate a matrix product that is fused with communication, on modelled accelerators and links.

    What a product takes follows from tiles, waves of them and memory bandwidth, what moves from the topology: the same
    command prints the same bytes on every machine. Columns are as those of cxlemu fused.

    \b
    Examples:
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100
      cxlemu fused gemm_reduce_scatter --engine virtual -c nvlink-8xh800 --tune
      cxlemu fused gemm_all_reduce --engine virtual -c pcie-8xa100
    """
    from collectives.cli.fused_virtual_run import run

    run(**flags)
