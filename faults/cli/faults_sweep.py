"""``cxlemu faults sweep``: a fault before every instruction of every rank, and a table of how each run ended."""

from pathlib import Path
from typing import Literal

import click

from cxlemu.choices import ENGINES
from cxlemu.cli.options import Flags, argument, concept, flag, taking
from cxlemu.cli.params import Names, NumberParam
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from faults.choices import SWEPT_FAULTS, SWEPT_RANKS_MAX


def _kinds() -> tuple[str, ...]:
    from faults.inject.fault import FAULTS

    return tuple(FAULTS)


class SweepFlags(Flags):
    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
    ranks: int = concept("ranks", type=RanksParam(2, SWEPT_RANKS_MAX), default="3")
    config: str = concept("config", default="", show_default=False, default_text="hosts around two cards")
    cluster: int = flag(
        "--cluster", type=click.IntRange(1, 16), default=1, help="Number of ranks on each host, without --config."
    )
    nbytes: int = concept("minbytes", default="96", help="Size of a block.")
    variant: str = flag("--variant", default="every", help="Variant of the collectives, or every.")
    algorithm: str | None = concept("algorithm")
    kinds: tuple[str, ...] = concept(
        "kinds", type=Names(_kinds), default=",".join(SWEPT_FAULTS), help="Kinds of faults; a comma list or all."
    )
    engine: str = flag("--engine", type=click.Choice(ENGINES), default="reference", help="Engine that executes plans.")
    launch: Literal["turns", "threads", "processes"] | None = concept(
        "launch",
        type=click.Choice(["turns", "threads", "processes"]),
        help="Run ranks in turns (one at a time, in virtual time), threads or processes.",
        default_text="turns, or threads on the native engine",
    )
    sample: int | None = flag(
        "--sample", type=click.IntRange(1), metavar="N", help="Run only N of the places; --seed chooses them."
    )
    seed: int = flag("--seed", type=click.IntRange(0, 10**18 - 1), default=0, help="Seed of the data and of --sample.")
    deadline_s: float = concept("deadline", type=NumberParam(0.05, 60), default=0.5)
    jobs: int | None = concept("jobs", default_text="one per core for turns, else 1")
    json_file: Path | None = concept("json")


@click.command("sweep")
@for_each_ranks()
@taking(SweepFlags, work="faults_sweep_run:run")
def sweep_command() -> None:
    """Inject a fault before every instruction of every rank, one in each run, and judge how every rank ends.

    Calls repeat until the ring has wrapped. Without arguments, sweeps all collectives in all variants with the faults
    of hardware and hosts. Exit code 1 if a rank hangs, returns wrong bytes or raises a wrong error.

    \b
    Examples:
      cxlemu faults sweep all_gather
      cxlemu faults sweep all_reduce -n 4 --kinds kill,skip_doorbell
      cxlemu faults sweep all_gather -n 4 --cluster 2 --variant hierarchical
      cxlemu faults sweep --algorithm examples/my_all_reduce.py:my_all_reduce
      cxlemu faults sweep all_reduce.plan
      cxlemu faults sweep --engine native --launch processes --sample 20
    """
