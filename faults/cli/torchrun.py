"""``cxlemu torchrun``: an unmodified training script over the pool, compared with Gloo and disturbed."""

from pathlib import Path
from typing import Any

import click

from cxlemu.cli.params import BytesParam, each_once
from cxlemu.cli.vocabulary import OneRanksParam, option

RANKS_MAX = 64


@click.command("torchrun", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@click.argument("script", required=False, type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@option("ranks", type=OneRanksParam(1, RANKS_MAX, "as a script is started once"), default=2, show_default=True)
@click.option("--backend", default="emulated", show_default=True, help="Backend of the pool, as in cxlemu run.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    callback=each_once,
    metavar="PATH",
    help="Device of a DAX pool; repeat it for each card, in any order.",
)
@option("config", default="", default_text="six-cards")
@click.option("--card-bytes", type=BytesParam(), help="Size of the memory of each emulated card.")
@click.option(
    "--adversary",
    type=click.IntRange(0, 10**18 - 1),
    metavar="SEED",
    help="Seed for evicting, prefetching and delaying lines.",
)
@click.option(
    "--integrity",
    type=click.Choice(["crc32c"]),
    help="Send a checksum with each doorbell, and compare it with what is read.",
)
@click.option(
    "--compare",
    type=click.Choice(["gloo"]),
    help="Compare every collective with Gloo, and name the first that differs.",
)
@click.option(
    "--digests",
    type=click.IntRange(0, 10**9),
    default=0,
    metavar="K",
    help="Compare the replicas of the model every K steps.",
)
@option("faults", dest="faults", type=click.Path(path_type=Path), help="Inject the faults of this script.")
@click.option(
    "--leave-out",
    multiple=True,
    callback=each_once,
    metavar="RANK:INSTRUCTION",
    help="Let a rank skip an instruction, such as 1:INVALIDATE.",
)
@click.option("--max-restarts", type=click.IntRange(0, 1000), default=0, show_default=True, help="Same as torchrun's.")
@click.option("--pace", metavar="CONFIG", help="Slow calls down to the times of this topology's cost model.")
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    help="Folder that keeps a call that differs.  [default: a new temporary folder]",
)
@click.option("--replay", type=click.Path(path_type=Path), metavar="FOLDER", help="Repeat a kept call alone.")
@option("json")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Run a training script on N ranks of this machine, with cxl as the backend of every process group.

    The script runs unchanged, whichever backend it names. Exit code 1 if a rank fails or a result is wrong, 3 if a
    fault never happened, or if --compare or --leave-out had no effect.

    \b
    Examples:
      cxlemu torchrun -n 2 train.py --epochs 1
      cxlemu torchrun -n 2 --adversary 7 --compare gloo --digests 5 train.py
      cxlemu torchrun -n 2 --compare gloo --leave-out 1:INVALIDATE train.py
      cxlemu torchrun -n 4 --faults faults.yaml --max-restarts 1 train.py
      cxlemu torchrun --replay /tmp/cxlemu-torchrun-1a2b/call
    """
    from faults.cli.torchrun_run import run

    run(ctx, **flags)
