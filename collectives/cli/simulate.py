"""``cxlemu simulate``: what collectives would cost on a modelled fabric, in a table as ``cxlemu run`` prints it."""

from pathlib import Path

import click

from collectives.choices import SIMULATED_MAX_BYTES, SIMULATED_MIN_BYTES, SIMULATED_STEP_FACTOR, WITH
from collectives.defaults import AUTO
from cxlemu.choices import DEFAULT_TOPOLOGY, DTYPE_NAMES, REDOPS
from cxlemu.cli.commands import with_forms
from cxlemu.cli.options import Flags, argument, concept, flag, path, switch, taking
from cxlemu.cli.params import Names
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from cxlemu.units import format_bytes

RANKS_MAX = 16_384


class SimulateFlags(Flags):
    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...|FILE.plan")
    config: str = concept("config", default=DEFAULT_TOPOLOGY, help="Topology of the modelled fabric: a file or a name.")
    ranks: int | None = concept("ranks", type=RanksParam(1, RANKS_MAX), default_text="one for each place")
    minbytes: int | None = concept("minbytes", default_text=format_bytes(SIMULATED_MIN_BYTES))
    maxbytes: int | None = concept("maxbytes", default_text=f"-b, or {format_bytes(SIMULATED_MAX_BYTES)}")
    stepfactor: int | None = concept("stepfactor", default_text=SIMULATED_STEP_FACTOR)
    stepbytes: int | None = concept("stepbytes")
    datatype: tuple[str, ...] = concept(
        "datatype", type=Names(DTYPE_NAMES), default="f32", help="Types of the elements; a comma list or all."
    )
    op: tuple[str, ...] = concept(
        "op", type=Names(REDOPS), default="sum", help="Operations of reductions; a comma list or all."
    )
    root: int = concept("root", type=click.IntRange(0), metavar="RANK", default=0)
    variant: str = flag(
        "--variant",
        default=AUTO,
        help="auto, every (variant line only up to blocks of 64 KiB), or a name that cxlemu plan list prints.",
    )
    algorithm: str | None = concept("algorithm")
    iters: int = flag(
        "--iters", type=click.IntRange(1, 1000), metavar="N", default=1, help="Number of consecutive calls."
    )
    space: str | None = flag(
        "--space", metavar="NAME", help="Memory of the topology in which the calls run.  [default: its pool]"
    )
    against: tuple[str, ...] = flag(
        "--against",
        multiple=True,
        metavar="CONFIG",
        help="Topology of another fabric: each row also shows its times. Several give a range.",
    )
    intervals: bool = switch(
        "--intervals", help="Also show the least and the largest answer within the ranges of the topology's figures."
    )
    graph: bool = switch("--graph", help="Launch calls in a captured graph (graph_call_ns of the topology's costs).")
    split: int | None = flag(
        "--split", type=click.IntRange(2), metavar="N", help="Split all_reduce into two levels, with groups of N ranks."
    )
    fails: tuple[str, ...] = flag(
        "--fail",
        multiple=True,
        metavar="WHAT:NAME@US",
        help="Fail link:NAME, link:NAME/host3 or switch:NAME, US microseconds after the first call of a row began.",
    )
    beside: Path | None = path("--with", metavar="FILE", help=WITH)
    check: bool = switch("--check", help="Also move real bytes, and compare every result with NumPy's.")
    json_file: Path | None = concept("json")
    trace_file: Path | None = concept("trace")
    verbose: bool = concept("verbose", help="Show why each variant was chosen, and name the busiest card and link.")


@click.command(cls=with_forms("cxlemu.simulate"))
@for_each_ranks("trace_file")
@taking(SimulateFlags, work="simulate_run:run")
def command() -> None:
    """Simulate collectives on a modelled fabric, in virtual time.

    The same plans as in cxlemu run execute in virtual time. The topology alone determines the time of each instruction,
    so the same command prints the same bytes on every machine. The table has the utilization of the busiest card, link
    and copy engine in percent, the exposed wait of the rank that waits longest, and the mean queueing time of a
    transfer.

    \b
    Examples:
      cxlemu simulate all_gather -c titan2-6xcz120 -b 1M -e 1G
      cxlemu simulate all_reduce -n 12 -c twelve-hosts -b 64M --variant every -v
      cxlemu simulate all_gather -b 1M -v --against infiniband-3xh100
      cxlemu simulate all_gather -b 64M --intervals --against infiniband-3xh100
      cxlemu simulate broadcast -b 1M --check --trace broadcast.json
      cxlemu simulate --algorithm examples/my_all_reduce.py:my_all_reduce -n 3
      cxlemu simulate all_reduce.plan --check
      cxlemu simulate all_reduce -c thousand-hosts -n 4096 --split 64 -b 64M
      cxlemu simulate all_gather -c racks-2x72 --fail switch:cxl-spine0@500
      cxlemu simulate --json all.json

    `cxlemu simulate NAME --help` shows the options of each form below.
    """
