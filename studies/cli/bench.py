"""``cxlemu bench``: our collectives beside those of MPI and Gloo and the machine's own limits, in one run."""

from __future__ import annotations

from typing import Any

import click

from cxlemu.choices import TRANSPORTS
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam, option
from studies.choices import SOURCES
from studies.peers import find


@click.command()
@click.argument("collectives", nargs=-1, metavar="[COLLECTIVE]...")
@option("ranks", type=RanksParam(1, 64), default="2", show_default=True)
@option("minbytes", default="8", show_default=True, help="Smallest size.")
@option("maxbytes", default="64M", show_default=True, help="Largest size.")
@click.option(
    "--alternations", type=click.IntRange(1), default=5, show_default=True, help="Times that all are timed in turn."
)
@click.option(
    "--source",
    type=click.Choice(list(SOURCES)),
    default="both",
    show_default=True,
    help="Rewritten before each call, as applications do, or the same as in the call before.",
)
@click.option(
    "--peers",
    "names",
    default=",".join(find.NAMES),
    show_default=True,
    help="Peers to compare with; a comma list, or none.",
)
@click.option(
    "--peer-python",
    "pythons",
    multiple=True,
    metavar="NAME=PATH",
    help="The Python that has mpi4py or torch for a peer.  [default: this one]",
)
@click.option(
    "--single-copy/--no-single-copy",
    default=True,
    show_default=True,
    help="Whether MPI may copy straight from one process's memory into another's, as no pool can.",
)
@click.option(
    "--accelerator",
    metavar="cuda|cuda:N|fake",
    help="Measure arrays of a device, too: of a GPU for each rank in turn, of this one, or of a fake.",
)
@click.option(
    "--transport",
    type=click.Choice(TRANSPORTS),
    default="pool",
    show_default=True,
    help="process: also measure a handle whose arrays travel from process to process, as MPI's single copies do.",
)
@option("config", default="six-cards", show_default=True, help="Our pool's topology: a file or a name.")
@click.option("--deadline-s", type=click.FloatRange(0, min_open=True), default=120.0, show_default=True)
@option("json")
@option("plot", help="Draw it there: .png, .svg or .pdf; needs matplotlib.")
@click.option(
    "--callgrind", is_flag=True, help="Count the instructions of small calls, too: free of noise; needs valgrind."
)
@for_each_ranks("plot_file")
@click.pass_context
def command(ctx: click.Context, /, **flags: Any) -> None:
    """Compare our collectives with Open MPI, MPICH and Gloo, and with what this machine can do at best.

    All implementations take turns in one run, with the same sizes, ranks, cores and buffers (float32), and every result
    is checked. Peers are optional: the header lists those that were found, and why others are absent. Sizes are those
    of `cxlemu run`: 8 bytes and all powers of four.

    \b
    Examples:
      cxlemu bench
      cxlemu bench all_reduce broadcast -e 1M --json bench.json --plot bench.png
      cxlemu bench -n 4 --source rewritten --peers openmpi
      cxlemu bench -b 1M --no-single-copy
      cxlemu bench -b 1M --transport process
      cxlemu bench --peer-python mpich=peers/mpich/bin/python
      cxlemu bench --accelerator cuda:0 -b 1M
    """
    from studies.cli.bench_run import run

    run(ctx, **flags)
