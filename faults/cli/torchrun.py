"""``cxlemu torchrun``: an unmodified training script over the pool, compared with Gloo and disturbed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cxlemu.cli.params import BytesParam
from cxlemu.cli.vocabulary import OneRanksParam, option

RANKS_MAX = 64


@click.command("torchrun", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@option("ranks", type=OneRanksParam(1, RANKS_MAX, "as a script is started once"), default=2, show_default=True)
@click.option("--backend", default="emulated", show_default=True, help="The memory, as for cxlemu run.")
@click.option("--device", "devices", multiple=True, metavar="PATH", help="A card, for --backend dax; repeat it.")
@option("config", default="", help="A topology, a file or a name.  [default: six-cards]")
@click.option("--card-bytes", type=BytesParam(), help="This machine's memory for each emulated card.")
@click.option(
    "--adversary",
    type=click.IntRange(0, 10**18 - 1),
    metavar="SEED",
    help="Seeds random evictions, prefetches and delayed write-backs.",
)
@click.option("--integrity", type=click.Choice(["crc32c"]), help="Checksums travel with doorbells.")
@click.option("--compare", type=click.Choice(["gloo"]), help="Check every collective, and name the first that differs.")
@click.option(
    "--digests", type=click.IntRange(0, 10**9), default=0, metavar="K", help="Compare replicas every K steps."
)
@option("faults", dest="faults", type=click.Path(path_type=Path), help="What happens at which call.")
@click.option(
    "--leave-out", multiple=True, metavar="RANK:INSTRUCTION", help="A rank never executes it, such as 1:INVALIDATE."
)
@click.option("--max-restarts", type=click.IntRange(0, 1000), default=0, show_default=True, help="As of torchrun.")
@click.option("--pace", metavar="CONFIG", help="Calls take the time that this topology's model gives them.")
@click.option(
    "--save", type=click.Path(path_type=Path), help="Where a call that differs is kept.  [default: a new folder]"
)
@click.option("--replay", type=click.Path(path_type=Path), metavar="FOLDER", help="Make a kept call again, alone.")
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run a training script on N ranks of this machine, whose process groups are all made by cxl.

    The script is run as it is, whatever backend it asks for. Exit code 1 when a rank fails or a result is wrong.

    \b
    Examples:
      cxlemu torchrun -n 2 train.py --epochs 1
      cxlemu torchrun -n 2 --adversary 7 --compare gloo --digests 5 train.py
      cxlemu torchrun -n 2 --compare gloo --leave-out 1:INVALIDATE train.py
      cxlemu torchrun -n 4 --faults faults.yaml --max-restarts 1 train.py
      cxlemu torchrun --replay torchrun-1a2b/call
    """
    from faults.cli.torchrun_run import run

    run(ctx, **flags)
