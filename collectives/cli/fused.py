"""``cxlemu fused``: matrix products fused with communication, run on this machine, beside those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from collectives.choices import FUSED_SHARE, ORDERS, STYLES
from collectives.cli.fused_options import RANKS_MAX, Dimensions
from collectives.sweep.defaults import REGION_BYTES
from cxlemu.choices import GEMM_DTYPES
from cxlemu.cli.backends import backends
from cxlemu.cli.forms import engines
from cxlemu.cli.params import BytesParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from cxlemu.units import format_bytes


@click.command(cls=engines(virtual="collectives.cli.fused_virtual"))
@click.argument("kind", metavar="OPERATOR")
@click.option(
    "--engine",
    type=click.Choice(["native", "virtual"]),
    default="native",
    show_default=True,
    help="virtual: on modelled accelerators; see --engine virtual --help.",
)
@option("ranks", type=RanksParam(1, RANKS_MAX), default="2", show_default=True)
@click.option(
    "-s",
    "--shape",
    type=Dimensions("MxNxK"),
    default="2048x1024x1024",
    show_default=True,
    metavar="MxNxK",
    help="Of the whole product: A is M x K, B is K x N.",
)
@option("datatype", type=click.Choice(GEMM_DTYPES), default="f32", show_default=True)
@click.option("--style", type=click.Choice(["every", *STYLES]), default="every", show_default=True)
@click.option("--comm-rows", type=click.IntRange(1), metavar="N", help="Rows of a communication tile.")
@click.option("--tile", type=Dimensions("ROWSxCOLS"), metavar="ROWSxCOLS", help="A compute tile.")
@click.option("--order", type=click.Choice(ORDERS), help=f"Who turns to whom.  [default: {ORDERS[0]}]")
@click.option("--transport", help="pull, or push: a copy for every reader.")
@click.option("--tune", "tunes", is_flag=True, help="Search tiles, order and transport for this shape first.")
@click.option(
    "--tuned",
    "tuned_file",
    type=click.Path(path_type=Path),
    help="As --tune, and keep what is found in this file, for this machine.",
)
@option("budget", default=60.0, show_default=True, help="How long --tune searches, about.")
@click.option("--iters", type=click.IntRange(1), default=5, metavar="N", show_default=True, help="Timed calls.")
@click.option("-w", "--warmup", type=click.IntRange(0), default=1, show_default=True, help="Calls before them.")
@click.option(
    "-C", "--check", type=click.Choice(["0", "1"]), default="1", show_default=True, help="0: not the results."
)
@option("config", help="A topology: a file or a name.  [default: six-cards]")
@click.option("--backend", type=click.Choice(backends().names), default="emulated", show_default=True)
@click.option("--pace", is_flag=True, help="Communication takes the time of the modelled pool, times a scale.")
@click.option("--time-scale", type=float, metavar="X", help="[default: what --share makes it]")
@click.option(
    "--share",
    type=click.FloatRange(0.01, 100),
    metavar="X",
    help="Communication takes so many times what the product does; or the product, what the topology's accelerator "
    f"is to take.  [default: {FUSED_SHARE:g}]",
)
@click.option(
    "--region-bytes",
    type=BytesParam(),
    default=format_bytes(REGION_BYTES).replace(" ", ""),
    show_default=True,
    help="The communicator's ring in the pool.",
)
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True)
@option("json")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write when what happened, for Perfetto.")
@for_each_ranks("trace_file")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run a matrix product that is fused with communication, tile by tile, beside those that are not.

    OPERATOR is all_gather_gemm, gemm_reduce_scatter or gemm_all_reduce. Styles: fused; medium, in which a shard is
    multiplied while the next one is on its way; unfused, the collective and then the product, or the other way round.
    Columns are FLUX's (arXiv 2406.06858): effective communication time ECT = T - T of the product alone, not split;
    overlap = 1 - ECT / ECT unfused, negative where fusing costs more than it hides. Ranks are processes.

    \b
    Examples:
      cxlemu fused all_gather_gemm --pace --tune
      cxlemu fused gemm_reduce_scatter --tile 128x512 --pace --trace fused.json
      cxlemu fused gemm_all_reduce -n 4 -s 256x256x256 --json fused.json
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100 --tune
    """
    from collectives.cli.fused_run import run

    run(ctx, **flags)
