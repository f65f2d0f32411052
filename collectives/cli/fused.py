"""``cxlemu fused``: matrix products fused with communication, run on this machine, beside those that are not.

With ``--engine virtual`` the same operators run on modelled accelerators, in virtual time.
"""

import re
from pathlib import Path

import click

from collectives.choices import FUSED_SHARE, KINDS, ORDERS, STYLES
from collectives.defaults import REGION_BYTES
from cxlemu.choices import GEMM_DTYPES
from cxlemu.cli.backends import backends
from cxlemu.cli.commands import engines
from cxlemu.cli.options import Flags, argument, choice, concept, flag, path, switch, taking
from cxlemu.cli.params import NumberParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes

RANKS_MAX = 64


class Dimensions(click.ParamType[tuple[int, ...]]):
    """A parameter such as ``MxNxK`` or ``ROWSxCOLS``, which becomes a tuple of that many numbers."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse numbers of one to nine digits with an ``x`` between them; a wrong text is a usage error."""
        if isinstance(value, tuple):
            return value
        numbers = str(value).split("x")
        if len(numbers) != self.name.count("x") + 1 or not all(
            re.fullmatch("[0-9]{1,9}", n, re.ASCII) for n in numbers
        ):
            self.fail(
                f"{value!r} is not {self.name}, such as {'x'.join(['256'] * (self.name.count('x') + 1))}.", param, ctx
            )
        return tuple(map(int, numbers))


class TilingFlags(Flags):
    comm_rows: int | None = flag(
        "--comm-rows", type=click.IntRange(1), metavar="N", help="Rows per communication tile."
    )
    tile: tuple[int, int] | None = flag(
        "--tile", type=Dimensions("ROWSxCOLS"), metavar="ROWSxCOLS", help="Size of a compute tile."
    )
    order: str | None = choice(
        "--order", of=ORDERS, help=f"Order in which ranks read their peers.  [default: {ORDERS[0]}]"
    )
    transport: str | None = flag("--transport", help="pull: readers fetch tiles; push: writers copy to every reader.")
    tunes: bool = switch("--tune", help="Search tiles, order and transport for this shape first.")
    tuned_file: Path | None = path("--tuned", help="Like --tune; keep the choice in this file, for this machine.")
    json_file: Path | None = concept("json")
    trace_file: Path | None = concept("trace")


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
def virtual() -> None:
    """Simulate a matrix product fused with communication, on modelled accelerators and links.

    Tiles, waves of tiles and memory bandwidth determine the time of a product; the topology determines the time of
    communication. The same command prints the same bytes on every machine. The columns are those of cxlemu fused.

    \b
    Examples:
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100
      cxlemu fused gemm_reduce_scatter --engine virtual -c nvlink-8xh800 --tune
      cxlemu fused gemm_all_reduce --engine virtual -c pcie-8xa100
    """


class FusedFlags(TilingFlags):
    kind: str = argument(metavar="OPERATOR")
    engine: str = flag(
        "--engine",
        type=click.Choice(["native", "virtual"]),
        default="native",
        help="native: on this machine; virtual: on modelled accelerators, see --engine virtual --help.",
    )
    ranks: int = concept("ranks", type=RanksParam(1, RANKS_MAX), default="2")
    shape: tuple[int, ...] = flag(
        "-s",
        "--shape",
        type=Dimensions("MxNxK"),
        default="2048x1024x1024",
        metavar="MxNxK",
        help="Size of the whole product: A is M x K, B is K x N.",
    )
    datatype: str = concept("datatype", type=click.Choice(GEMM_DTYPES), default="f32")
    style: str = choice("--style", of=["every", *STYLES], default="every", help="Ways to communicate.")
    budget_s: float = concept("budget", default=60.0, help="Approximate time limit of --tune.")
    iters: int = flag("--iters", type=click.IntRange(1), default=5, metavar="N", help="Timed calls.")
    warmup: int = flag("-w", "--warmup", type=click.IntRange(0), default=1, help="Untimed calls before the timed ones.")
    check: str = choice("-C", "--check", of=["0", "1"], default="1", help="0 skips checking results.")
    config: str | None = concept("config", default_text="six-cards")
    backend: str = choice("--backend", of=backends().names, default="emulated", help="Where the pool's bytes live.")
    pace: bool = switch("--pace", help="Slow communication down to the modelled pool's times, times a scale.")
    time_scale: float | None = flag(
        "--time-scale",
        type=NumberParam(),
        metavar="X",
        help="Real nanoseconds per modelled nanosecond.  [default: from --share]",
    )
    share: float | None = flag(
        "--share",
        type=NumberParam(0.01, 100),
        metavar="X",
        help="Scale time so that communication takes X times as long as the product; where the topology has an "
        f"accelerator, so that the product takes X times as long as on it.  [default: {FUSED_SHARE:g}]",
    )
    region_bytes: int = concept("region", default=format_bytes(REGION_BYTES).replace(" ", ""))
    deadline_s: float = concept("deadline", default=60.0)


@click.command(cls=engines(virtual=virtual))
@for_each_ranks("trace_file")
@taking(FusedFlags, work="fused_run:run")
def command() -> None:
    """Run a matrix product fused with communication, tile by tile, and compare it with unfused ones.

    OPERATOR is all_gather_gemm, gemm_reduce_scatter or gemm_all_reduce. Style fused communicates tile by tile; medium
    multiplies a shard while the next one arrives; unfused runs the collective and the product one after the other. The
    columns are FLUX's (arXiv 2406.06858): effective communication time ECT = T - T of the undivided product alone;
    overlap = 1 - ECT / ECT unfused, negative where fusing costs more than it hides. Ranks are processes.

    \b
    Examples:
      cxlemu fused all_gather_gemm --pace --tune
      cxlemu fused gemm_reduce_scatter --tile 128x512 --pace --trace fused.json
      cxlemu fused gemm_all_reduce -n 4 -s 256x256x256 --json fused.json
      cxlemu fused all_gather_gemm --engine virtual -c nvlink-8xa100 --tune
    """
