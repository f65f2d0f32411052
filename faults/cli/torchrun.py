"""``cxlemu torchrun``: an unmodified training script over the pool, compared with Gloo and disturbed."""

from pathlib import Path

import click

from cxlemu.cli.options import Flags, argument, choice, concept, flag, path, taking
from cxlemu.cli.params import BytesParam
from cxlemu.cli.vocabulary import OneRanksParam

RANKS_MAX = 64


class TorchrunFlags(Flags):
    script: Path | None = argument(required=False, type=click.Path(path_type=Path))
    arguments: tuple[str, ...] = argument(nargs=-1, callback=None, type=click.UNPROCESSED)
    ranks: int = concept("ranks", type=OneRanksParam(1, RANKS_MAX, "as a script is started once"), default=2)
    backend: str = flag("--backend", default="emulated", help="Backend of the pool, as in cxlemu run.")
    devices: tuple[str, ...] = flag(
        "--device", multiple=True, metavar="PATH", help="Device of a DAX pool; repeat it for each card, in any order."
    )
    config: str = concept("config", default="", show_default=False, default_text="six-cards")
    card_bytes: int | None = flag("--card-bytes", type=BytesParam(), help="Size of the memory of each emulated card.")
    adversary: int | None = flag(
        "--adversary",
        type=click.IntRange(0, 10**18 - 1),
        metavar="SEED",
        help="Seed for evicting, prefetching and delaying lines.",
    )
    integrity: str | None = choice(
        "--integrity", of=["crc32c"], help="Send a checksum with each doorbell, and compare it with what is read."
    )
    compare: str | None = choice(
        "--compare", of=["gloo"], help="Compare every collective with Gloo, and name the first that differs."
    )
    digests: int = flag(
        "--digests",
        type=click.IntRange(0, 10**9),
        default=0,
        show_default=False,
        metavar="K",
        help="Compare the replicas of the model every K steps.",
    )
    faults: Path | None = concept("faults", type=click.Path(path_type=Path), help="Inject the faults of this script.")
    leave_out: tuple[str, ...] = flag(
        "--leave-out",
        multiple=True,
        metavar="RANK:INSTRUCTION",
        help="Let a rank skip an instruction, such as 1:INVALIDATE.",
    )
    max_restarts: int = flag("--max-restarts", type=click.IntRange(0, 1000), default=0, help="Same as torchrun's.")
    pace: str | None = flag(
        "--pace", metavar="CONFIG", help="Slow calls down to the times of this topology's cost model."
    )
    save: Path | None = path(
        "--save", help="Folder for a call whose result differs.  [default: a new temporary folder]"
    )
    replay: Path | None = path("--replay", metavar="FOLDER", help="Repeat one saved call on its own.")
    json_file: Path | None = concept("json")


@click.command("torchrun", context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@taking(TorchrunFlags, work="torchrun_run:run")
def command() -> None:
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
