"""``cxlemu fused --engine virtual``: the same operators on modelled accelerators, in virtual time."""

import click

from collectives.choices import KINDS
from collectives.cli.fused_options import RANKS_MAX, Dimensions, TilingFlags
from cxlemu.choices import GEMM_DTYPES
from cxlemu.cli.options import argument, concept, flag, taking
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam


class VirtualFlags(TilingFlags):
    kind: str = argument(type=click.Choice(KINDS), metavar="OPERATOR")
    engine: str = flag("--engine", type=click.Choice(["virtual"]), required=True, help="Run on modelled accelerators.")
    ranks: int | None = concept("ranks", type=RanksParam(2, RANKS_MAX), default_text="one for each place")
    shape: tuple[int, ...] = flag(
        "-s",
        "--shape",
        type=Dimensions("MxNxK"),
        default="4096x49152x12288",
        metavar="MxNxK",
        help="Size of the whole product: A is M x K, B is K x N.",
    )
    datatype: str = concept("datatype", type=click.Choice(GEMM_DTYPES), default="bf16")
    config: str = concept("config", default="nvlink-8xa100", help="Topology with an accelerator: a file or a name.")


@click.command()
@for_each_ranks("trace_file")
@taking(VirtualFlags, work="fused_virtual_run:run")
def command() -> None:
    """Simulate a matrix product fused with communication, on modelled accelerators and links.

    Tiles, waves of tiles and memory bandwidth determine the time of a product; the topology determines the time of
    communication. The same command prints the same bytes on every machine. The columns are those of cxlemu fused.

    \b
    Examples:
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100
      cxlemu fused gemm_reduce_scatter --engine virtual -c nvlink-8xh800 --tune
      cxlemu fused gemm_all_reduce --engine virtual -c pcie-8xa100
    """
