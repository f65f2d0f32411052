"""``cxlemu bench``: our collectives beside those of MPI and Gloo and the machine's own limits, in one run."""

from pathlib import Path

import click

from cxlemu.choices import TRANSPORTS
from cxlemu.cli.options import Flags, argument, choice, concept, flag, switch, taking
from cxlemu.cli.params import each_once
from cxlemu.cli.several import for_each_ranks
from cxlemu.cli.vocabulary import RanksParam
from studies.choices import SOURCES
from studies.peers import find


class BenchFlags(Flags):
    collectives: tuple[str, ...] = argument(nargs=-1, metavar="[COLLECTIVE]...")
    ranks: int = concept("ranks", type=RanksParam(2, 64), default="2")
    minbytes: int = concept("minbytes", default="8")
    maxbytes: int = concept("maxbytes", default="64M")
    alternations: int = flag(
        "--alternations",
        type=click.IntRange(1),
        default=5,
        help="Number of rounds in which all implementations take turns.",
    )
    source: str = choice(
        "--source",
        of=list(SOURCES),
        default="both",
        help="Rewrite sources before each call, as applications do, or leave them the same.",
    )
    peers: str = flag(
        "--peers",
        callback=each_once,
        default=",".join(find.NAMES),
        help="Libraries to compare with: a comma list, or none.",
    )
    pythons: tuple[str, ...] = flag(
        "--peer-python",
        multiple=True,
        metavar="NAME=PATH",
        help="Python that has mpi4py or torch for a peer.  [default: this one]",
    )
    single_copy: bool = flag(
        "--single-copy/--no-single-copy",
        default=True,
        help="Let MPI copy straight from process to process, which no pool can.",
    )
    accelerator: str | None = flag(
        "--accelerator",
        metavar="cuda|cuda:N|fake",
        help="Also measure arrays on a device: one GPU per rank in turn, this GPU, or a fake.",
    )
    transport: str = choice(
        "--transport",
        of=TRANSPORTS,
        default="pool",
        help="process: also measure arrays that travel from process to process, as MPI's single copies do.",
    )
    config: str = concept("config", default="six-cards", help="Topology of our pool: a file or a name.")
    deadline_s: float = concept("deadline", default=120.0)
    json_file: Path | None = concept("json")
    plot_file: Path | None = concept("plot", help="Draw the results to a .png, .svg or .pdf; needs matplotlib.")
    callgrind: bool = switch(
        "--callgrind", help="Also count the instructions of small calls, which no noise changes; needs valgrind."
    )


@click.command()
@for_each_ranks("plot_file")
@taking(BenchFlags, work="bench_run:run")
def command() -> None:
    """Compare our collectives with Open MPI, MPICH and Gloo, and with the limits of this machine.

    All implementations take turns in one run with the same sizes, ranks, cores and buffers (float32), and every result
    is checked. Peers are optional: the header lists the installed peers, and why others are absent. Sizes are 8 bytes
    and all powers of four.

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
