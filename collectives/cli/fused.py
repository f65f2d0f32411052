"""``cxlemu fused``: matrix products fused with communication, run on this machine, beside those that are not."""

import click

from collectives.choices import FUSED_SHARE, STYLES
from collectives.cli.fused_options import RANKS_MAX, Dimensions, TilingFlags
from collectives.defaults import REGION_BYTES
from cxlemu.choices import GEMM_DTYPES
from cxlemu.cli.backends import backends
from cxlemu.cli.commands import engines
from cxlemu.cli.options import argument, choice, concept, flag, switch, taking
from cxlemu.cli.params import NumberParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes


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


@click.command(cls=engines(virtual="collectives.cli.fused_virtual"))
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
